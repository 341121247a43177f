"""Running text as token ids on disk: made once, block by block, and read from there ever after.

    ~/.cache/attnlab/tokens/       or under the folder named by ATTNLAB_CACHE
      6f1c0a.../                   named by the checksum of text, tokenizer and how documents are separated
        tokens.bin                 the ids of all documents in order, `□` before each; 16 bits if the vocabulary fits, else 32
        about.json                 how many tokens and documents, and the crc32 of every megabyte of tokens.bin
        manifest.json              the sha256 of every file
    ~/.cache/attnlab/tokenizers/   tokenizers learned from running text, named likewise

No more than a block of the text is in memory at a time, whatever its size. Knows nothing about models.
"""

from __future__ import annotations

import json
import os
import weakref
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from attnlab.corpora import cache
from attnlab.corpora.running import Documents, RunningText
from attnlab.errors import CheckpointError, DataError
from attnlab.lm.tokenizers import Kind, Tokenizer
from attnlab.machine import cache_folder
from attnlab.reading import open_file, read_bytes
from attnlab.store.folders import digest

_FORMAT = 2  # increased when what is stored changes: older folders are then rebuilt
_ABOUT, _TOKENS = "about.json", "tokens.bin"
_BLOCK = 2**20  # bytes of tokens.bin that are checked when one of them is first read
_LEARNED_FROM = 32 * 2**20  # bytes of text that pieces are learned from


@dataclass(frozen=True)
class _About:
    """The content of about.json."""

    tokens: int
    documents: int
    dtype: str
    checksums: list[int]  # crc32 of every block of tokens.bin

    @classmethod
    def read(cls, folder: Path) -> _About:
        """Read about.json."""
        return cls(**json.loads(read_bytes(folder / _ABOUT)))


class Shard:
    """The token ids of a text; only what is asked for is read."""

    def __init__(self, folder: Path, built: bool = False) -> None:
        about = _About.read(folder)
        self.folder, self.built, self.documents, self._tokens = folder, built, about.documents, about.tokens
        self.dtype = np.dtype(about.dtype)
        self._unchecked = dict(enumerate(about.checksums))  # by block
        self._file = open_file(folder / _TOKENS)  # stays open: the cache may be cleared while it is used
        weakref.finalize(self, self._file.close)

    def __len__(self) -> int:
        return self._tokens

    def read(self, begin: int, length: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return `length` ids from a position on.

        They are read, not mapped: what a map touches counts as memory of the process, up to 2 MB for every window.
        """
        offset, size = begin * self.dtype.itemsize, length * self.dtype.itemsize
        for block in self._unchecked.keys() & range(offset // _BLOCK, -(-(offset + size) // _BLOCK)):
            if zlib.crc32(os.pread(self._file.fileno(), _BLOCK, block * _BLOCK)) != self._unchecked[block]:
                raise CheckpointError(f"{self.folder} is damaged in megabyte {block}: remove it; it is made again")
            del self._unchecked[block]
        return np.frombuffer(os.pread(self._file.fileno(), size, offset), self.dtype).astype(np.int64)

    def find(self, token: int, begin: int) -> int | None:
        """Return the first position of a token from `begin` on."""
        for at in range(begin, len(self), 2**20):
            places = np.flatnonzero(self.read(at, min(2**20, len(self) - at)) == token)
            if len(places):
                return at + int(places[0])
        return None


def tokenized(text: RunningText, tokenizer: Tokenizer, documents: Documents) -> Shard:
    """Return the token ids of a text, made now if they are not in the cache."""
    key = digest(json.dumps([_FORMAT, text.sha256, digest(tokenizer.backend.to_str().encode()), documents]).encode())

    def build(folder: Path) -> None:
        about = _write(folder / _TOKENS, text, tokenizer, documents)
        if replace(text).sha256 != text.sha256:
            raise DataError(f"{text.source} was changed while it was being read: try again when it is complete")
        if about.documents == 0:
            raise DataError(f"{text.source} is empty; it needs at least one line of text")
        (folder / _ABOUT).write_text(json.dumps(asdict(about)), encoding="utf-8")

    return Shard(*cache.ensure(cache_folder() / "tokens" / key[:32], "tokens", build))


def _write(path: Path, text: RunningText, tokenizer: Tokenizer, documents: Documents) -> _About:
    """Write the ids of a text block by block, count them, and report the share that was read."""

    def blocks() -> Iterator[str]:
        done = 0
        for block in text.blocks(documents):
            yield block
            done += len(block)
            if text.progress:
                text.progress(min(done / max(1, text.size), 1.0))

    tokens = begins = 0
    with path.open("wb") as stream:
        for part in tokenizer.encode_running(blocks()):
            stream.write(part.data)
            tokens, begins = tokens + len(part), begins + int(np.count_nonzero(part == tokenizer.pad))
    with path.open("rb") as written:
        checksums = [zlib.crc32(block) for block in iter(lambda: written.read(_BLOCK), b"")]
    return _About(tokens, begins, tokenizer.dtype.name, checksums)


def learn_tokenizer(text: RunningText, kind: Kind, vocab_size: int, min_count: int = 1) -> Tokenizer:
    """Return the tokenizer of a text, learned now if it is not in the cache; pieces of a large text from a sample of it."""
    key = digest(json.dumps([_FORMAT, text.sha256, kind, vocab_size, min_count]).encode())
    name = "tokenizer.json"

    def build(folder: Path) -> None:
        texts = text.texts(_LEARNED_FROM if kind == "bpe" else 0)
        learned = Tokenizer.train(kind, texts, vocab_size, min_count)
        (folder / name).write_text(learned.backend.to_str(), encoding="utf-8")

    place, _ = cache.ensure(cache_folder() / "tokenizers" / key[:32], "tokenizer", build)
    return Tokenizer.load(place / name)
