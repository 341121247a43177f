"""Texts longer than those trained on: the perplexity of the same tokens by length of context, and its tests.

Every figure is of the tokens after the first block of each document, so that a longer context is all that changes. With a
block of context, a model reads as in training, in a window that moves over the document: what users do otherwise. Two
questions are tested, each with a correction of its own: whether a variant gains or loses by a longer context, and how
variants differ with the same one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from attnlab.studies.compare.judge import compare_all, spread
from attnlab.studies.compare.plan import Plan
from attnlab.studies.compare.records import Comparison, ComparisonResult, LongTexts
from attnlab.studies.compare.runs import Reading, context_lengths, read_records


def with_long_texts(plan: Plan, folder: Path, result: ComparisonResult) -> ComparisonResult:
    """Return the result of a comparison with what longer contexts show, and a sentence for each variant."""
    records, names = read_records(plan, folder), [variant.name for variant in result.variants]
    block, *longer = lengths = context_lengths(result.settings[names[0]]["model"]["block_size"], plan.lengths)
    long, tested = records[names[0]][0].measured.long, result.figures[0]
    own = tuple(plan.clusters[at] for at in long) if plan.clusters else ()
    clusters = own if len(set(own)) < len(own) else None
    every = {
        _titled(name, length): [Reading(row.seed, row.run, row.folder, length) for row in records[name]]
        for length in lengths
        for name in names
    }
    read = {title: rows for title, rows in every.items() if all(row.known for row in rows)}
    # The seeds of a run with itself cancel out, so each of these pairs is a group of its own.
    of_itself = [[(_titled(name, length), _titled(name, block))] for name in names for length in longer]
    of_others = [[(_titled(a, length), _titled(b, length)) for a, b in plan.compared()] for length in lengths]
    leaking = {_titled(name, length) for name in result.leaking for length in lengths}

    def tests(groups: list[list[tuple[str, str]]]) -> tuple[Comparison, ...]:
        known = [[(a, b) for a, b in group if a in read and b in read] for group in groups]
        return tuple(compare_all(plan, read, tested, known, leaking, clusters))

    gains, differences = tests(of_itself), tests(of_others)
    perplexities = {
        name: tuple(
            spread(read[title], tested, clusters) if (title := _titled(name, length)) in read else None
            for length in lengths
        )
        for name in names
    }
    found = LongTexts(tuple(lengths), len(long), perplexities, gains, differences)
    most = {_titled(name, longer[-1]): name for name in names}
    sentences = [pair.sentence for pair in gains if pair.a in most]
    sentences += [f"{name} reads no more than {block} tokens." for title, name in most.items() if title not in read]
    return replace(result, long_texts=found, verdict=(*result.verdict, *sentences))


def _titled(name: str, length: int) -> str:
    return f"{name} with {length} tokens"
