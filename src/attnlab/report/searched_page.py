"""The page and the Markdown of a search for settings. Plain data in, text out."""

from __future__ import annotations

from collections.abc import Iterator

from attnlab.report import searched
from attnlab.report.compared_page import SCRIPTS
from attnlab.report.markdown import facts, safe
from attnlab.report.page import render
from attnlab.report.searched import Result
from attnlab.report.tables import in_markdown
from attnlab.report.words import duration, flat, plain


def search_page(result: Result) -> str:
    """The whole page."""
    context = {
        "result": result,
        "history": searched.history_figure(result),
        "ranking": searched.ranking_figure(result),
        "trials": searched.trials_table(result),
        "kept": searched.kept_table(result),
        "data_facts": searched.facts_of(result),
        "environment_facts": [(name, plain(value)) for name, value in result["environment"].items()],
        "settings": list(flat(result["settings"])),
    }
    return render("searched.html.j2", context, SCRIPTS)


def blocks(result: Result) -> Iterator[str]:
    """The parts of the Markdown in order."""
    yield f"# {safe(result['title'])}"
    yield from map(safe, result["verdict"])
    yield f"Finished {safe(result['finished'])}; all trainings took {duration(result['seconds'])}."
    yield from (f"**Warning:** {safe(one)}" for one in result["warnings"])
    for title, table in (("The model", searched.kept_table(result)), ("Trials", searched.trials_table(result))):
        yield f"## {title}"
        yield safe(table.caption)
        yield in_markdown(table)
    yield "## Do it again"
    yield f"    {' '.join(result['command'].split())}"
    yield facts(searched.facts_of(result), ("The search", ""))
    yield facts(flat(result["settings"]), ("Setting of the first trial", "Value"))
    yield facts(flat(result["environment"]), ("The machine", ""))


def search_markdown(result: Result) -> str:
    """The whole report."""
    return "\n\n".join(blocks(result)) + "\n"
