"""A comparison in Markdown: the tables of the page, and its sentences. Somebody's text is escaped."""

from __future__ import annotations

from collections.abc import Iterator

from attnlab.report import compared, compared_pairs, compared_texts
from attnlab.report.compared import Result
from attnlab.report.markdown import facts, safe
from attnlab.report.tables import Table, in_markdown
from attnlab.report.words import duration, flat


def part(title: str, *tables: Table | None) -> Iterator[str]:
    """A heading and the tables below it, if there are any."""
    there = [one for one in tables if one is not None]
    if there:
        yield f"## {title}"
    for one in there:
        yield safe(one.caption)
        yield in_markdown(one)


def head(result: Result) -> Iterator[str]:
    """Title, question, verdict."""
    yield f"# {safe(result['title'])}"
    if result.get("question"):
        yield f"*{safe(result['question'])}*"
    for sentence in compared.verdicts(result):
        yield safe(sentence)
    leaks = compared.leaking(result)
    if leaks:
        yield f"**{safe(', '.join(leaks))} {'leaks' if len(leaks) == 1 else 'leak'}:** numbers marked so must not be believed."
    yield f"Finished {safe(result['finished'])}; training and measuring took {duration(result['seconds'])}, all runs added up."
    if result.get("quick"):
        yield "**A quick run.** It was cut short to show that everything works."


def texts(result: Result) -> Iterator[str]:
    """Probe sentences and samples."""
    tables = compared_texts.probes_tables(result)
    if tables:
        yield "## Probe sentences"
        lines = compared_texts.probe_sentences(result)
        yield "\n".join(f"{number}. {safe(line)} ({note})" for number, (line, note) in enumerate(lines, start=1))
        yield safe(tables[0].caption)
        yield from map(in_markdown, tables)
    wrote = [one for one in result["specimens"] if one.get("samples")]
    if wrote:
        yield "## What they write"
        for one in wrote:
            yield f"### {safe(compared.titled(one))}"
            yield from (f"> {safe(text) or '(nothing)'}" for text in one["samples"])
    quality = compared_texts.quality_table(result)
    if quality:
        yield safe(quality.caption)
        yield in_markdown(quality)


def again(result: Result) -> Iterator[str]:
    """What is needed to do it again."""
    yield "## Do it again"
    yield f"    {' '.join(result['command'].split())}"
    varied = compared.varied_table(result)
    yield safe(varied.caption)
    yield in_markdown(varied)
    order = compared.order_of(result)
    if order:
        yield f"Order of the runs: {safe(order)}."
    yield facts(compared.data_facts(result), ("The data", ""))
    yield facts(flat(result.get("environment") or {}), ("The machine", ""))
    for name, values in (result.get("settings") or {}).items():
        yield f"### Settings of {safe(name)}"
        yield facts(flat(values), ("Setting", "Value"))


def blocks(result: Result) -> Iterator[str]:
    """The parts in order."""
    yield from head(result)
    yield from part("Results", compared.summary_table(result))
    pairs = compared_pairs.comparisons_table(result)
    yield from part("Compared", pairs)
    for one in compared_pairs.sentences(result):
        warning = f" **({safe(one.mark)})**" if one.mark else ""
        yield f"- {safe(one.title)}{warning}: {safe(one.words)}"
    by_seed = compared_pairs.by_seed_table(result)
    if by_seed:
        yield in_markdown(by_seed)
    yield from texts(result)
    yield from part(
        "Who sees the future", compared_texts.word_by_word_table(result), compared_texts.audit_table(result)
    )
    for item in result.get("explanation") or ():
        yield f"## {safe(item.get('title') or 'What it means')}"
        yield from map(safe, item["paragraphs"])
    yield from part("Published figures beside ours", compared.theirs_table(result))
    yield from part("Seed by seed", compared.seeds_table(result), compared_pairs.paired_table(result))
    yield from part("Time and memory", compared.costs_table(result))
    yield from again(result)


def comparison_markdown(result: Result) -> str:
    """The whole report."""
    return "\n\n".join(blocks(result)) + "\n"
