"""From a table to what a loader hands to the model: datasets of token numbers, and how they become batches.

Imports transformers and datasets, and is therefore imported late. It must not know about training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase

from attnlab.corpora.labelled import LabelledTable
from attnlab.hf.settings import FineTuning


def tokenized(table: LabelledTable, ids: Sequence[int], tokenizer: PreTrainedTokenizerBase, limit: int) -> Any:
    """A table as a dataset of token numbers, cut at the limit, with the place of every text."""
    rows = datasets.Dataset.from_dict({"text": table.texts, "labels": list(ids), "row": list(range(len(table.rows)))})

    def encode(batch: dict[str, list[Any]]) -> dict[str, Any]:
        return dict(tokenizer(batch["text"], truncation=True, max_length=limit))

    return rows.map(encode, batched=True, remove_columns=["text"], new_fingerprint=table.sha256[:16])


def longest_first(rows: Any) -> Any:
    """The dataset in the order in which it is evaluated: little padding, and the largest batch first."""
    lengths = [len(one) for one in rows["input_ids"]]
    return rows.select(sorted(range(len(lengths)), key=lambda place: -lengths[place]))


def collator(tokenizer: PreTrainedTokenizerBase, settings: FineTuning, limit: int) -> DataCollatorWithPadding:
    """How texts become a batch: padded to the longest of them, or all to the limit."""
    if settings.batching == "fixed":
        return DataCollatorWithPadding(tokenizer, padding="max_length", max_length=limit)
    return DataCollatorWithPadding(tokenizer)
