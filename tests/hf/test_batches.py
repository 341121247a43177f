"""A batch explained: every number against a count by hand."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from attnlab.corpora.labelled import Tables
from attnlab.errors import UserError
from attnlab.hf import FineTuning
from attnlab.hf.batches import Padding, batch_document, compare_batching, count_positions, explain_batch
from attnlab.hf.loading import load_tokenizer
from attnlab.report.screen import show_all


def test_padding_by_hand() -> None:
    assert count_positions([2, 9, 4, 3, 5], [0, 1, 2, 3, 4], 2) == 2 * 9 + 2 * 4 + 5
    assert count_positions([2, 9, 4, 3, 5], [1, 4, 2, 3, 0], 2) == 2 * 9 + 2 * 4 + 2
    padding = compare_batching([2, 9, 4, 3, 5], 6, FineTuning(batch_size=5, max_length=6))
    kept = 2 + 6 + 4 + 3 + 5
    assert padding["grouped"] == padding["random"] == Padding(30, 30 - kept)
    assert padding["random"].share == (30 - kept) / 30
    assert padding["fixed"].positions == 5 * 6


def test_the_first_batch(roberta: Path, tables: Tables) -> None:
    explained = explain_batch(str(roberta), tables, FineTuning(batch_size=8, max_length=10))
    tokenizer = load_tokenizer(str(roberta))
    lengths = [len(ids) for ids in tokenizer(tables.train.texts)["input_ids"]]
    first, limit = lengths[:8], 10
    assert max(first) > limit > min(lengths), "something must be truncated, and something padded"
    assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in explained.tensors] == [
        ("input_ids", "int64", (8, 10)),
        ("attention_mask", "int64", (8, 10)),
        ("labels", "int64", (8,)),
    ]
    kept = sum(min(length, limit) for length in first)
    batch, table = explained.batch, explained.table
    assert (batch.tokens, explained.padding) == (kept, Padding(80, 80 - kept))
    assert batch.truncated == sum(length > limit for length in first)
    assert batch.tokens_cut == sum(max(0, length - limit) for length in first)
    assert batch.longest == max(first)
    assert (table.texts, table.tokens) == (160, sum(min(length, limit) for length in lengths))
    assert table.truncated == sum(length > limit for length in lengths)
    assert explained.batching["fixed"].positions == 160 * limit


def test_one_text_piece_by_piece(roberta: Path, tables: Tables) -> None:
    explained = explain_batch(str(roberta), tables, FineTuning(batch_size=32))
    text, width = explained.text, explained.tensors[0].shape[1]
    tokenizer = load_tokenizer(str(roberta))
    first = tokenizer(tables.train.texts[:32])["input_ids"]
    shortest = min(range(32), key=lambda place: len(first[place]))
    assert text.text == tables.train.texts[shortest]
    assert text.line == f"train.tsv:{shortest + 1}"
    ids = [piece.id for piece in text.pieces]
    assert ids == first[shortest] + [tokenizer.pad_token_id] * (width - len(first[shortest]))
    assert [piece.mask for piece in text.pieces] == [int(number != tokenizer.pad_token_id) for number in ids]
    assert (text.pieces[0].piece, text.pieces[-1].piece) == ("<s>", "<pad>")
    assert explained.tokenizer.special_tokens["<pad>"] == 1
    assert (explained.tokenizer.limit, explained.tokenizer.max_length) == (24, 512)


def test_shown_on_the_screen(roberta: Path, tables: Tables) -> None:
    stream = io.StringIO()
    explained = explain_batch(str(roberta), tables, FineTuning(batch_size=8, max_length=10))
    show_all(batch_document(explained), Console(file=stream, width=200))
    shown = stream.getvalue()
    assert "Texts are truncated at 10 tokens, and padded to the longest text of the batch, on the right." in shown
    assert f"8 × 10 = 80 positions: {explained.batch.tokens} real tokens" in shown
    assert "grouped" in shown
    assert f"{explained.batching['fixed'].positions:,}" in shown


def test_the_baseline_has_no_batches(tables: Tables) -> None:
    with pytest.raises(UserError, match="bag-of-words has no tokenizer"):
        explain_batch("bag-of-words", tables, FineTuning())
