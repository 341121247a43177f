"""The training data of a run: its questions and corpus, and those of the runs it was trained from.

Why: a fine-tuned model knows what its base was trained on, and judging an answer needs all of it. It must not know about models
or answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from attnlab import corpora, stages
from attnlab.corpora import Question
from attnlab.corpora.index import Index, Progress, index_corpus, place_of
from attnlab.corpora.sources import lines_of
from attnlab.errors import CheckpointError, DataError, StorageError
from attnlab.runs import Run, lineage


@dataclass(frozen=True)
class _Lookup:
    """The index of a run's corpus; or None, and the reason."""

    index: Index | None
    note: str = ""


def entries(run: Run, key: str) -> list[dict[str, Any]]:
    """Return the stored corpus or facts entries of a run and its bases, the run's own first."""
    found = (one.config.get("data", {}).get(key) for one in lineage(run))
    return [entry for entry in found if entry]


def facts_of(run: Run) -> tuple[Question, ...]:
    """Return all questions that a run was trained on; a changed file is an error."""
    found: dict[Question, None] = {}
    for entry in entries(run, "facts"):
        questions = corpora.load_questions(entry["source"])
        if stages.checksum(questions) != entry["sha256"]:
            raise DataError(
                f"{entry['source']} has changed since the run was trained on it: restore the file, or train again"
            )
        found |= dict.fromkeys(questions)
    return tuple(found)


def lines_read(run: Run) -> Iterable[str]:
    """Yield the lines that a run was trained on; none if they cannot be read."""
    with suppress(DataError):
        for entry in entries(run, "corpus")[:1]:
            yield from lines_of(entry["source"])


def look_up(run: Run, progress: Progress | None = None) -> _Lookup:
    """Open the index of the corpus that a run was trained on, building it first if needed."""
    try:
        found = entries(run, "corpus")
        if not found:
            return _Lookup(None, "it was not trained on a corpus that could be looked up")
        source, sha256 = found[0]["source"], found[0]["sha256"]
        index = existing_index(sha256) or index_corpus(source, progress=progress)
    except DataError as error:
        return _Lookup(None, f"its corpus cannot be looked up now: {error}")
    if index.sha256 != sha256:
        return _Lookup(None, f"{source} has changed since training, so nothing was looked up")
    if not index.longest:
        return _Lookup(None, "the lines of its corpus have no headings to look up")
    return _Lookup(index)


def existing_index(sha256: str) -> Index | None:
    """Return an existing index of lines with this checksum, without reading the corpus."""
    with suppress(StorageError, CheckpointError):
        return Index(place_of(sha256))
    return None
