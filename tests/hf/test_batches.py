"""A batch explained: every number against a count by hand."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from attnlab.corpora.labelled import Tables
from attnlab.errors import UserError
from attnlab.hf import FineTuning
from attnlab.hf.fine_tuning import compare_batching, count_padded, explain_batch
from attnlab.hf.loading import load_tokenizer
from attnlab.report.inspection import show_batch


def test_padding_by_hand() -> None:
    assert count_padded([2, 9, 4, 3, 5], [0, 1, 2, 3, 4], 2) == 2 * 9 + 2 * 4 + 5
    assert count_padded([2, 9, 4, 3, 5], [1, 4, 2, 3, 0], 2) == 2 * 9 + 2 * 4 + 2
    found = compare_batching([2, 9, 4, 3, 5], 6, FineTuning(batch_size=5, max_length=6))
    kept = 2 + 6 + 4 + 3 + 5
    assert found["grouped"] == found["random"] == {"places": 30, "padding": 30 - kept, "share": (30 - kept) / 30}
    assert found["fixed"]["places"] == 5 * 6


def test_the_first_batch(roberta: Path, tables: Tables) -> None:
    settings = FineTuning(batch_size=8, max_length=10)
    found = explain_batch(str(roberta), tables, settings)
    tokenizer = load_tokenizer(str(roberta))
    whole = [len(ids) for ids in tokenizer(tables.train.texts)["input_ids"]]
    first, limit = whole[:8], 10
    assert max(first) > limit > min(whole), "something must be cut, and something padded"
    assert [(one["name"], one["dtype"], one["shape"]) for one in found["tensors"]] == [
        ("input_ids", "int64", [8, 10]),
        ("attention_mask", "int64", [8, 10]),
        ("labels", "int64", [8]),
    ]
    kept = sum(min(length, limit) for length in first)
    batch = found["batch"]
    assert (batch["tokens"], batch["padding"], batch["width"]) == (kept, 80 - kept, 10)
    assert batch["truncated"] == sum(length > limit for length in first)
    assert batch["tokens_cut"] == sum(max(0, length - limit) for length in first)
    assert batch["longest"] == max(first)
    table = found["table"]
    assert (table["texts"], table["tokens"]) == (160, sum(min(length, limit) for length in whole))
    assert table["truncated"] == sum(length > limit for length in whole)
    assert table["batching"]["fixed"]["places"] == 160 * limit


def test_one_text_piece_by_piece(roberta: Path, tables: Tables) -> None:
    found = explain_batch(str(roberta), tables, FineTuning(batch_size=32))
    one = found["text"]
    tokenizer = load_tokenizer(str(roberta))
    first = tokenizer(tables.train.texts[:32])["input_ids"]
    shortest = min(range(32), key=lambda place: len(first[place]))
    assert one["text"] == tables.train.texts[shortest]
    assert one["line"] == f"train.tsv:{shortest + 1}"
    ids = [piece["id"] for piece in one["pieces"]]
    assert ids == first[shortest] + [tokenizer.pad_token_id] * (found["batch"]["width"] - len(first[shortest]))
    assert [piece["mask"] for piece in one["pieces"]] == [int(number != tokenizer.pad_token_id) for number in ids]
    assert (one["pieces"][0]["piece"], one["pieces"][-1]["piece"]) == ("<s>", "<pad>")
    assert found["tokenizer"]["special_tokens"]["pad_token"] == {"token": "<pad>", "id": 1}
    assert (found["tokenizer"]["limit"], found["tokenizer"]["max_length"]) == (24, 512)


def test_told_on_the_screen(roberta: Path, tables: Tables) -> None:
    stream = io.StringIO()
    found = explain_batch(str(roberta), tables, FineTuning(batch_size=8, max_length=10))
    show_batch(found, Console(file=stream, width=200))
    shown = stream.getvalue()
    assert "texts are cut at 10 tokens (truncation), and padded to the longest text of the batch, on the right" in shown
    assert f"8 × 10 = 80 places: {found['batch']['tokens']} real tokens" in shown
    assert "grouped" in shown
    assert f"{found['table']['batching']['fixed']['places']:,}" in shown


def test_the_baseline_has_no_batches(tables: Tables) -> None:
    with pytest.raises(UserError, match="bag-of-words has no tokenizer"):
        explain_batch("bag-of-words", tables, FineTuning())
