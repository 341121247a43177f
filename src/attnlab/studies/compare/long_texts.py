"""Texts longer than those trained on: the perplexity of the same tokens by length of context, and its tests.

Every figure is of the tokens after the first block of each document, so that a longer context is all that changes. With a
block of context, a model reads as in training, in a window that moves over the document: what users do otherwise. Two
questions are tested, each with a correction of its own: whether a variant gains or loses by a longer context, and how
variants differ with the same one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from attnlab.stats import SharedSeeds
from attnlab.studies.compare import judge
from attnlab.studies.compare.plan import Plan
from attnlab.studies.compare.records import (
    ComparisonResult,
    Effect,
    Figure,
    LongTexts,
    context_key,
    context_lengths,
)
from attnlab.studies.compare.runs import Records, read_records

_SAME = 1e-5  # difference of losses that rounding explains
_Reading = tuple[str, int]  # a variant with a length of context


def with_long_texts(plan: Plan, folder: Path, result: ComparisonResult) -> ComparisonResult:
    """Return the result of a comparison with what longer contexts show, and a sentence for each variant."""
    names = [variant.name for variant in result.variants]
    records = {name: rows for name, rows in read_records(plan, folder).items() if name in names}
    long = records[names[0]][0].measured.long
    lengths = context_lengths(result.settings[names[0]]["model"]["block_size"], plan.lengths)
    own = tuple(plan.clusters[at] for at in long) if plan.clusters else ()
    clusters = own if len(set(own)) < len(own) else None
    read = [(name, length) for name in names for length in lengths if _is_read(records, name, length)]
    leaking = set(result.leaking)

    def pair(a: _Reading, b: _Reading, shared: SharedSeeds | None = None) -> judge.Pair:
        def test(alpha: float) -> Effect:
            files = f"{context_key(a[1])}.csv", f"{context_key(b[1])}.csv"
            return judge.compare_text(records[a[0]], records[b[0]], alpha, plan.margin, clusters, *files, shared)

        return judge.Pair(_titled(a), _titled(b), test, _refused(plan, records, a, b), not leaking & {a[0], b[0]})

    between = []
    for length in lengths:
        pairs = [(a, b) for a, b in plan.compared() if (a, length) in read and (b, length) in read]
        sharing = [
            (a, b) for a, b in pairs if not leaking & {a, b} and not _refused(plan, records, (a, length), (b, length))
        ]
        shared = judge.share_seeds(records, _figure(length), sharing, clusters)
        between += [pair((a, length), (b, length), shared.get((a, b))) for a, b in pairs]
    longer = [pair((name, length), (name, lengths[0])) for name, length in read if length > lengths[0]]
    long_texts = LongTexts(
        tuple(lengths),
        len(long),
        lengths[-1] - lengths[0],
        {
            name: tuple(
                judge.spread(records[name], _figure(length), clusters) if (name, length) in read else None
                for length in lengths
            )
            for name in names
        },
        tuple(judge.compare_together(longer, plan, "ratio")),
        tuple(judge.compare_together(between, plan, "ratio")),
    )
    return replace(result, long_texts=long_texts, verdict=(*result.verdict, *_sentences(long_texts)))


def _figure(length: int) -> Figure:
    return Figure(f"{context_key(length)}_token_perplexity", f"{length} tokens", "", "perplexity", "")


def _titled(reading: _Reading) -> str:
    return f"{reading[0]} with {reading[1]} tokens"


def _is_read(records: Records, name: str, length: int) -> bool:
    """Whether the models of a variant read so many tokens."""
    return all(_figure(length).key in row.values for row in records[name])


def _refused(plan: Plan, records: Records, a: _Reading, b: _Reading) -> str:
    """Why two readings cannot be compared: runs that diverged, or equal losses."""
    if lost := judge.diverged(plan, records, a[0], b[0]):
        return lost
    first, second = (
        [row.losses(f"{context_key(length)}.csv").losses for row in records[name]] for name, length in (a, b)
    )
    if np.allclose(first, second, rtol=0, atol=_SAME):
        return "both have the same loss of every document and seed, but for rounding: there is nothing to compare"
    return ""


def _sentences(found: LongTexts) -> list[str]:
    """What the longest context does to each variant that reads it; which do not."""
    block, longest = found.lengths[0], found.lengths[-1]
    ended = [name for name, spreads in found.perplexities.items() if spreads[-1] is None]
    return [
        *(f"{name} reads no more than {block} tokens." for name in ended),
        *(pair.sentence for pair in found.against_block if pair.a.endswith(f" with {longest} tokens")),
    ]
