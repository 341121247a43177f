"""Tokenizers of characters, byte-pair pieces or words, built on Hugging Face tokenizers.

Characters and pieces have two special symbols: `□` pads and ends a text; `⁇` masks a span, ends a question and ends an
answer. In a user's text both are read as a question mark. The character vocabulary has no other special
symbol: a character that is not in the corpus is read as `⁇`.

Words have `<START>`, `<STOP>`, `<PAD>`, and `<UNK>` for rare words; they have no mask symbol, so questions cannot be
asked. word_split.py defines what a word is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from attnlab.errors import CheckpointError, ConfigError
from attnlab.word_split import split_words

Kind = Literal["char", "bpe", "word"]

PAD = "□"
MASK = "⁇"
START, STOP, UNKNOWN, FILL = "<START>", "<STOP>", "<UNK>", "<PAD>"
WORD_SYMBOLS = (START, STOP, UNKNOWN, FILL)
_PART = re.compile(r"(?s).{1,1000}\Z|.{0,999}\S(?= )|.{1,1000}")
_SPECIAL = str.maketrans({PAD: "?", MASK: "?"})


class Tokenizer:
    """Encodes and decodes text; stored as tokenizer.json.

    `pad` pads, `stop` ends a text, `start` begins one (None if texts begin with their first token), `unknown` replaces what
    the vocabulary lacks (None if it lacks nothing), and `space` is put before a text when encoding.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend = backend
        self.kind: Kind = _kind(backend)
        numbers: dict[str, int] = backend.get_vocab()
        self.pad: int = numbers[FILL if self.words else PAD]
        self.stop: int = numbers[STOP if self.words else PAD]
        self.start: int | None = numbers[START] if self.words else None
        self.unknown: int | None = {"char": numbers.get(MASK), "word": numbers.get(UNKNOWN)}.get(self.kind)
        self._mask: int | None = None if self.words else numbers[MASK]
        self._numbers = numbers if self.words else {}
        # Tokenizers made elsewhere do not add a space before the text.
        self.space = " " if self.kind == "bpe" and _cuts_like_ours(backend) else ""

    @property
    def characters(self) -> bool:
        """Whether this is a character tokenizer."""
        return self.kind == "char"

    @property
    def words(self) -> bool:
        """Whether this is a word tokenizer."""
        return self.kind == "word"

    @property
    def mask(self) -> int:
        """The id of `⁇`; words have none."""
        if self._mask is None:
            raise ConfigError(
                f"a word tokenizer has no {MASK}, so questions cannot be asked: use --task.name words and"
                " `evaluate --corpus`, or train with --tokenizer.kind bpe"
            )
        return self._mask

    @property
    def stops(self) -> tuple[int, ...]:
        """The symbols that end a generated text."""
        return (self.stop, self.pad) if self._mask is None else (self._mask, self.pad)

    @property
    def size(self) -> int:
        """The number of symbols."""
        return int(self.backend.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """Encode a text; pieces trained here get a leading space, so that the first is encoded like any other."""
        if self.words:
            numbers, unknown = self._numbers, self._numbers[UNKNOWN]
            return [numbers.get(word, unknown) for word in _no_symbols(split_words(text))]
        text = text.translate(_SPECIAL)
        text = self.space + text if text else text
        parts = split_long_text(text) if self.space or self.characters else [text]
        return [number for part in parts for number in self.backend.encode(part).ids]

    def opening(self, text: str) -> list[int]:
        """Encode the beginning of a text, after the start symbol if there is one."""
        return self.encode(text) if self.start is None else [self.start, *self.encode(text)]

    def sentence(self, text: str, longest: int) -> list[int]:
        """Encode a whole text from its start symbol to its stop symbol, truncated to `longest` tokens."""
        return [*self.opening(text), self.stop][:longest]

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids; special symbols are shown."""
        if self.words:
            return " ".join(map(self.piece, ids))
        pieces: list[str] = []
        run: list[int] = []
        for token in [*ids, self.pad]:
            if token in (self.pad, self._mask):
                pieces.append(self._plain(run))
                pieces.append(PAD if token == self.pad else MASK)
                run = []
            else:
                run.append(token)
        return "".join(pieces[:-1])

    def piece(self, token: int) -> str:
        """Return the text of one symbol, including its space."""
        return str(self.backend.decode([token], skip_special_tokens=False))

    def _plain(self, ids: list[int]) -> str:
        text = self.backend.decode(ids, skip_special_tokens=False)
        return text.removeprefix(self.space)

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read tokenizer.json."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error.strerror}): the checkpoint is incomplete") from None
        try:
            return cls(tokenizers.Tokenizer.from_str(content.decode()))
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(f"{path} cannot be read ({error}): the checkpoint is damaged") from None

    @classmethod
    def train(cls, kind: Kind, texts: Iterable[str], vocab_size: int, min_count: int = 1) -> Tokenizer:
        """Train a tokenizer on texts, with at most `vocab_size` symbols (0: no limit).

        Words that occur fewer than `min_count` times are unknown; if there are too many, the most common are kept.
        """
        if kind == "word":
            return cls(_words(texts, vocab_size, min_count))
        plain = (text.translate(_SPECIAL) for text in texts)
        return cls(_characters(plain, vocab_size) if kind == "char" else _pieces(plain, vocab_size))


def count_words(texts: Iterable[str]) -> Counter[str]:
    """Count the occurrences of every word."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_no_symbols(split_words(text)))
    return counts


def _no_symbols(words: list[str]) -> list[str]:
    """Replace special symbols in a user's text."""
    return [UNKNOWN if word in WORD_SYMBOLS else word for word in words]


def _kind(backend: tokenizers.Tokenizer) -> Kind:
    """The kind of a tokenizer, or an error if attnlab did not make it."""
    if all(backend.token_to_id(symbol) is not None for symbol in WORD_SYMBOLS):
        return "word"
    if backend.token_to_id(PAD) is None or backend.token_to_id(MASK) is None:
        raise CheckpointError(f"tokenizer.json lacks the symbols {PAD} and {MASK}: it was not made by attnlab")
    return "char" if isinstance(backend.model, models.WordLevel) else "bpe"


def _words(texts: Iterable[str], vocab_size: int, min_count: int) -> tokenizers.Tokenizer:
    """The special symbols, then the words from most to least common, ties in alphabetical order."""
    counts = count_words(texts)
    del counts[UNKNOWN]
    known = sorted(
        (word for word, count in counts.items() if count >= min_count), key=lambda word: (-counts[word], word)
    )
    if 0 < vocab_size <= len(WORD_SYMBOLS):
        raise ConfigError(f"a vocabulary of words needs model.vocab_size above {len(WORD_SYMBOLS)}, or 0 for all words")
    symbols = [*WORD_SYMBOLS, *known][: vocab_size or None]
    backend = tokenizers.Tokenizer(
        models.WordLevel({symbol: number for number, symbol in enumerate(symbols)}, unk_token=UNKNOWN)
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def _characters(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    symbols = [PAD, MASK, *sorted({"\n"}.union(*texts))]  # the corpus contains line ends too
    if 0 < vocab_size < len(symbols):
        raise ConfigError(
            f"the corpus needs {len(symbols)} symbols, {MASK} and {PAD} included, and model.vocab_size is {vocab_size}:"
            f" set --model.vocab_size {len(symbols)}, or --tokenizer.kind bpe"
        )
    vocabulary = {symbol: number for number, symbol in enumerate(symbols)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=MASK))
    backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return backend


def _cut_pieces() -> pre_tokenizers.PreTokenizer:
    """Pre-tokenize into single digits and words with their leading space, as bytes."""
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def _cuts_like_ours(backend: tokenizers.Tokenizer) -> bool:
    """Whether a byte-pair tokenizer was trained by attnlab."""
    return backend.pre_tokenizer is not None and backend.pre_tokenizer.__getstate__() == _cut_pieces().__getstate__()


def split_long_text(text: str) -> list[str]:
    """Split a text before spaces into parts of at most 1,000 characters, which does not change its pieces.

    A word is cut only if there is no space: training time grows with the square of a word's length.
    """
    return [text] if len(text) <= 1000 else _PART.findall(text)


def _pieces(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    smallest = 256 + 2
    if vocab_size < smallest:
        raise ConfigError(f"byte-pair pieces need model.vocab_size of at least {smallest}, not {vocab_size}")
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = _cut_pieces()
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, MASK],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator((part for text in texts for part in split_long_text(" " + text)), trainer)
    return backend
