"""Plain next-token prediction over running text: windows anywhere in it, documents kept apart."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from attnlab.config import require
from attnlab.corpora import Corpus, RunningText
from attnlab.corpora.running import Documents
from attnlab.errors import DataError
from attnlab.lm.shards import Shard, tokenized
from attnlab.lm.tokenizers import PAD
from attnlab.registry import task
from attnlab.tasks import Example, Task, TaskData, UniformExamples

_Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]

_ROUNDS = 6
_LINE = 1024  # tokens before the held-out share in which its line may begin


def shuffled(numbers: _Numbers, n: int, keys: Sequence[int]) -> _Numbers:
    """Return where each of some numbers below n goes in a pseudorandom permutation of all of them, which is never made.

    A Feistel network permutes the pairs (a, b) of numbers below the root of n, rounded up; what lands at n or above is
    permuted again until it does not (cycle walking), which leaves a permutation of the numbers below n.
    """
    side = np.uint64(int(np.ceil(np.sqrt(n))))
    side += np.uint64(int(side) ** 2 < n)
    moved = numbers.astype(np.uint64)
    outside = np.ones(len(moved), dtype=bool)
    while outside.any():
        left, right = np.divmod(moved[outside], side)
        for key in keys:
            left, right = right, (left + _mixed(right + np.uint64(key)) % side) % side
        moved[outside] = left * side + right
        outside = moved >= n
    return moved.astype(np.int64)


def _mixed(numbers: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """The finalizer of SplitMix64: every bit of the input changes about half of the bits."""
    numbers = numbers * np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


class Windows(UniformExamples):
    """Windows of equal length, one after another from `begin`, read one by one when they are asked for.

    With `keys`, they are in pseudorandom order, and every other window inside a document begins with `□` instead of its
    first token: without a prompt, text is generated from `□`, and may then begin anywhere.
    """

    def __init__(
        self, shard: Shard, pad: int, begin: int, count: int, length: int, apart: bool, keys: Sequence[int] = ()
    ) -> None:
        self.shard, self.pad, self.begin, self.number, self.apart, self.keys = shard, pad, begin, count, apart, keys
        self.length = length + 1  # the inputs and one more target

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> Example:  # type: ignore[override]
        number = range(self.number)[index]
        if self.keys:
            number = int(shuffled(np.array([number]), self.number, self.keys)[0])
        ids = self.shard.read(self.begin + number * (self.length - 1), self.length)
        starts = 1 + np.flatnonzero(ids[1:] == self.pad)
        if self.keys and not len(starts) and number % 2 == 0:
            ids[0] = self.pad
        return Example(ids, 1, starts=tuple(starts.tolist()) if self.apart else ())


@task("text")
class Text(Task):
    """Running text in windows of a block: every token is predicted from those before it in its document.

    In an epoch, windows follow each other from a random place, so that every token is predicted about once, and are
    shuffled. `□` begins a document. The text may be larger than memory: it is made into tokens once, on disk.

    Parameters
    ----------
    documents
        what a document is in plain text: the whole file, each line (lines), or what blank lines separate (blank)
    apart
        whether tokens see only those of their own document
    held_out
        share of the text, at its end, that is kept for validation
    """

    reads = "running text"
    tested = "windows"
    preset = "text"
    built_in = "stories"

    def __init__(
        self, data: TaskData, *, documents: Documents = "file", apart: bool = True, held_out: float = 0.0
    ) -> None:
        require(0 <= held_out < 1, f"task text: held_out must lie in [0, 1), not {held_out}")
        require(
            not data.tokenizer.words,
            "task text has no words: set --tokenizer.kind to bpe, char or byte, or use --task.name words",
        )
        if data.corpus is None:
            raise DataError("task 'text' reads text: give --corpus")
        corpus = data.corpus
        text = RunningText(corpus.source, lines=corpus) if isinstance(corpus, Corpus) else corpus
        self.tokenizer, self.pad, self.block_size = data.tokenizer, data.tokenizer.pad, data.block_size
        self.apart, self.share = apart, held_out
        self.shard = tokenized(text, data.tokenizer, documents)

    @cached_property
    def end(self) -> int:
        """The first token that is held out: the beginning of a document, unless that halves the share."""
        total = len(self.shard)
        wanted = round(total * self.share)
        if not self.share:
            return total
        require(
            2 <= wanted <= total - 2,
            f"task text: the text has {total} tokens, too few to hold out {self.share:g} of them: set --dev 0",
        )
        begin = self.shard.find(self.pad, total - wanted)
        return total - wanted if begin is None or 2 * (total - begin) < max(wanted, 4) else begin

    def examples(self, rng: np.random.Generator) -> Windows:
        """Return the windows of one epoch."""
        length = min(self.block_size, self.end - 1)
        begin = int(rng.integers(0, min(length, self.end - length)))
        keys = rng.integers(0, 2**62, size=_ROUNDS).tolist()
        return Windows(self.shard, self.pad, begin, (self.end - 1 - begin) // length, length, self.apart, keys)

    def held_out(self) -> Windows:
        """Return the windows of the share that is kept for validation, in order."""
        return self._in_order(self.end)

    def held_out_text(self) -> str:
        """Return that share as text, from the beginning of the line that it begins in."""
        begin = max(0, self.end - _LINE)
        ids = self.shard.read(begin, len(self.shard) - begin).tolist()
        before, text = self.tokenizer.decode(ids[: self.end - begin]), self.tokenizer.decode(ids)
        if self.end == len(self.shard) or ids[self.end - begin] == self.pad:
            return text[len(before) :]
        return text[max(before.rfind("\n"), before.rfind(PAD)) + 1 :]

    def validation(self) -> Windows:
        """Return the windows of the whole text in order, for a text that is kept for validation."""
        return self._in_order(0)

    def count_documents(self, corpus: Corpus | RunningText | None) -> int:
        """Count the documents, as the option `documents` separates them."""
        return self.shard.documents

    def _in_order(self, begin: int) -> Windows:
        """The windows from a token to the end of the text, as they are in it."""
        total = len(self.shard) - begin
        length = min(self.block_size, max(1, total - 1))
        return Windows(self.shard, self.pad, begin, max(0, total - 1) // length, length, self.apart)
