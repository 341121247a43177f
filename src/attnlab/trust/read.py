"""What a run has read: its questions and its corpus, and those of the runs that it was trained from.

Why: a fine-tuned model knows what its base read, and whoever judges an answer needs all of it. It must not know about models
or answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from attnlab import corpora, stages
from attnlab.corpora import Question
from attnlab.corpora.index import Index, index_corpus
from attnlab.corpora.indexing import Progress, place_of
from attnlab.corpora.sources import lines_of
from attnlab.errors import CheckpointError, DataError, StorageError
from attnlab.runs import Run, lineage


@dataclass(frozen=True)
class _Lookup:
    """The index of what a run has read; or None, and why nothing can be looked up."""

    index: Index | None
    note: str = ""


def entries(run: Run, key: str) -> list[dict[str, Any]]:
    """What a run and its bases say about their corpus or facts, the nearest first."""
    found = (one.config.get("data", {}).get(key) for one in lineage(run))
    return [entry for entry in found if entry]


def facts_of(run: Run) -> tuple[Question, ...]:
    """All questions that a run was trained on, refused where a file is not what it was."""
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
    """The lines that a run has read, one at a time; none where they cannot be read now."""
    with suppress(DataError):
        for entry in entries(run, "corpus")[:1]:
            yield from lines_of(entry["source"])


def look_up(run: Run, progress: Progress | None = None) -> _Lookup:
    """The index of the corpus that a run has read, as it was then: built once, opened from then on."""
    try:
        found = entries(run, "corpus")
        if not found:
            return _Lookup(None, "it has read no corpus that could be looked up")
        source, sha256 = found[0]["source"], found[0]["sha256"]
        index = existing_index(sha256) or index_corpus(source, progress=progress)
    except DataError as error:
        return _Lookup(None, f"its corpus cannot be looked up now: {error}")
    if index.sha256 != sha256:
        return _Lookup(None, f"{source} has changed since it was read, so that nothing was looked up")
    if not index.longest:
        return _Lookup(None, "the lines of its corpus have no headings to be looked up by")
    return _Lookup(index)


def existing_index(sha256: str) -> Index | None:
    """The index of lines with this checksum, if it was built before: then no file need be read."""
    with suppress(StorageError, CheckpointError):
        return Index(place_of(sha256))
    return None
