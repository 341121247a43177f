"""The page and the Markdown of the study why. Plain data in, text out."""

from __future__ import annotations

from collections.abc import Iterator

from attnlab.report import why
from attnlab.report.compared_page import SCRIPTS
from attnlab.report.markdown import facts, safe
from attnlab.report.page import render
from attnlab.report.tables import in_markdown
from attnlab.report.why import Result
from attnlab.report.words import duration, flat, plain


def why_page(result: Result) -> str:
    """The whole page."""
    context = {
        "result": result,
        "verdict": why.verdict_of(result),
        "exposures": why.exposures_figure(result),
        "forms": why.forms_figure(result),
        "grid": why.grid_table(result),
        "reading": why.reading_table(result),
        "data_facts": why.facts_of(result),
        "environment_facts": [(name, plain(value)) for name, value in result["environment"].items()],
        "settings": {name: list(flat(values)) for name, values in result["settings"].items()},
    }
    return render("why.html.j2", context, SCRIPTS)


def blocks(result: Result) -> Iterator[str]:
    """The parts of the Markdown in order."""
    yield f"# {safe(result['title'])}"
    yield f"*{safe(result['question'])}*"
    yield from map(safe, why.verdict_of(result))
    yield f"Finished {safe(result['finished'])}; training and measuring took {duration(result['seconds'])}, all runs added up."
    if result.get("quick"):
        yield "**A quick run.** Few people and forms, one seed: the same story with wide intervals."
    for title, table in (("Results", why.grid_table(result)), ("What was read", why.reading_table(result))):
        yield f"## {title}"
        yield safe(table.caption)
        yield in_markdown(table)
    yield "## What it means"
    yield from map(safe, result["explanation"])
    yield "## Do it again"
    yield f"    {' '.join(result['command'].split())}"
    yield facts(why.facts_of(result), ("The data", ""))
    yield facts(flat(result["environment"]), ("The machine", ""))
    for name, values in result["settings"].items():
        yield f"### Settings of {safe(name)}"
        yield facts(flat(values), ("Setting", "Value"))


def why_markdown(result: Result) -> str:
    """The whole report."""
    return "\n\n".join(blocks(result)) + "\n"
