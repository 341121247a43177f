"""Text to numbers and back: characters, or byte-pair pieces, on Hugging Face tokenizers.

Two symbols have a meaning of their own: `□` fills and ends, `⁇` hides a span, asks and closes an answer. In a user's text
they stand for nothing and are read as a question mark. The character vocabulary has no further symbol: a character that
the corpus never showed is hidden from the model, so it is read as `⁇`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from attnlab.errors import CheckpointError, ConfigError

PAD = "□"
MASK = "⁇"
_SPECIAL = str.maketrans({PAD: "?", MASK: "?"})


class Tokenizer:
    """Encodes and decodes; saved as one tokenizer.json."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend = backend
        pad, mask = backend.token_to_id(PAD), backend.token_to_id(MASK)
        if pad is None or mask is None:
            raise CheckpointError(f"tokenizer.json lacks the symbols {PAD} and {MASK}: it was not made by attnlab")
        self.pad: int = pad
        self.mask: int = mask
        self.characters = isinstance(backend.model, models.WordLevel)

    @property
    def size(self) -> int:
        """How many symbols there are."""
        return int(self.backend.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """The ids of a text. A word at the start is spelled like a word inside: with a space before it."""
        text = text.translate(_SPECIAL)
        return list(self.backend.encode(text if self.characters or not text else " " + text).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special symbols shown."""
        pieces: list[str] = []
        run: list[int] = []
        for token in [*ids, self.pad]:
            if token in (self.pad, self.mask):
                pieces.append(self._plain(run))
                pieces.append(PAD if token == self.pad else MASK)
                run = []
            else:
                run.append(token)
        return "".join(pieces[:-1])

    def piece(self, token: int) -> str:
        """One symbol as it is written, its space included."""
        return str(self.backend.decode([token], skip_special_tokens=False))

    def _plain(self, ids: list[int]) -> str:
        text = self.backend.decode(ids, skip_special_tokens=False)
        return text if self.characters else text.removeprefix(" ")

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read tokenizer.json."""
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing: the checkpoint is incomplete") from None
        try:
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(f"{path} cannot be read ({error}): the checkpoint is damaged") from None
        return cls(backend)

    @classmethod
    def train(cls, kind: Literal["char", "bpe"], texts: Iterable[str], vocab_size: int) -> Tokenizer:
        """A tokenizer learned from texts, of at most `vocab_size` symbols."""
        plain = (text.translate(_SPECIAL) for text in texts)
        return cls(_characters(plain, vocab_size) if kind == "char" else _pieces(plain, vocab_size))


def _characters(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    symbols = [PAD, MASK, *sorted({"\n"}.union(*texts))]  # the end of a line is a character of the corpus too
    if len(symbols) > vocab_size:
        raise ConfigError(
            f"the corpus needs {len(symbols)} symbols, {MASK} and {PAD} included, and model.vocab_size is {vocab_size}:"
            f" set --model.vocab_size {len(symbols)}, or --tokenizer.kind bpe"
        )
    vocabulary = {symbol: number for number, symbol in enumerate(symbols)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=MASK))
    backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return backend


def _pieces(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    smallest = 256 + 2
    if vocab_size < smallest:
        raise ConfigError(f"byte-pair pieces need model.vocab_size of at least {smallest}, not {vocab_size}")
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, MASK],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator((" " + text for text in texts), trainer)
    return backend
