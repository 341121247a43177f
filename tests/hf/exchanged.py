"""Small models with weights that matter, and texts that are hard to read."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch

from attnlab.config import resolve
from attnlab.lm.model import LanguageModel, model_files
from attnlab.lm.tokenizers import Kind, Tokenizer
from attnlab.store.folders import write_folder

TEXTS = ["Hank Aaron was born in Mobile, Alabama.", "Where was he? In 1934, he said!", "don't stop, Mr. Lee; a b c"] * 3
ODD = (
    "Hank Aaron",
    "  naïve 東京 🙂 a\u0301 , 12345 ",
    "what ⁇ and □ are; ⁇",
    "\n\t two\r\n lines  ",
    "",
    " ",
    "<START> and <UNK> , <PAD> .",
    "don't stop, Mr. Lee.",
)
SIZES = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 32, "vocab_size": 300}


def tiny_model(preset: str = "small", **model: Any) -> LanguageModel:
    """A model whose every weight is drawn anew, so that none is zero."""
    made = LanguageModel(resolve(preset, given={"model": {**SIZES, **model}}).model).eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made


@cache
def tiny_tokenizer(kind: Kind = "bpe") -> Tokenizer:
    return Tokenizer.train(kind, TEXTS, 300, 1)


def stored(folder: Path, model: LanguageModel, kind: Kind = "bpe") -> Path:
    """A model folder."""
    write_folder(folder, "model", model_files(model, tiny_tokenizer(kind)))
    return folder


def ids_of(rows: int = 2, tokens: int = 20) -> torch.Tensor:
    return torch.randint(5, 260, (rows, tokens))
