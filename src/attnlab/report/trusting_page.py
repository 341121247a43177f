"""The page of a study of trust, and the same in Markdown. Plain data in, text out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attnlab.report import trusting
from attnlab.report.markdown import facts, safe, table, training
from attnlab.report.page import loss_figure, render
from attnlab.report.tables import in_markdown
from attnlab.report.trusting_charts import curve_figure, histogram_figure, reliability_figure
from attnlab.report.words import duration, flat, percent, plain

Result = Mapping[str, Any]

SCRIPTS = ("page.js", "tables.js")


def trust_page(result: Result) -> str:
    """The whole page."""
    context = {
        "result": result,
        "outcome": trusting.outcome(result),
        "summary": trusting.summary_table(result),
        "histogram": histogram_figure(result),
        "separation": trusting.separation_table(result) if result["separation"] else None,
        "curve": curve_figure(result),
        "rules": trusting.rules_table(result),
        "reliability": reliability_figure(result),
        "calibration_words": trusting.calibration_words(result),
        "verdicts": trusting.verdict_table(result),
        "fallback": trusting.fallback_words(result),
        "limits": trusting.limits(result),
        "losses": [loss_figure(name, run) for name, run in result["runs"].items() if run["metrics"]],
        "data_facts": [(name, plain(value)) for name, value in result["world"].items() if name != "quick"],
        "environment_facts": [(name, plain(value)) for name, value in result["environment"].items()],
        "settings": {name: list(flat(run["settings"])) for name, run in result["runs"].items()},
    }
    return render("trust.html.j2", context, SCRIPTS)


def examples(result: Result) -> Iterator[str]:
    """Some questions of each group, from the surest to the least sure."""
    for one in result["groups"]:
        yield f"### {one['name'].capitalize()} names"
        rows = [
            [
                safe(item["question"]),
                safe(item["said"]),
                percent(item["confidence"]),
                safe(item["answer"] or "–"),
                item["verdict"],
            ]
            for item in one["examples"]
        ]
        yield table(("Question", "It says", "Confidence", "Right is", "Verdict"), rows, (2,))


def blocks(result: Result) -> Iterator[str]:
    """The parts of the report in order."""
    yield f"# {safe(result['title'])}"
    yield safe(trusting.outcome(result))
    yield f"Finished {safe(result['finished'])} in {duration(result['seconds'])}."
    if result["world"].get("quick"):
        yield "**A quick run.** It was cut short to show that everything works."
    yield "## Results"
    yield in_markdown(trusting.summary_table(result))
    yield safe(trusting.summary_table(result).caption)
    if result["separation"]:
        yield "## Known or not"
        yield in_markdown(trusting.separation_table(result))
    yield "## When it answers"
    yield in_markdown(trusting.rules_table(result))
    yield "## Promised and kept"
    yield safe(trusting.calibration_words(result))
    yield "## Verdicts"
    yield in_markdown(trusting.verdict_table(result))
    if words := trusting.fallback_words(result):
        yield "## What it falls back on"
        yield safe(words)
    yield "## What is guaranteed, and what is not"
    yield "\n".join(f"- {safe(line)}" for line in trusting.limits(result))
    yield "## Answers"
    yield from examples(result)
    if result["runs"]:
        yield "## Learning"
        yield training(result["runs"])
    yield "## Do it again"
    yield f"    {' '.join(result['command'].split())}"
    yield facts(flat(result["world"]), ("The data", ""))
    yield facts(flat(result["environment"]), ("The machine", ""))
    for name, run in result["runs"].items():
        yield f"### Settings of {safe(name)}"
        yield facts(flat(run["settings"]), ("Setting", "Value"))


def trust_markdown(result: Result) -> str:
    """The whole report in Markdown."""
    return "\n\n".join(blocks(result)) + "\n"
