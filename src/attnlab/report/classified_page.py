"""The page of a classification, and the same in Markdown. Plain data in, text out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attnlab.report import classified
from attnlab.report.classified_charts import confusion_figure, curve_figures, trials_figure
from attnlab.report.markdown import facts, safe, table
from attnlab.report.page import render
from attnlab.report.tables import in_markdown
from attnlab.report.words import count, duration, flat, percent, plain

Result = Mapping[str, Any]

SCRIPTS = ("page.js", "tables.js", "curves.js")


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


def measured(result: Result) -> list[dict[str, Any]]:
    """The parts of the page that are shown for each table."""
    return [
        {
            "key": part,
            "name": name,
            "confusion": confusion_figure(result, part),
            "labels": classified.label_table(result, part),
            "mistakes": classified.mistakes_table(result, part) if result[part]["mistakes"] else None,
        }
        for part, name in classified.PARTS.items()
        if result[part]
    ]


def classified_page(result: Result) -> str:
    """The whole page."""
    context = {
        "result": result,
        "outcome": classified.outcome(result),
        "accuracies": classified.accuracy_table(result),
        "curves": curve_figures(result),
        "trials": trials_figure(result),
        "parts": measured(result),
        "data": classified.data_table(result),
        "run_facts": run_facts(result),
        "data_facts": data_facts(result),
        "environment_facts": [(name, plain(value)) for name, value in result["environment"].items()],
        "settings": list(flat(result["settings"])),
    }
    return render("classified.html.j2", context, SCRIPTS)


def epochs_table(result: Result) -> str:
    """The epochs in Markdown."""
    heading = ("Epoch", "Training loss", "Validation loss", "Training accuracy", "Validation accuracy", "Time")
    rows = [
        (
            f"**{one['epoch']}**" if one["epoch"] == result["best_epoch"] else str(one["epoch"]),
            *(plain(one[key] if one[key] is None else round(one[key], 3)) for key in ("train_loss", "dev_loss")),
            percent(one["train_accuracy"]),
            percent(one["dev_accuracy"]),
            duration(one["seconds"]),
        )
        for one in result["epochs"]
    ]
    return table(heading, rows, range(6))


def blocks(result: Result) -> Iterator[str]:
    """The parts of the report in order."""
    yield f"# {safe(result['title'])}"
    yield safe(classified.outcome(result))
    yield f"Finished {safe(result['finished'])} in {duration(result['seconds'])}."
    yield from (f"**Warning:** {safe(one)}" for one in result["warnings"])
    yield "## Results"
    yield in_markdown(classified.accuracy_table(result))
    if result["epochs"]:
        yield "## Learning"
        yield epochs_table(result)
    for part, name in classified.PARTS.items():
        if result[part]:
            yield f"## Labels on {name}"
            yield in_markdown(classified.label_table(result, part))
            labels = [safe(label) for label in result["labels"]]
            rows = [(name, *map(count, row)) for name, row in zip(labels, result[part]["confusion"], strict=True)]
            yield table(("Label, and what was said", *labels), rows, range(1, len(labels) + 1))
            if result[part]["mistakes"]:
                yield f"## Mistakes on {name}"
                yield in_markdown(classified.mistakes_table(result, part))
    yield "## The data"
    yield in_markdown(classified.data_table(result))
    yield "## Do it again"
    yield f"    {' '.join(result['command'].split())}"
    yield facts([*run_facts(result), *data_facts(result)], ("The run", ""))
    yield facts(flat(result["settings"]), ("Setting", "Value"))
    yield facts(flat(result["environment"]), ("The machine", ""))


def classified_markdown(result: Result) -> str:
    """The whole report in Markdown."""
    return "\n\n".join(blocks(result)) + "\n"
