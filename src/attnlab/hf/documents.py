"""The report of a classification, and the tables as they are shown before training."""

from __future__ import annotations

from dataclasses import asdict
from math import isnan
from pathlib import Path

from attnlab.hf.classify import Classification, Measured, TablesSummary
from attnlab.report.document import (
    Axis,
    Block,
    Cell,
    Chart,
    Column,
    Document,
    Facts,
    HeatMap,
    Notice,
    Row,
    Section,
    Series,
    Table,
    Text,
    section,
)
from attnlab.report.parts import (
    cell,
    columns,
    folded,
    interval_cell,
    lines,
    out_of,
    report_of,
    reproduce,
    side_by_side,
    text_column,
)
from attnlab.report.words import capital, count, duration, figure, percent, plain, plural
from attnlab.store import records

_USES = {"train": "training", "dev": "validation", "test": "test"}


# The tables


def data_blocks(tables: TablesSummary) -> list[Block]:
    """How the columns were detected, how often each label occurs, and texts of each."""
    lines_of_tables = []
    for name, table in tables.data.items():
        heading = "; heading skipped" if table.heading else ""
        blank = f"; {plural(table.blank, 'blank line')} skipped" if table.blank else ""
        order = f"{table.column.replace('-', ' ')} ({table.detected})"
        lines_of_tables.append(f"{table.source}: {count(table.texts)} texts, {_USES[name]}; {order}{heading}{blank}")
    original = {name: label for label, name in tables.renamed.items()}
    rows = [
        Row(
            Cell(f"{label} (in the files: {original[label]})" if label in original else label),
            [cell(table.counts[label], "count") for table in tables.data.values()],
        )
        for label in tables.labels
    ]
    return [
        Text(lines_of_tables),
        Table("Labels", "", columns("Label", *(_USES[name] for name in tables.data)), rows),
        side_by_side([Text(texts, "samples", label) for label, texts in tables.examples.items()]),
    ]


def warnings_of(tables: TablesSummary) -> list[Notice]:
    """What looks wrong in the tables."""
    return [Notice("Look at the data:", warning) for warning in tables.warnings]


def tables_document(tables: TablesSummary) -> Document:
    """The tables as they are shown before training."""
    return Document("tables", "Data", [], section("Tables", *data_blocks(tables)), warnings_of(tables))


# One classification


def read_classification(folder: Path) -> Document:
    """The report of a folder that `attnlab classify` wrote."""
    return classification_document(records.read(Classification, folder / "result.json"))


def classification_document(result: Classification) -> Document:
    """The report of a classification."""
    return report_of(
        "classification",
        result,
        result.verdict,
        [
            *section("Results", _accuracy_table(result)),
            *section("Training", *_curve_charts(result), _epochs_table(result)),
            *(_labels_section(measured, name, result.tables.labels) for name, measured in result.measured.items()),
            *section("Data", *data_blocks(result.tables)),
            reproduce(result, _run_facts(result), more=[_settings(result)]),
        ],
        warnings_of(result.tables),
        footer="The raw numbers are in result.json, every text with its label in predictions.tsv.",
    )


def _accuracy_table(result: Classification) -> Table:
    rows = [
        Row(
            Cell(name),
            [
                cell(measured.accuracy, "share"),
                interval_cell(measured),
                out_of(measured.right, measured.texts),
                cell(measured.loss, "loss"),
                cell(measured.commonest, "share"),
            ],
        )
        for name, measured in result.measured.items()
    ]
    titles = columns(
        "Table",
        "Accuracy",
        "95 % interval",
        "Right",
        Column("Loss", note="cross-entropy in nats"),
        Column("Most common label", note="the accuracy of always predicting it"),
    )
    chosen = "the best epoch was chosen on validation, so that figure is slightly optimistic"
    once = "the test table was measured once, after everything was chosen"
    remarks = [*([chosen] if result.best_epoch else []), *([once] if result.test else [])]
    caption = f"{capital('; '.join(remarks))}." if remarks else "Shares of right labels."
    return Table("Results", caption, titles, rows, brief=True)


def _curve_charts(result: Classification) -> list[Chart]:
    if not result.epochs:
        return []
    numbers = [float(epoch.epoch) for epoch in result.epochs]
    losses = [
        Series("training", numbers, [epoch.train_loss for epoch in result.epochs]),
        Series("validation", numbers, [epoch.dev_loss for epoch in result.epochs]),
    ]
    accuracies = [
        Series("training", numbers, [100 * epoch.train_accuracy for epoch in result.epochs]),
        Series("validation", numbers, [100 * epoch.dev_accuracy for epoch in result.epochs]),
    ]
    x, title = Axis("epoch"), f"Accuracy; epoch {result.best_epoch} was kept"
    return [
        lines("Loss", losses, x, Axis("loss", "nats per text", low=0.0), "the loss"),
        lines(title, accuracies, x, Axis("right labels", "%"), "the accuracy in per cent"),
    ]


def _epochs_table(result: Classification) -> Table | None:
    """The epochs; the one that was kept is marked."""
    if not result.epochs:
        return None
    rows = [
        Row(
            Cell(str(epoch.epoch), epoch.epoch),
            [
                *(
                    Cell(figure(loss, "loss"), None if isnan(loss) else loss)
                    for loss in (epoch.train_loss, epoch.dev_loss)
                ),
                cell(epoch.train_accuracy, "share"),
                cell(epoch.dev_accuracy, "share"),
                cell(epoch.seconds, "seconds"),
            ],
            "kept" if epoch.epoch == result.best_epoch else "",
            "good",
        )
        for epoch in result.epochs
    ]
    titles = ("Epoch", "Training loss", "Validation loss", "Training accuracy", "Validation accuracy", "Time")
    caption = (
        "Training loss and accuracy are measured while the weights change, over the whole epoch and with dropout; validation is"
        " measured at its end."
    )
    return Table("Epochs", caption, [Column(title) for title in titles], rows, brief=True)


def _labels_section(measured: Measured, name: str, labels: tuple[str, ...]) -> Section:
    blocks: list[Block] = [_confusion(measured, labels)]
    if measured.mistakes:
        blocks.append(_mistakes_table(measured, name))
    return Section(f"Labels on {name}", blocks)


def _confusion(measured: Measured, labels: tuple[str, ...]) -> HeatMap:
    counts = measured.confusion
    pairs = "; ".join(
        f"{gold} taken for {predicted} {count(counts[row][column])} times"
        for row, gold in enumerate(labels)
        for column, predicted in enumerate(labels)
        if counts[row][column]
    )
    return HeatMap(
        "Rows: the label of the text. Columns: the predicted label.",
        f"Confusion matrix. {pairs}",
        counts,
        labels,
        labels,
        high=float(max(1, *(max(row) for row in counts))),
        numbers=len(labels) <= 20,
        cell=64 if len(labels) <= 6 else 44 if len(labels) <= 12 else 30,
    )


def _mistakes_table(measured: Measured, name: str) -> Table:
    rows = [
        Row(Cell(mistake.text), [Cell(mistake.label), Cell(mistake.predicted), cell(mistake.confidence, "share")])
        for mistake in measured.mistakes
    ]
    wrong = measured.texts - measured.right
    caption = (
        f"{plural(len(rows), 'mistake')} of {count(wrong)} on {name}, the most confident ones. Some may be errors of the"
        " table."
    )
    confidence = Column("Confidence", largest_first=True)
    titles = columns("Text", text_column("Label"), text_column("Predicted"), confidence)
    return Table(f"Mistakes on {name}", caption, titles, rows)


def _run_facts(result: Classification) -> Facts:
    known = {name: value for name, value in asdict(result.facts).items() if value not in (None, ())}
    pairs = [(name.replace("_", " "), plain(value)) for name, value in known.items()]
    if result.steps:
        pairs += [
            ("steps", count(result.steps)),
            ("tokens read", count(result.tokens)),
            ("padding", percent(result.padding / (result.tokens + result.padding))),
            ("time per epoch", duration(sum(epoch.seconds for epoch in result.epochs) / len(result.epochs))),
        ]
    return Facts("Run", pairs)


def _settings(result: Classification) -> Block:
    settings = asdict(result.settings) if result.epochs else {"seed": result.settings.seed}
    checksums = [(table.source, f"sha256 {table.sha256}") for table in result.tables.data.values()]
    return folded(
        "Settings and checksums",
        Facts("Settings", [(name, plain(value)) for name, value in settings.items()]),
        Facts("Checksums", checksums),
    )
