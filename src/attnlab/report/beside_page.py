"""The page and the Markdown of runs that lie side by side. Plain data in, text out."""

from __future__ import annotations

from collections.abc import Iterator

from attnlab.report.beside import Result, differences_table, results_table, run_curves
from attnlab.report.compared_page import SCRIPTS
from attnlab.report.markdown import facts, safe
from attnlab.report.page import render
from attnlab.report.tables import in_markdown
from attnlab.report.words import NOTHING, plain


def settings_of(result: Result) -> dict[str, list[tuple[str, str]]]:
    """The settings of every run; what was left empty is left out."""
    return {
        run["name"]: [(name, plain(value)) for name, value in run["settings"].items() if plain(value) != NOTHING]
        for run in result["runs"]
    }


def defects_of(result: Result) -> list[str]:
    """What is wrong on purpose with the mechanisms of some runs, in words."""
    return list(dict.fromkeys(run["defect"] for run in result["runs"] if run["defect"]))


def runs_page(result: Result) -> str:
    """The whole page."""
    context = {
        "result": result,
        "defects": defects_of(result),
        "table": results_table(result),
        "differences": differences_table(result),
        "losses": run_curves(result),
        "settings": settings_of(result),
        "environment_facts": [(name, plain(value)) for name, value in result["environment"].items()],
    }
    return render("beside.html.j2", context, SCRIPTS)


def blocks(result: Result) -> Iterator[str]:
    """The parts of the Markdown in order."""
    yield f"# {safe(result['title'])}"
    yield from (f"**Declared defect:** {safe(one)}" for one in defects_of(result))
    if result["note"]:
        yield safe(result["note"])
    yield "## Results"
    results = results_table(result)
    yield safe(results.caption)
    yield in_markdown(results)
    differences = differences_table(result)
    if differences:
        yield "## Where they differ"
        yield safe(differences.caption)
        yield in_markdown(differences)
    yield "## Do it again"
    yield f"    {' '.join(result['command'].split())}"
    for name, pairs in settings_of(result).items():
        yield f"### Settings of {safe(name)}"
        yield facts(pairs, ("Setting", "Value"))


def runs_markdown(result: Result) -> str:
    """The whole report."""
    return "\n\n".join(blocks(result)) + "\n"
