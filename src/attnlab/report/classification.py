"""The report of a classification: accuracies, curves, confusion, mistakes; and its tables before it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10, nan
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

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
from attnlab.report.parts import finished, folded, lines, reproduce, spread
from attnlab.report.words import NOTHING, count, duration, flat, interval, percent, plain, plural

Result = Mapping[str, Any]
PARTS = {"dev": "validation", "test": "test"}
USES = {"train": "training", "dev": "validation", "test": "test"}
LOSSES = ("train_loss", "dev_loss")


def outcome(result: Result) -> str:
    """What came out, in a few sentences."""
    part = "test" if result["test"] else "dev"
    one = result[part]
    said = (
        f"{result['name']} gives {percent(one['accuracy'])} of the {count(one['texts'])} {PARTS[part]} texts their label"
        f" (95 % interval {interval(one['low'], one['high'])})."
    )
    epoch = f"Epoch {result['best_epoch']} of {len(result['epochs'])} was kept, the best on validation. "
    kept = epoch if result["best_epoch"] else ""
    return f"{said} {kept}{beside_guessing(one)}"


def beside_guessing(one: Result) -> str:
    """Whether more than the commonest label was learned."""
    guess = f"always saying the commonest label gives {percent(one['commonest'])}"
    if one["low"] > one["commonest"]:
        return guess[:1].upper() + guess[1:] + "."
    return f"That is not clearly more than guessing: {guess}."


def share(value: float | None) -> Cell:
    """A share, or nothing where there was nothing to divide by."""
    return Cell(NOTHING) if value is None else Cell(percent(value), value)


def accuracy_table(result: Result) -> Table:
    """The accuracies with their intervals."""
    rows = [
        Row(
            Cell(PARTS[part]),
            [
                Cell(percent(one["accuracy"]), one["accuracy"]),
                Cell(interval(one["low"], one["high"]), one["low"]),
                Cell(f"{count(one['right'])} of {count(one['texts'])}", one["right"]),
                Cell(f"{one['loss']:.3f}" if one["loss"] is not None else NOTHING, one["loss"]),
                Cell(percent(one["commonest"]), one["commonest"]),
            ],
        )
        for part in PARTS
        if (one := result[part])
    ]
    columns = [
        Column("Table", number=False),
        Column("Accuracy"),
        Column("95 % interval"),
        Column("Right"),
        Column("Loss", note="cross-entropy in nats"),
        Column("Commonest label", note="what saying it every time would give"),
    ]
    chosen = (
        "The best epoch was chosen on validation, which flatters that figure a little" if result["best_epoch"] else ""
    )
    once = "the test table was measured once, after everything was chosen" if result["test"] else ""
    caption = "; ".join(part for part in (chosen, once) if part)
    words = f"{caption[:1].upper()}{caption[1:]}." if caption else "Shares of right labels."
    return Table("Results", words, columns, rows, brief=True)


def label_table(result: Result, part: str) -> Table:
    """How well each label is found."""
    rows = [
        Row(
            Cell(one["label"]),
            [
                Cell(count(one["texts"]), one["texts"]),
                Cell(count(one["predicted"]), one["predicted"]),
                *(share(one[key]) for key in ("precision", "recall", "f1")),
            ],
        )
        for one in result[part]["by_label"]
    ]
    columns = [
        Column("Label", number=False),
        Column("Texts"),
        Column("Said", note="how often it was said"),
        Column("Precision", note="of the texts that got this label, the share that has it"),
        Column("Recall", note="of the texts that have this label, the share that got it"),
        Column("F1", note="the harmonic mean of both"),
    ]
    return Table(
        f"Labels on {PARTS[part]}",
        "Precision: how often it is right when it says the label. Recall: how many of the label it finds.",
        columns,
        rows,
    )


def mistakes_table(result: Result, part: str) -> Table:
    """The mistakes that it was surest of."""
    rows = [
        Row(
            Cell(one["text"]),
            [Cell(one["label"]), Cell(one["predicted"]), Cell(percent(one["confidence"]), one["confidence"])],
        )
        for one in result[part]["mistakes"]
    ]
    wrong = result[part]["texts"] - result[part]["right"]
    told = f"{plural(len(rows), 'mistake')} of {count(wrong)} on {PARTS[part]}, those it was surest of."
    caption = f"{told} Some may be errors of the table."
    columns = [
        Column("Text", number=False),
        Column("Label", number=False),
        Column("It says", number=False),
        Column("Confidence", largest_first=True),
    ]
    return Table(f"Mistakes on {PARTS[part]}", caption, columns, rows)


def data_table(result: Result) -> Table:
    """The tables and their labels."""
    rows = [
        Row(
            Cell(one["source"]),
            [Cell(count(one["texts"]), one["texts"])]
            + [Cell(count(one["counts"][label]), one["counts"][label]) for label in result["labels"]],
        )
        for one in result["data"].values()
    ]
    columns = [Column("Table", number=False), Column("Texts"), *(Column(label) for label in result["labels"])]
    learned = result["data"]["train"]
    how = f"{learned['column'].replace('-', ' ').capitalize()} in {learned['source']}: {learned['recognised']}."
    return Table("Data", how, columns, rows)


# Charts


def curves(result: Result, key: str, factor: float = 1.0) -> list[Series]:
    """A figure of training and of validation, epoch by epoch."""
    epochs = [float(one["epoch"]) for one in result["epochs"]]

    def values(part: str) -> list[float]:
        found = [one[f"{part}_{key}"] for one in result["epochs"]]
        return [nan if value is None else factor * value for value in found]

    return [Series("training", epochs, values("train")), Series("validation", epochs, values("dev"))]


def curve_charts(result: Result) -> list[Chart]:
    """Loss and accuracy over the epochs."""
    if not result["epochs"]:
        return []
    x, best = Axis("epoch"), f"; epoch {result['best_epoch']} was kept"
    losses, shares = curves(result, "loss"), curves(result, "accuracy", 100.0)
    return [
        lines("Loss", losses, x, Axis("loss", "nats per text", low=0.0), "the loss"),
        lines(f"Accuracy{best}", shares, x, Axis("right labels", "%"), "the accuracy in per cent"),
    ]


def confusion(result: Result, part: str) -> HeatMap:
    """What was said of the texts of each label."""
    counts, labels = result[part]["confusion"], result["labels"]
    told = "; ".join(
        f"{meant} taken for {said} {count(counts[row][column])} times"
        for row, meant in enumerate(labels)
        for column, said in enumerate(labels)
        if counts[row][column]
    )
    return HeatMap(
        "Rows: the label of the text. Columns: what it says.",
        f"Confusion matrix. {told}",
        counts,
        labels,
        labels,
        high=float(max(1, *(max(row) for row in counts))),
        numbers=len(labels) <= 20,
        cell=64 if len(labels) <= 6 else 44 if len(labels) <= 12 else 30,
    )


def trials_chart(result: Result) -> Chart | None:
    """How the baseline's strength was chosen."""
    trials: Sequence[Result] = result["trials"]
    if not trials:
        return None
    strengths, shares = [log10(one["strength"]) for one in trials], [100 * one["accuracy"] for one in trials]
    told = "; ".join(f"{one['strength']:g}: {percent(one['accuracy'])}" for one in trials)
    return Chart(
        "lines",
        "How strongly it may trust single words, chosen within the training table",
        f"Line chart of accuracy in cross-validation by strength. {told}",
        Axis("strength, as a power of ten"),
        Axis("right labels", "%"),
        [Series("cross-validation", strengths, shares)],
        height=280,
    )


# The whole report


def run_facts(result: Result) -> list[tuple[str, str]]:
    """The model and its training in numbers."""
    found = {name.replace("_", " "): value for name, value in result["facts"].items() if name != "new_weights"}
    pairs = [(name, plain(value)) for name, value in found.items()]
    if result["facts"].get("new_weights"):
        pairs.append(("new weights, drawn at random", ", ".join(result["facts"]["new_weights"])))
    if result["steps"]:
        pairs += [
            ("steps", count(result["steps"])),
            ("tokens read", count(result["tokens"])),
            ("padding", percent(result["padding"] / (result["tokens"] + result["padding"]))),
            ("time of an epoch", duration(sum(one["seconds"] for one in result["epochs"]) / len(result["epochs"]))),
        ]
    return pairs


def data_facts(result: Result) -> list[tuple[str, str]]:
    """The files with their checksums."""
    return [(one["source"], f"sha256 {one['sha256']}") for one in result["data"].values()]


def epochs_table(result: Result) -> Table | None:
    """The epochs; the one that was kept is marked."""
    if not result["epochs"]:
        return None

    def cells(one: Result) -> list[Cell]:
        losses = [Cell("NaN" if one[key] is None else f"{one[key]:.3f}", one[key]) for key in LOSSES]
        shares = [Cell(percent(one[key]), one[key]) for key in ("train_accuracy", "dev_accuracy")]
        return [*losses, *shares, Cell(duration(one["seconds"]), one["seconds"])]

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
        "Training loss and accuracy are counted while the weights change, over the whole epoch and with dropout; validation is"
        " measured at its end."
    )
    return Table("Epochs", caption, [Column(title) for title in titles], rows, brief=True)


def part_section(result: Result, part: str, name: str) -> Section:
    """Labels and mistakes on one table."""
    blocks: list[Block] = [confusion(result, part), label_table(result, part)]
    if result[part]["mistakes"]:
        blocks.append(mistakes_table(result, part))
    return Section(f"Labels on {name}", blocks)


def document(result: Result) -> Document:
    """The whole report."""
    texts = [Text(texts, "samples", label) for label, texts in result["examples"].items()]
    hidden = folded(
        "Settings and checksums",
        Facts("Settings", list(flat(result["settings"]))),
        Facts("Checksums", data_facts(result)),
    )
    return Document(
        kind="classification",
        title=result["title"],
        lead=[outcome(result)],
        sections=[
            *section("Results", accuracy_table(result)),
            *section("Training", *curve_charts(result), epochs_table(result), trials_chart(result)),
            *(part_section(result, part, name) for part, name in PARTS.items() if result[part]),
            *section("Data", data_table(result), spread(texts) if texts else None),
            reproduce(result, [Facts("Run", run_facts(result))], more=[hidden]),
        ],
        notices=[Notice("Look at the data:", one) for one in result["warnings"]],
        about=finished(result),
        command=result["command"],
        footer="The raw numbers are in result.json, every text with its label in predictions.tsv.",
    )


# In the terminal


def tell_tables(found: Result, console: Console) -> None:
    """What was read: how the label was recognised, how often each occurs, and texts of each."""

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, highlight=False, markup=False)

    for name, one in found["data"].items():
        read = f"{one['source']}: {one['texts']:,} texts, {USES[name]}; {one['column'].replace('-', ' ')}"
        skipped = f"; {one['blank']:,} blank lines skipped" if one["blank"] else ""
        say(f"{read} ({one['recognised']}){'; heading skipped' if one['heading'] else ''}{skipped}")
    table = RichTable("label", *found["data"], box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    meant = {name: label for label, name in found["renamed"].items()}
    for label in found["labels"]:
        title = f"{label} (in the files: {meant[label]})" if label in meant else label
        table.add_row(title, *(f"{one['counts'][label]:,}" for one in found["data"].values()))
    console.print(table)
    for label, texts in found["examples"].items():
        say(f"{label}:")
        for text in texts:
            say(f"  {text if len(text) <= 100 else text[:99] + '…'}")
    for warning in found["warnings"]:
        say(f"warning: {warning}")
