"""Tokenizers both ways: attnlab's as files that AutoTokenizer reads with the same ids, and GPT-2's as one of attnlab's.

What attnlab does to a text before its tokenizer sees it is written into tokenizer.json: the special symbols are read as
question marks, pieces begin with a space. Words are cut by rules that tokenizer.json cannot say (english.py): they get a class
of their own, AttnlabWordTokenizer.

GPT-2 has neither □ nor ⁇, and no row may be added without changing what it says. Its end of text is □, what fills and ends; ⁇
takes the place of a byte that no text contains (0xFF and others never occur in UTF-8), so that every text keeps its ids.
"""

from __future__ import annotations

import json
from typing import Any

import tokenizers
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast

from attnlab.errors import UserError
from attnlab.folders import to_json
from attnlab.tokenizers import FILL, MASK, PAD, START, STOP, UNKNOWN, WORD_SYMBOLS, Tokenizer
from attnlab.word_split import split_words

KIND = "attnlab_kind"  # in tokenizer_config.json: what the tokenizer was in attnlab
NEVER = (*range(0xFF, 0xF4, -1), 0xC1, 0xC0)  # bytes that UTF-8 has no use for
PROBES = (
    "The quick brown fox, 12345 of them; don't!",
    "  two  spaces\tand\n\nlines ",
    "naïve Ærøskøbing 東京 🙂 a\u0301",
    "x",
)


class AttnlabWordTokenizer(PreTrainedTokenizerFast):
    """attnlab's tokenizer of words: text is cut by attnlab's rules of English before it is looked up."""

    def _encode_plus(  # type: ignore[override]
        self, text: Any, text_pair: Any = None, **settings: Any
    ) -> Any:
        return super()._encode_plus(_apart(text), text_pair if text_pair is None else _apart(text_pair), **settings)


def _apart(text: Any) -> Any:
    """A text, or several, with its words apart; special ones stand for nothing."""
    if isinstance(text, str):
        return " ".join(UNKNOWN if word in WORD_SYMBOLS else word for word in split_words(text))
    return [_apart(one) for one in text]


# Out


def tokenizer_files(tokenizer: Tokenizer, longest: int) -> dict[str, bytes]:
    """tokenizer.json and tokenizer_config.json."""
    stored = json.loads(tokenizer.backend.to_str())
    settings: dict[str, Any] = {
        "tokenizer_class": "AttnlabWordTokenizer" if tokenizer.words else "PreTrainedTokenizerFast",
        KIND: tokenizer.kind,
        "model_max_length": longest,
        "padding_side": "left",
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    if tokenizer.words:
        settings |= {"bos_token": START, "eos_token": STOP, "unk_token": UNKNOWN, "pad_token": FILL}
        stored["post_processor"] = _begins_with(START, tokenizer.start)
    else:
        settings |= {"eos_token": PAD, "pad_token": PAD, "mask_token": MASK}
        stored["normalizer"] = _reads_like_attnlab(tokenizer.space, stored["normalizer"])
        if tokenizer.characters:
            settings["unk_token"] = MASK
        if tokenizer.space:
            strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
            stored["decoder"] = {"type": "Sequence", "decoders": [stored["decoder"], strip]}
    return {"tokenizer.json": to_json(stored), "tokenizer_config.json": to_json(settings)}


def _reads_like_attnlab(space: str, further: dict[str, Any] | None) -> dict[str, Any]:
    """The normalizer that does to a text what attnlab's `encode` does, before the tokenizer's own."""
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": symbol}, "content": "?"} for symbol in (PAD, MASK)
    ]
    steps += [{"type": "Prepend", "prepend": space}] if space else []
    return {"type": "Sequence", "normalizers": steps + ([further] if further else [])}


def _begins_with(symbol: str, number: int | None) -> dict[str, Any]:
    """The post-processor that puts a symbol before a text, unless special tokens are declined."""
    text = [{"SpecialToken": {"id": symbol, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    both = [*text, {"Sequence": {"id": "B", "type_id": 0}}]
    special = {symbol: {"id": symbol, "ids": [number], "tokens": [symbol]}}
    return {"type": "TemplateProcessing", "single": text, "pair": both, "special_tokens": special}


# In


def from_transformers(theirs: Any, rows: int) -> Tokenizer:
    """attnlab's form of a tokenizer of transformers, for a model with so many rows; its ids stay."""
    backend = getattr(theirs, "backend_tokenizer", None)
    if backend is None:
        raise UserError(
            "this model's tokenizer is not a fast one, and attnlab reads tokenizer.json: save it with use_fast"
        )
    stored = json.loads(backend.to_str())
    kind = theirs.init_kwargs.get(KIND)
    if kind is not None:
        made = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(_restored(stored, kind))))
        for probe in (*PROBES, f"{PAD} and {MASK}"):
            if made.encode(probe) != theirs.encode(probe, add_special_tokens=False):
                raise UserError(
                    f"this folder's tokenizer reads {probe!r} otherwise than attnlab, which exported it: its tokenizer.json was"
                    " changed; export the model again"
                )
        return made
    if stored["model"]["type"] != "BPE" or "ByteLevel" not in json.dumps(stored["pre_tokenizer"]):
        raise UserError(
            f"this model's tokenizer is {stored['model']['type']} and not GPT-2's byte-level BPE, which is what attnlab reads"
        )
    stored["post_processor"] = stored["truncation"] = stored["padding"] = None
    _name(stored, PAD, theirs.eos_token, rows)
    _name(stored, MASK, None, rows)
    made = Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(stored)))
    for probe in PROBES:
        if made.encode(probe) != theirs.encode(probe, add_special_tokens=False):
            raise UserError(
                f"this model's tokenizer reads {probe!r} in a way that attnlab cannot hold: it is not GPT-2's"
            )
    return made


def _restored(stored: dict[str, Any], kind: str) -> dict[str, Any]:
    """What `tokenizer_files` added taken away again."""
    decoder, normalizer = stored["decoder"], None
    if kind != "word":
        steps = (stored["normalizer"] or {}).get("normalizers", [])
        further = [one for one in steps[2:] if one["type"] != "Prepend"]
        normalizer = further[0] if further else None
    if decoder is not None and decoder["type"] == "Sequence" and decoder["decoders"][-1]["type"] == "Strip":
        decoder = decoder["decoders"][0]
    added = stored["added_tokens"] if kind == "bpe" else []
    return {**stored, "normalizer": normalizer, "post_processor": None, "decoder": decoder, "added_tokens": added}


def _name(stored: dict[str, Any], symbol: str, like: str | None, rows: int) -> None:
    """Give one of attnlab's symbols a number: of the token it is `like`, of a byte that never occurs, or of an unused row."""
    vocabulary = stored["model"]["vocab"]
    added = {one["content"]: one for one in stored["added_tokens"]}
    if symbol in vocabulary or symbol in added:
        return
    old = like if like is not None and (like in added or like in vocabulary) else _unused(stored)
    if old is not None:
        number = added[old]["id"] if old in added else vocabulary[old]
        vocabulary.pop(old, None)
        stored["added_tokens"] = [one for one in stored["added_tokens"] if one["content"] != old]
    else:
        number = 1 + max([*vocabulary.values(), *(one["id"] for one in added.values())])
        if number >= rows:
            raise UserError(
                f"this GPT-2 has no token to spare for {symbol}: its tokenizer lacks the bytes that no text contains; train"
                " it with the whole byte-level alphabet, or give the model a row more"
            )
    vocabulary[symbol] = number
    special = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    stored["added_tokens"].append({"id": number, "content": symbol, **special})
    stored["added_tokens"].sort(key=lambda one: one["id"])


def _unused(stored: dict[str, Any]) -> str | None:
    """The token of a byte that no text contains, and that no other piece is made of."""
    letters = byte_letters()
    pieces = stored["model"]["vocab"]
    for byte in NEVER:
        letter = letters[byte]
        if letter in pieces and not any(letter in piece and piece != letter for piece in pieces):
            return letter
    return None


def byte_letters() -> dict[int, str]:
    """The letter by which byte-level tokenizers write each byte: itself where it can be seen, else one from 256 on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in seen]
    letters = {byte: chr(byte) for byte in seen} | {byte: chr(256 + number) for number, byte in enumerate(rest)}
    assert set(letters.values()) == set(pre_tokenizers.ByteLevel.alphabet())
    return letters
