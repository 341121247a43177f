"""A batch explained: every number against a count by hand."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from attnlab.corpora.labelled import Tables
from attnlab.errors import UserError
from attnlab.hf import FineTuning
from attnlab.hf.documents import Lengths, batch_document, positions_in_order
from attnlab.hf.loading import load_tokenizer
from attnlab.report.screen import show_all


def test_positions_by_hand() -> None:
    assert positions_in_order([2, 9, 4, 3, 5], [0, 1, 2, 3, 4], 2) == 2 * 9 + 2 * 4 + 5
    assert positions_in_order([2, 9, 4, 3, 5], [1, 4, 2, 3, 0], 2) == 2 * 9 + 2 * 4 + 2
    positions = Lengths((2, 9, 4, 3, 5), 6).positions(FineTuning(batch_size=5, max_length=6))
    assert positions == {"grouped": 30, "random": 30, "fixed": 30}
    assert Lengths((2, 9, 4, 3, 5), 8).positions(FineTuning(batch_size=1))["random"] == 2 + 8 + 4 + 3 + 5


def test_the_first_batch(roberta: Path, tables: Tables) -> None:
    document = batch_document(str(roberta), tables, FineTuning(batch_size=8, max_length=10))
    tensors, _, batching = document.tables()
    tokenizer = load_tokenizer(str(roberta))
    lengths = [len(ids) for ids in tokenizer(tables.train.texts)["input_ids"]]
    first, limit = lengths[:8], 10
    assert max(first) > limit > min(lengths), "something must be truncated, and something padded"
    assert [(row.name.text, *(cell.text for cell in row.cells[:2])) for row in tensors.rows] == [
        ("input_ids", "int64", "8 × 10"),
        ("attention_mask", "int64", "8 × 10"),
        ("labels", "int64", "8"),
    ]
    stream = io.StringIO()
    show_all(document, Console(file=stream, width=200))
    shown = stream.getvalue()
    kept, cut = sum(min(length, limit) for length in first), [length - limit for length in first if length > limit]
    assert "Texts are truncated at 10 tokens, and padded to the longest text of the batch, on the right." in shown
    assert f"8 × 10 = 80 positions: {kept} real tokens and {80 - kept} of padding ({100 - kept / 0.8:.1f} %)" in shown
    assert f"{len(cut)} texts truncated, {sum(cut)} tokens lost, at most {max(cut)} of one text." in shown
    whole = sum(min(length, limit) for length in lengths)
    assert f"160 texts of {min(lengths)} to {max(lengths)} tokens" in shown
    assert f"{whole:,} together; {sum(length > limit for length in lengths)} texts truncated" in shown
    fixed = batching.rows[2]
    assert (fixed.name.text, fixed.cells[0].value, fixed.cells[1].value) == ("fixed", 1600, 1 - whole / 1600)


def test_one_text_piece_by_piece(roberta: Path, tables: Tables) -> None:
    document = batch_document(str(roberta), tables, FineTuning(batch_size=32))
    _, pieces, _ = document.tables()
    tokenizer = load_tokenizer(str(roberta))
    first = tokenizer(tables.train.texts[:32])["input_ids"]
    shortest = min(range(32), key=lambda place: len(first[place]))
    text = next(block for block in document.blocks() if tables.train.texts[shortest] in str(block))
    assert f"train.tsv:{shortest + 1}, label" in str(text)
    real = [row for row in pieces.rows if row.cells[1].value]
    assert [row.cells[0].value for row in real] == first[shortest]
    assert [(row.name.text, row.cells[0].value) for row in pieces.rows[len(real) :]] == [("<pad>", 1)] * 3
    assert real[0].name.text == "<s>"
    assert "<pad> = 1" in document.lead[1]
    assert "truncated at 24 tokens, since the model has no more positions, though max_length is 512" in document.lead[2]


def test_the_baseline_has_no_batches(tables: Tables) -> None:
    with pytest.raises(UserError, match="bag-of-words has no tokenizer"):
        batch_document("bag-of-words", tables, FineTuning())
