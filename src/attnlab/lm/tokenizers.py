"""Tokenizers of characters, bytes, byte-pair pieces or words, built on Hugging Face tokenizers.

Characters, bytes and pieces have two special symbols: `□` pads and ends a text; `⁇` masks a span, ends a question and ends an
answer. In a user's text both are read as a question mark. The character vocabulary has no other special
symbol: a character that is not in the corpus is read as `⁇`.

Words have `<START>`, `<STOP>`, `<PAD>`, and `<UNK>` for rare words; they have no mask symbol, so questions cannot be
asked. `split_words` defines what a word is.

Running text of any size is encoded block by block (`Tokenizer.encode_running`), with the ids that `encode` gives whole
documents and `□` before each of them.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from attnlab.errors import CheckpointError, ConfigError
from attnlab.reading import read_bytes

Kind = Literal["char", "byte", "bpe", "word"]
Ids = np.ndarray[Any, np.dtype[Any]]  # token ids as they are stored: of 16 bits if the vocabulary fits, else of 32

PAD = "□"
MASK = "⁇"
START, STOP, UNKNOWN, FILL = "<START>", "<STOP>", "<UNK>", "<PAD>"
WORD_SYMBOLS = (START, STOP, UNKNOWN, FILL)
_PART = re.compile(r"(?s).{1,1000}\Z|.{0,999}\S(?= )|.{1,1000}")
_SPECIAL = str.maketrans({PAD: "?", MASK: "?"})
# Parts that can be encoded alone: no piece reaches over a space that follows something else, or over a document's end.
_CHUNK = re.compile(rf"{PAD}|\s*+(?:[^\s{PAD}]++(?:[^\S ]\s*+)?)++|\s+")
_LONGEST_CHUNK = 1000
_REMEMBERED = 2**18  # chunks
_LONGEST_REMEMBERED = 32  # characters: longer chunks seldom come again
_MANY = 32  # chunks from which on threads help
_BYTES = 256
# Pre-tokenizers: single digits and words with their leading space, as bytes; and a text as a whole, as bytes.
_CUT_PIECES = pre_tokenizers.Sequence(
    [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
)
_CUT_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
# What a tokenizer may be made of: what attnlab writes, and simple normalizers. Other parts can multiply a text without end.
_TYPES = {"ByteLevel", "Digits", "Fuse", "Lowercase", "NFC", "NFKC", "Sequence", "Split", "WhitespaceSplit"}
_MODELS = (models.BPE, models.WordLevel)
_ANY_CHARACTER = {"Regex": r"[\s\S]"}


class Tokenizer:
    """Encodes and decodes text; stored as tokenizer.json.

    `pad` pads, `stop` ends a text, `start` begins one (None if texts begin with their first token), `unknown` replaces what
    the vocabulary lacks (None if it lacks nothing), and `space` is put before a text when encoding.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend = backend
        self.kind: Kind = _kind(backend)
        numbers: dict[str, int] = backend.get_vocab()
        parts = (backend.normalizer, backend.pre_tokenizer, backend.decoder, backend.post_processor)
        foreign = any(_is_foreign(json.loads(part.__getstate__())) for part in parts if part is not None)
        foreign |= bool(backend.truncation or backend.padding or getattr(backend.model, "dropout", None))
        if foreign or not isinstance(backend.model, _MODELS):
            raise CheckpointError("this tokenizer has a part that attnlab does not read: it reads its own and GPT-2's")
        if max(numbers.values()) >= len(numbers):
            raise CheckpointError("this tokenizer has ids beyond its vocabulary: number its symbols without gaps")
        self.pad: int = numbers[FILL if self.words else PAD]
        self.stop: int = numbers[STOP if self.words else PAD]
        self.start: int | None = numbers[START] if self.words else None
        self.unknown: int | None = {"char": numbers.get(MASK), "word": numbers.get(UNKNOWN)}.get(self.kind)
        self._mask: int | None = None if self.words else numbers[MASK]
        self._numbers = numbers if self.words else {}
        self._known: dict[str, bytes] = {}  # the stored ids of chunks encoded before
        # Tokenizers made elsewhere do not add a space before the text.
        self.space = " " if self.kind == "bpe" and _cuts_like(backend, _CUT_PIECES) else ""

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

    def encode(self, text: str, *, spaces: bool = False) -> list[int]:
        """Encode a text; pieces trained here get a leading space, so that the first is encoded like any other.

        With `spaces`, words are what stands between spaces, with their punctuation; other tokenizers ignore it.
        """
        if self.words:
            numbers, unknown = self._numbers, self._numbers[UNKNOWN]
            return [numbers.get(word, unknown) for word in _no_symbols(text.split() if spaces else split_words(text))]
        text = text.translate(_SPECIAL)
        if self.kind == "bpe" and not self.space:
            return list(self.backend.encode(text).ids)
        ids: list[int] = self._encode_marked(self.space + text if text else text).tolist()
        return ids

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The type of stored ids."""
        return np.dtype(np.uint16 if self.size <= 2**16 else np.uint32)

    def encode_running(self, texts: Iterable[str]) -> Iterator[Ids]:
        """Encode running text, in which `□` stands before every document, from blocks that may begin and end anywhere."""
        rest = ""
        for text in texts:
            text = rest + (text.replace(PAD, PAD + self.space) if self.space else text)
            cut = _last_cut(text) if self.kind == "bpe" else len(text)
            text, rest = text[:cut], text[cut:]
            yield self._encode_marked(text)
        yield self._encode_marked(rest)

    def _encode_marked(self, text: str) -> Ids:
        """Encode a text in which `□` stands before documents, if anywhere."""
        if self.kind == "char":
            return self._table[np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)]
        if self.kind == "byte":
            marked = text.encode().replace(PAD.encode(), b"\xff")  # a byte that UTF-8 does not use
            return self._table[np.frombuffer(marked, dtype=np.uint8)]
        chunks: list[str] = _CHUNK.findall(text)
        if len(text) > _LONGEST_CHUNK and len(max(chunks, key=len)) > _LONGEST_CHUNK:
            # Long chunks are cut as `split_long_text` cuts them.
            chunks = [
                chunk[at : at + _LONGEST_CHUNK] for chunk in chunks for at in range(0, len(chunk), _LONGEST_CHUNK)
            ]
        known = self._known
        missing = set(chunks).difference(known)
        if missing:
            if len(known) + len(missing) > _REMEMBERED:
                known.clear()
                missing = set(chunks)
            missing.discard(PAD)
            known[PAD] = np.array([self.pad], dtype=self.dtype).tobytes()
            new, backend = list(missing), self.backend
            coded = backend.encode_batch_fast(new) if len(new) >= _MANY else map(backend.encode, new)
            known.update(
                (chunk, np.array(code.ids, self.dtype).tobytes()) for chunk, code in zip(new, coded, strict=True)
            )
        coded_text = b"".join(map(known.__getitem__, chunks))
        for chunk in missing:
            if len(chunk) > _LONGEST_REMEMBERED:
                del known[chunk]
        return np.frombuffer(coded_text, dtype=self.dtype)

    @cached_property
    def _table(self) -> Ids:
        """The id of every character or byte."""
        numbers: dict[str, int] = self.backend.get_vocab()
        if self.kind == "byte":
            return np.arange(2, _BYTES + 2, dtype=self.dtype) % (_BYTES + 1)  # 0xff is `□`
        table = np.full(sys.maxunicode + 1, self.mask, dtype=self.dtype)
        for character, number in numbers.items():
            if len(character) == 1:
                table[ord(character)] = number
        return table

    def opening(self, text: str, *, spaces: bool = False) -> list[int]:
        """Encode the beginning of a text, after the start symbol if there is one."""
        ids = self.encode(text, spaces=spaces)
        return ids if self.start is None else [self.start, *ids]

    def sentence(self, text: str, longest: int, *, spaces: bool = False) -> list[int]:
        """Encode a whole text from its start symbol to its stop symbol, truncated to `longest` tokens."""
        return [*self.opening(text, spaces=spaces), self.stop][:longest]

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids; special symbols are shown."""
        if self.words:
            return " ".join(map(self.piece, ids))
        symbols = {self.pad: PAD, self.mask: MASK}
        text = ""
        for special, run in groupby(ids, key=symbols.__contains__):
            if special:
                text += "".join(map(symbols.__getitem__, run))
            else:
                text += self.backend.decode(list(run), skip_special_tokens=False).removeprefix(self.space)
        return text

    def piece(self, token: int) -> str:
        """Return the text of one symbol, including its space."""
        return str(self.backend.decode([token], skip_special_tokens=False))

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read tokenizer.json."""
        try:
            content = read_bytes(path)
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
        if kind == "byte":
            return cls(_bytes(vocab_size))
        plain = (text.translate(_SPECIAL) for text in texts)
        return cls(_characters(plain, vocab_size) if kind == "char" else _pieces(plain, vocab_size))


def _is_foreign(part: dict[str, Any]) -> bool:
    """Whether a part of a tokenizer, or one inside it, is of a type or pattern that attnlab does not read."""
    inside = [inner for value in part.values() if isinstance(value, list) for inner in value]
    known = part.get("type") in _TYPES and part.get("pattern", _ANY_CHARACTER) == _ANY_CHARACTER
    return not known or any(map(_is_foreign, inside))


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
    if isinstance(backend.model, models.WordLevel):
        return "char"
    return "byte" if _cuts_like(backend, _CUT_BYTES) else "bpe"


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
    characters = {"\n"}  # the corpus contains line ends too
    for text in texts:
        characters.update(text)
    symbols = [PAD, MASK, *sorted(characters)]
    if 0 < vocab_size < len(symbols):
        raise ConfigError(
            f"the corpus needs {len(symbols)} symbols, {MASK} and {PAD} included, and model.vocab_size is {vocab_size}:"
            f" set --model.vocab_size {len(symbols)}, or --tokenizer.kind bpe"
        )
    return character_backend(symbols)


def character_backend(symbols: Sequence[str]) -> tokenizers.Tokenizer:
    """A vocabulary of characters, `□` and `⁇` in this order."""
    vocabulary = {symbol: number for number, symbol in enumerate(symbols)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=MASK))
    backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(_ANY_CHARACTER["Regex"]), "isolated")
    backend.decoder = decoders.Fuse()
    return backend


def _cuts_like(backend: tokenizers.Tokenizer, ours: pre_tokenizers.PreTokenizer) -> bool:
    """Whether a tokenizer pre-tokenizes like one made by attnlab."""
    return backend.pre_tokenizer is not None and backend.pre_tokenizer.__getstate__() == ours.__getstate__()


def _last_cut(text: str) -> int:
    """The last position at which a text can be cut without a change of its pieces."""
    space = text.rfind(" ")
    while space > 0 and text[space - 1].isspace():
        space = text.rfind(" ", 0, space)
    last = max(space, text.rfind(PAD) + 1, 0)
    return last + (len(text) - last) // _LONGEST_CHUNK * _LONGEST_CHUNK


def split_long_text(text: str) -> list[str]:
    """Split a text before spaces into parts of at most 1,000 characters, which does not change its pieces.

    A word is cut only if there is no space: training time grows with the square of a word's length.
    """
    return [text] if len(text) <= 1000 else _PART.findall(text)


def _bytes(vocab_size: int) -> tokenizers.Tokenizer:
    """The two symbols, then the bytes in order."""
    smallest = _BYTES + 2
    if 0 < vocab_size < smallest:
        raise ConfigError(f"bytes need model.vocab_size of at least {smallest}, or 0, not {vocab_size}")
    # The alphabet of ByteLevel: printable bytes stand for themselves, the others for what follows U+00FF, in order.
    alphabet, others = pre_tokenizers.ByteLevel.alphabet(), iter(range(_BYTES, 2 * _BYTES))
    symbols = [chr(byte) if chr(byte) in alphabet else chr(next(others)) for byte in range(_BYTES)]
    vocabulary = {symbol: number for number, symbol in enumerate([PAD, MASK, *symbols])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.add_special_tokens([PAD, MASK])
    backend.pre_tokenizer = _CUT_BYTES
    backend.decoder = decoders.ByteLevel()
    return backend


def _pieces(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    smallest = _BYTES + 2
    if vocab_size < smallest:
        raise ConfigError(f"byte-pair pieces need model.vocab_size of at least {smallest}, not {vocab_size}")
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = _CUT_PIECES
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, MASK],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator((part for text in texts for part in split_long_text(" " + text)), trainer)
    return backend


# Words: English text split into words with separate punctuation, as in news corpora, and into sentences.
#
#     split_words('"I don\'t," said Mr. Lee.')   ->   " I don 't , " said Mr. Lee .
#
# The conventions are those of the statistical translation tools that such corpora come from: case is unchanged, `'s` and `'t`
# are separate, hyphens join, a full stop belongs to an abbreviation or is separate. A line that is already split, as every
# line of such a corpus is, stays as it is.

_SEPARATE = frozenset({'"', "'", ".", ",", ";", ":", "?", "!", "'s", "'t", "'re", "'ve", "'ll", "'m", "'d"})

# A full stop after these is part of them and does not end a sentence.
_TITLES = """
Adm Brig Bros Capt Cmdr Col Corp Cpl Dr Drs Ft Gen Gov Hon Lt Maj Messrs Mme Mr Mrs Ms Msgr Ph Pfc Pres Prof Pvt Rep Reps Rev
Sen Sens Sgt Sr St Ste Supt approx cf ed eg esp ie vs
"""
_ABBREVIATIONS = frozenset(_TITLES.split())
_BEFORE_NUMBERS = frozenset(("Fig", "No", "Nos", "Sec", "Vol", "fig", "no", "nos", "p", "pp", "sec", "vol"))

_TYPOGRAPHY = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "—": " -- ", "…": " ... ", "−": "-"})

_TOKEN = re.compile(
    r"""
      (?P<tail> (?<=[^\W_]) ' [^\W\d_]\w* )                         # 's, 't, O 'Brien
    | (?P<run>  \.{2,} | -{2,} | <[A-Za-z]+> )                      # an ellipsis, a dash, <unk>
    | (?P<word> (?: (?<!\S) [.-] )?                                 # .com, -5
                \w+ (?: (?: \.?- | \. | (?<=\d),(?=\d) ) \w+ )*  # U.S, U.S.-led, well-known, 1,234.5
                (?: - (?! [-\w] ) )?                                # self-
      )
      (?P<stop> (?: (?<=\w) \. (?!\.) )? )
    | \S
    """,
    re.VERBOSE,
)

_SENTENCE_END = re.compile(r"""[.!?]+["')\]]*(?=\s+["'(\[]*[A-Z0-9])""")


def _is_spaced(words: list[str]) -> bool:
    """Whether a text is already split: more punctuation marks and `'s` are separate than attached."""
    separate = sum(word in _SEPARATE for word in words)
    attached = sum(word[-1] in ",;!?" and len(word) > 1 for word in words)
    return separate > attached


def split_words(text: str) -> list[str]:
    """Return the words and punctuation marks of a text in order."""
    words = text.split()
    if _is_spaced(words):
        return words
    text = text.translate(_TYPOGRAPHY)
    pieces: list[str] = []
    for match in _TOKEN.finditer(text):
        if match["stop"] and not _is_abbreviation(match["word"], text[match.end() :]):
            pieces += [match["word"], "."]
        else:
            pieces.append(match.group())
    return pieces


def _is_abbreviation(word: str, rest: str) -> bool:
    """Whether the full stop after a word is part of it, given what follows."""
    if "." in word and any(letter.isalpha() for letter in word):  # U.S., p.m., e.g.
        return True
    if word in _ABBREVIATIONS or (len(word) == 1 and word.isupper() and word != "I"):
        return True
    continues = re.match(r"\s+([a-z]|\d)", rest)
    return continues is not None and (continues[1].isalpha() or word in _BEFORE_NUMBERS)


@dataclass(frozen=True)
class LengthBar:
    """A bar of the histogram of words per sentence: sentences of `least` to `most` words."""

    least: int
    most: int
    sentences: int


def word_lengths(lines: Iterable[str], width: int = 5) -> tuple[LengthBar, ...]:
    """The bars of a histogram of the words per sentence, each `width` words wide."""
    counts = Counter((len(split_words(line)) - 1) // width for line in lines)
    places = range(max(counts, default=-1) + 1)
    return tuple(LengthBar(place * width + 1, place * width + width, counts[place]) for place in places)


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a paragraph; a full stop that is part of a word ends a sentence only at the very end."""
    sentences, begin = [], 0
    for match in _SENTENCE_END.finditer(text):
        word = text[begin : match.start()].rsplit(None, 1)[-1:]
        if match.group() == "." and word and _is_abbreviation(word[0].lstrip("\"'(["), text[match.end() :]):
            continue
        sentences.append(text[begin : match.end()].strip())
        begin = match.end()
    sentences.append(text[begin:].strip())
    return [sentence for sentence in sentences if sentence]
