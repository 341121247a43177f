"""The reports of a classification and of a search for its settings: accuracies, curves, confusion, mistakes, trials."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import log10, nan

from attnlab.errors import cut
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
from attnlab.report.legacy_parts import (
    Result,
    accuracy_cell,
    accuracy_mark,
    cell,
    columns,
    folded,
    interval_cell,
    lines,
    named_facts,
    out_of,
    plain_facts,
    report_of,
    reproduce,
    side_by_side,
    text_column,
)
from attnlab.report.words import capital, count, duration, flat, interval, percent, plural

PARTS = {"dev": "validation", "test": "test"}  # the tables that are measured, and their names in a report
_MOST_RANKED = _MOST_TEXTS = 20
_LONGEST_TEXT = 60  # characters of a text in the terminal
_EARLY = "ended early"


def _warnings(result: Result) -> list[Notice]:
    return [Notice("Look at the data:", one) for one in result["warnings"]]


# Labels for texts


def predictions_document(found: Result, counts: Result, source: str) -> Document:
    """How often each label was given, and the first texts with their labels."""
    labels = [
        Row(Cell(name), [cell(times, "count"), cell(times / len(found["texts"]), "share")])
        for name, times in counts.items()
    ]
    shown = [
        Row(
            Cell(one["label"]),
            [cell(one["probabilities"][one["label"]], "share"), Cell(cut(one["text"], _LONGEST_TEXT))],
        )
        for one in found["texts"][:_MOST_TEXTS]
    ]
    left = len(found["texts"]) - len(shown)
    return Document(
        "predictions",
        f"{plural(len(found['texts']), 'text')} of {source}, labelled by {found['model']}",
        [],
        [
            *section("Labels", Table("Labels", "", columns("Label", "Texts", "Share"), labels)),
            *section(
                f"The first {len(shown)} texts" if left else "Texts",
                Table("Texts", "", columns("Label", "Probability", text_column("Text")), shown),
            ),
        ],
    )


# One classification


def outcome(result: Result) -> str:
    """The main result, in a few sentences."""
    part = "test" if result["test"] else "dev"
    one = result[part]
    said = (
        f"{result['name']} gives {percent(one['accuracy'])} of the {count(one['texts'])} {PARTS[part]} texts their label"
        f" (95 % interval {interval(one['low'], one['high'])})."
    )
    epoch = f"Epoch {result['best_epoch']} of {len(result['epochs'])} was kept, the best on validation. "
    guess = f"always predicting the most common label gives {percent(one['commonest'])}."
    clear = one["low"] > one["commonest"]
    beside = capital(guess) if clear else f"That is not clearly more than guessing: {guess}"
    return f"{said} {epoch if result['best_epoch'] else ''}{beside}"


def _accuracy_table(result: Result) -> Table:
    rows = [
        Row(
            Cell(name),
            [
                cell(one["accuracy"], "share"),
                interval_cell(one),
                out_of(one["right"], one["texts"]),
                cell(one["loss"], "loss"),
                cell(one["commonest"], "share"),
            ],
        )
        for part, name in PARTS.items()
        if (one := result[part])
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
    said = [*([chosen] if result["best_epoch"] else []), *([once] if result["test"] else [])]
    caption = f"{capital('; '.join(said))}." if said else "Shares of right labels."
    return Table("Results", caption, titles, rows, brief=True)


def _label_table(result: Result, part: str) -> Table:
    rows = [
        Row(
            Cell(one["label"]),
            [
                cell(one["texts"], "count"),
                cell(one["predicted"], "count"),
                *(cell(one[key], "share") for key in ("precision", "recall", "f1")),
            ],
        )
        for one in result[part]["by_label"]
    ]
    titles = columns(
        "Label",
        "Texts",
        Column("Predicted", note="how often it was predicted"),
        Column("Precision", note="of the texts that got this label, the share that has it"),
        Column("Recall", note="of the texts that have this label, the share that got it"),
        Column("F1", note="the harmonic mean of both"),
    )
    caption = (
        "Precision: the share of its predictions that are right. Recall: the share of the label's texts that it finds."
    )
    return Table(f"Labels on {PARTS[part]}", caption, titles, rows)


def _mistakes_table(result: Result, part: str) -> Table:
    rows = [
        Row(Cell(one["text"]), [Cell(one["label"]), Cell(one["predicted"]), cell(one["confidence"], "share")])
        for one in result[part]["mistakes"]
    ]
    wrong = result[part]["texts"] - result[part]["right"]
    most = f"{plural(len(rows), 'mistake')} of {count(wrong)} on {PARTS[part]}, the most confident ones."
    caption = f"{most} Some may be errors of the table."
    confidence = Column("Confidence", largest_first=True)
    titles = columns("Text", text_column("Label"), text_column("Predicted"), confidence)
    return Table(f"Mistakes on {PARTS[part]}", caption, titles, rows)


def _data_table(result: Result) -> Table:
    labels = result["labels"]
    rows = [
        Row(
            Cell(one["source"]),
            [cell(one["texts"], "count"), *(cell(one["counts"][label], "count") for label in labels)],
        )
        for one in result["data"].values()
    ]
    learned = result["data"]["train"]
    how = f"{learned['column'].replace('-', ' ').capitalize()} in {learned['source']}: {learned['recognised']}."
    return Table("Data", how, columns("Table", "Texts", *labels), rows)


def _curve_charts(result: Result) -> list[Chart]:
    if not result["epochs"]:
        return []
    epochs = [float(one["epoch"]) for one in result["epochs"]]

    def curves(key: str, factor: float = 1.0) -> list[Series]:
        found = {part: [one[f"{part}_{key}"] for one in result["epochs"]] for part in ("train", "dev")}
        values = {part: [nan if one is None else factor * one for one in found[part]] for part in found}
        return [Series("training", epochs, values["train"]), Series("validation", epochs, values["dev"])]

    x, best = Axis("epoch"), f"; epoch {result['best_epoch']} was kept"
    return [
        lines("Loss", curves("loss"), x, Axis("loss", "nats per text", low=0.0), "the loss"),
        lines(f"Accuracy{best}", curves("accuracy", 100.0), x, Axis("right labels", "%"), "the accuracy in per cent"),
    ]


def _confusion(result: Result, part: str) -> HeatMap:
    counts, labels = result[part]["confusion"], result["labels"]
    told = "; ".join(
        f"{meant} taken for {said} {count(counts[row][column])} times"
        for row, meant in enumerate(labels)
        for column, said in enumerate(labels)
        if counts[row][column]
    )
    return HeatMap(
        "Rows: the label of the text. Columns: the predicted label.",
        f"Confusion matrix. {told}",
        counts,
        labels,
        labels,
        high=float(max(1, *(max(row) for row in counts))),
        numbers=len(labels) <= 20,
        cell=64 if len(labels) <= 6 else 44 if len(labels) <= 12 else 30,
    )


def _strength_chart(result: Result) -> Chart | None:
    """How the regularisation of the bag-of-words baseline was chosen."""
    trials: Sequence[Result] = result["trials"]
    if not trials:
        return None
    strengths, shares = [log10(one["strength"]) for one in trials], [100 * one["accuracy"] for one in trials]
    told = "; ".join(f"{one['strength']:g}: {percent(one['accuracy'])}" for one in trials)
    return Chart(
        "lines",
        "Weight of single words, chosen by cross-validation on the training table",
        f"Line chart of accuracy in cross-validation by strength. {told}",
        Axis("inverse regularisation strength, as a power of ten"),
        Axis("right labels", "%"),
        [Series("cross-validation", strengths, shares)],
        height=280,
    )


def _epochs_table(result: Result) -> Table | None:
    """The epochs; the one that was kept is marked."""
    if not result["epochs"]:
        return None

    def cells(one: Result) -> list[Cell]:
        losses = [
            Cell("NaN" if one[key] is None else f"{one[key]:.3f}", one[key]) for key in ("train_loss", "dev_loss")
        ]
        shares = [cell(one[key], "share") for key in ("train_accuracy", "dev_accuracy")]
        return [*losses, *shares, cell(one["seconds"], "seconds")]

    rows = [
        Row(
            Cell(str(one["epoch"]), one["epoch"]),
            cells(one),
            "kept" if one["epoch"] == result["best_epoch"] else "",
            "good",
        )
        for one in result["epochs"]
    ]
    titles = ("Epoch", "Training loss", "Validation loss", "Training accuracy", "Validation accuracy", "Time")
    caption = (
        "Training loss and accuracy are measured while the weights change, over the whole epoch and with dropout; validation is"
        " measured at its end."
    )
    return Table("Epochs", caption, [Column(title) for title in titles], rows, brief=True)


def _labels_section(result: Result, part: str, name: str) -> Section:
    blocks: list[Block] = [_confusion(result, part), _label_table(result, part)]
    if result[part]["mistakes"]:
        blocks.append(_mistakes_table(result, part))
    return Section(f"Labels on {name}", blocks)


def _run_facts(result: Result) -> Facts:
    facts = {name: value for name, value in result["facts"].items() if name != "new_weights"}
    pairs = [(name.replace("_", " "), value) for name, value in plain_facts(facts)]
    if result["facts"].get("new_weights"):
        pairs.append(("new weights, drawn at random", ", ".join(result["facts"]["new_weights"])))
    if result["steps"]:
        pairs += [
            ("steps", count(result["steps"])),
            ("tokens read", count(result["tokens"])),
            ("padding", percent(result["padding"] / (result["tokens"] + result["padding"]))),
            ("time per epoch", duration(sum(one["seconds"] for one in result["epochs"]) / len(result["epochs"]))),
        ]
    return Facts("Run", pairs)


def document(result: Result) -> Document:
    """The report of a classification."""
    texts = [Text(texts, "samples", label) for label, texts in result["examples"].items()]
    checksums = [(one["source"], f"sha256 {one['sha256']}") for one in result["data"].values()]
    settings = Facts("Settings", list(flat(result["settings"])))
    hidden = folded("Settings and checksums", settings, Facts("Checksums", checksums))
    return report_of(
        "classification",
        result,
        result.get("verdict") or [outcome(result)],  # older results do not hold it
        [
            *section("Results", _accuracy_table(result)),
            *section("Training", *_curve_charts(result), _epochs_table(result), _strength_chart(result)),
            *(_labels_section(result, part, name) for part, name in PARTS.items() if result[part]),
            *section("Data", _data_table(result), side_by_side(texts) if texts else None),
            reproduce(result, _run_facts(result), more=[hidden]),
        ],
        _warnings(result),
        footer="The raw numbers are in result.json, every text with its label in predictions.tsv.",
    )


# A search for settings


def _trials_table(result: Result) -> Table:
    def row(one: Result) -> Row:
        params = one["params"]
        planned = str(params["epochs"])
        cells = [
            Cell(str(params["batch_size"]), params["batch_size"]),
            Cell(f"{params['lr']:.3g}", params["lr"]),
            Cell(f"{len(one['epochs'])} of {planned}" if one["pruned"] else planned, params["epochs"]),
            Cell(str(one["best_epoch"]), one["best_epoch"]),
            accuracy_cell(one),
            cell(one["seconds"], "seconds"),
            Cell(_EARLY if one["pruned"] else "to the end"),
        ]
        best = "best" if one["number"] == result["best"] else ""
        return Row(Cell(str(one["number"]), one["number"]), cells, best, "good")

    note = "share of right labels in the best epoch, with the 95 % interval of this trial alone"
    titles = [
        Column("Trial"),
        Column("Batch"),
        Column("Learning rate"),
        Column("Epochs", minor=True),
        Column("Best epoch", minor=True),
        Column("Validation", note=note, largest_first=True),
        Column("Time", minor=True),
        text_column("Trained", minor=True),
    ]
    caption = (
        "Below each accuracy the 95 % interval of that trial alone, which ignores that the best of many is chosen."
        f" {capital(_EARLY)}: below the median of the others at the same share of its schedule."
    )
    return Table("Trials", caption, titles, [row(one) for one in result["trials"]], brief=True)


def _history_chart(result: Result) -> Chart:
    """Every trial in turn, and the best finished one so far."""
    trials = result["trials"]
    numbers = [float(one["number"]) for one in trials]
    shares = [100 * one["accuracy"] for one in trials]
    best = list(accumulate((0.0 if one["pruned"] else 100 * one["accuracy"] for one in trials), max))
    pairs = zip(numbers, [best[0], *best[:-1]], best, strict=True)
    steps = [(at, value) for at, before, now in pairs for value in (before, now)]
    series = [
        Series("best so far", [x for x, _ in steps], [y for _, y in steps]),
        Series("every trial", numbers, shares),
    ]
    label = f"Line chart of the best validation accuracy so far: from {best[0]:.1f} to {best[-1]:.1f} % in {len(trials)} trials"
    return Chart("lines", "Trial by trial", label, Axis("trial"), Axis("right labels", "%"), series, height=280)


def _ranking_chart(result: Result) -> Chart:
    """The best trials beside the settings that the search started from."""

    def title_of(one: Result) -> str:
        params = one["params"]
        return f"{one['number']}: batch {params['batch_size']}, {params['lr']:.2g}, {plural(params['epochs'], 'epoch')}"

    trials = sorted(result["trials"], key=lambda one: (-one["accuracy"], one["number"]))[:_MOST_RANKED]
    marks = [accuracy_mark(title_of(one), one, one["pruned"]) for one in trials]
    label = "Trials by validation accuracy. " + "; ".join(f"{one.name}: {one.text}" for one in marks)
    which = f"The {len(marks)} best trials" if len(marks) < len(result["trials"]) else "All trials"
    title = f"{which}, with 95 % intervals; the line is the first trial, with the initial settings; hollow: {_EARLY}"
    origin = 100 * result["trials"][0]["accuracy"]
    return Chart("points", title, label, Axis("right labels", "%"), marks=marks, origin=origin)


def _kept_table(result: Result) -> Table:
    meanings = {
        "dev": "optimistic: settings and epoch were chosen on it",
        "test": "measured once, after everything was chosen",
    }
    rows = [
        Row(Cell(name), [accuracy_cell(one), out_of(one["right"], one["texts"]), Cell(meanings[part])])
        for part, name in PARTS.items()
        if (one := result[part])
    ]
    caption = "The best settings, trained once more with the same seed; this is the model that was kept."
    return Table("Model", caption, columns("Table", "Accuracy", "Right", text_column("How to read it")), rows)


def search_document(result: Result) -> Document:
    """The report of a search for settings: its trials, the best of them, and how far to trust it."""
    where = f"The model is in {result['folder']}/model, its own report in {result['folder']}/report.html."
    search = {"budget": result["budget"]["words"], "space": result["tried"], "optimizer": result["optimizer"]}
    return report_of(
        "search",
        result,
        result["verdict"],
        [
            *section("Model", _kept_table(result), Text([where])),
            *section("Trials", _history_chart(result), _ranking_chart(result), _trials_table(result)),
            reproduce(
                result,
                Facts("Search", named_facts({**search, **result["data"]})),
                {"the first trial": result["settings"]},
            ),
        ],
        _warnings(result),
        "all trainings took",
        "The raw numbers are in result.json, the trials also in trials.tsv.",
    )
