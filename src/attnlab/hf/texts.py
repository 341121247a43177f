"""The texts an encoder learns from: files, labelled tables and built-in corpora, one text at a time.

Which texts are held out follows from their checksums, so that copies of a text are never on both sides, and nothing need be
in memory at once. It must not know about tokens or models.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from attnlab import corpora
from attnlab.corpora.labelled import cell_of, text_column
from attnlab.corpora.sources import lines_of

LOOKED_AT = 1000  # lines by which a table is recognised


@dataclass(frozen=True)
class Source:
    """One corpus as the user named it; of a labelled table only the column of the texts is read."""

    name: str
    sha256: str
    column: int | None = None

    def texts(self) -> Iterator[str]:
        """Its texts, one at a time."""
        for line in lines_of(self.name):
            text = line if self.column is None else cell_of(line, self.column)
            if text.strip():
                yield text.strip()

    def told(self) -> str:
        """How it is read, for people."""
        how = (
            "one text a line" if self.column is None else f"a labelled table, its column {self.column + 1} is the text"
        )
        return f"{self.name}: {how}"


def open_source(name: str) -> Source:
    """A corpus by its name, looked at and with its checksum."""
    if corpora.is_built_in(name):
        return Source(name, corpora.load_corpus(name).sha256)
    column = text_column(list(islice(lines_of(name), LOOKED_AT)))
    with Path(name).open("rb") as stream:
        return Source(name, hashlib.file_digest(stream, "sha256").hexdigest(), column)


def is_held_out(text: str, share: float) -> bool:
    """Whether a text belongs to the part that validates."""
    return zlib.crc32(text.encode()) < share * 2**32


def part(sources: Iterable[Source], share: float, held_out: bool) -> Iterator[str]:
    """The texts of all sources that are held out, or those that are not."""
    return (text for source in sources for text in source.texts() if is_held_out(text, share) == held_out)
