"""A batch explained: every tensor with its type, shape and meaning, one text piece by piece, and what padding costs.

The batch is made by the collator of training, from the first lines of the training table in their order. Nothing is trained,
and no weights are read. Imports transformers and datasets, and is therefore imported late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, trainer_pt_utils

from attnlab.corpora.labelled import Tables
from attnlab.errors import UserError
from attnlab.hf.fine_tuning import collator, tokenized
from attnlab.hf.loading import load_tokenizer, longest_text_of, quietly
from attnlab.hf.settings import BAG_OF_WORDS, FineTuning
from attnlab.report.document import Cell, Document, Row, Table, Text, section
from attnlab.report.parts import cell, columns, text_column
from attnlab.report.words import count, percent, plural

_MOST_PIECES, _MOST_PADDING = 24, 3  # of the text that is shown
_MEANINGS = {
    "input_ids": "the number of every piece in the tokenizer's vocabulary, padding on the {side} of short texts",
    "attention_mask": "1 for a piece of the text, 0 for padding, which no attention may see",
    "token_type_ids": "which of two texts a piece belongs to; with one text all are 0",
    "labels": "the number of each text's label: what the model learns to predict",
}
_BATCHING = {
    "grouped": "texts of similar length together, each batch as wide as its longest",
    "random": "texts in random order, each batch as wide as its longest",
    "fixed": "every batch as wide as the limit",
}


@dataclass(frozen=True)
class Lengths:
    """The lengths of texts in tokens, special ones included, before they are truncated at a limit."""

    lengths: tuple[int, ...]
    limit: int

    @property
    def kept(self) -> list[int]:
        """The lengths after truncation."""
        return [min(length, self.limit) for length in self.lengths]

    def truncation(self) -> str:
        """How much is truncated, in words."""
        cut = [length - self.limit for length in self.lengths if length > self.limit]
        if not cut:
            return "no text was truncated"
        lost = f"{plural(sum(cut), 'token')} lost, at most {count(max(cut))} of one text"
        return f"{plural(len(cut), 'text')} truncated, {lost}"


def explain_batch(model: str, tables: Tables, settings: FineTuning) -> Document:
    """Explain the first batch of the training table, and count padding and truncation in the whole table."""
    if model == BAG_OF_WORDS:
        raise UserError(f"{BAG_OF_WORDS} has no tokenizer and no batches: explain those of an encoder, with --model")
    tokenizer = load_tokenizer(model)
    limit = min(settings.max_length, longest_text_of(model, tokenizer))
    first = range(min(settings.batch_size, len(tables.train.rows)))
    with quietly():
        whole = Lengths(tuple(len(ids) for ids in tokenizer(tables.train.texts)["input_ids"]), limit)
        rows = tokenized(tables.train, tables.ids(tables.train), tokenizer, limit).remove_columns("row")
        batch: Any = collator(tokenizer, settings, limit)([rows[place] for place in first])
    ordered, source = sorted(whole.lengths), tables.train.source
    median = f"median {ordered[len(ordered) // 2]}"
    return Document(
        "batch",
        f"The first batch of {source}, as {model} gets it",
        _tokenizer_sentences(tokenizer, limit, settings),
        [
            *section("Tensors", _tensor_table(batch, tokenizer.padding_side), _padding_text(batch, whole)),
            *section("The shortest text of the batch", *_shortest_text(tokenizer, tables, batch)),
            *section(
                f"The whole of {source}",
                Text(
                    [
                        f"{plural(len(ordered), 'text')} of {ordered[0]} to {plural(ordered[-1], 'token')} ({median}),"
                        f" {count(sum(whole.kept))} together; {whole.truncation()}."
                    ]
                ),
                _batching_table(whole, settings),
            ),
        ],
    )


def _tokenizer_sentences(tokenizer: PreTrainedTokenizerBase, limit: int, settings: FineTuning) -> list[str]:
    special = zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True)
    listed = ", ".join(f"{token} = {number}" for token, number in special)
    cut = f"truncated at {limit} tokens"
    if limit < settings.max_length:
        cut += f", since the model has no more positions, though max_length is {settings.max_length}"
    padding = "to the limit" if settings.batching == "fixed" else "to the longest text of the batch"
    return [
        f"Tokenizer: {type(tokenizer).__name__}, {count(len(tokenizer))} pieces.",
        f"Special tokens: {listed}; {tokenizer.num_special_tokens_to_add()} are put around every text.",
        f"Texts are {cut}, and padded {padding}, on the {tokenizer.padding_side}.",
    ]


def _tensor_table(batch: Any, side: str) -> Table:
    known = list(_MEANINGS)
    order = sorted(batch, key=lambda name: known.index(name) if name in known else len(known) - 2)  # labels last
    rows = []
    for name in order:
        kind, shape = str(batch[name].dtype).removeprefix("torch."), " × ".join(map(str, batch[name].shape))
        meaning = _MEANINGS.get(name, "a further input of this model").format(side=side)
        rows.append(Row(Cell(name), [Cell(kind), Cell(shape), Cell(meaning)]))
    return Table("Tensors", "", columns("Tensor", *map(text_column, ("Type", "Shape", "Meaning"))), rows)


def _padding_text(batch: Any, whole: Lengths) -> Text:
    texts, width = batch["input_ids"].shape
    lengths = Lengths(whole.lengths[:texts], whole.limit)
    positions, tokens = texts * width, sum(lengths.kept)
    padding = f"{count(positions - tokens)} of padding ({percent(1 - tokens / positions)})"
    longest = texts * whole.limit
    return Text(
        [
            f"{texts} × {width} = {plural(positions, 'position')}: {count(tokens)} real tokens and {padding};"
            f" {lengths.truncation()}.",
            f"Padded to {whole.limit} it would have {plural(longest, 'position')}, {longest / positions:.1f} times as many.",
        ]
    )


def _shortest_text(tokenizer: PreTrainedTokenizerBase, tables: Tables, batch: Any) -> tuple[Text, Table]:
    """The shortest text of the batch, piece by piece: if there is padding, it has some."""
    masks = batch["attention_mask"].tolist()
    place = min(range(len(masks)), key=lambda number: sum(masks[number]))
    row, ids = tables.train.rows[place], batch["input_ids"][place].tolist()
    pieces = list(zip(tokenizer.convert_ids_to_tokens(ids), ids, masks[place], strict=True))
    real, padding = [piece for piece in pieces if piece[2]], [piece for piece in pieces if not piece[2]]
    shown = real[:_MOST_PIECES] + padding[:_MOST_PADDING]
    rows = [Row(Cell(piece), [Cell(str(number), number), Cell(str(mask), mask)]) for piece, number, mask in shown]
    caption = f"{len(real)} pieces and {len(padding)} of padding; {len(shown)} of them:"
    label = f"label {row.label} (number {int(batch['labels'][place])})"
    table = Table("Pieces", caption, columns("Piece", "Id", "Mask"), rows)
    return Text([f"{tables.train.place(place)}, {label}: {row.text}"]), table


def _batching_table(whole: Lengths, settings: FineTuning) -> Table:
    rows = []
    for name, positions in count_positions(whole, settings).items():
        share = 1 - sum(whole.kept) / positions
        rows.append(Row(Cell(name), [cell(positions, "count"), cell(share, "share"), Cell(_BATCHING[name])]))
    return Table("Batching", "", columns("Batching", "Positions per epoch", "Padding", text_column("Batches")), rows)


def count_positions(whole: Lengths, settings: FineTuning) -> dict[str, int]:
    """Count the positions of one epoch, padding included, for each way to make batches."""
    group: Any = trainer_pt_utils.get_length_grouped_indices  # without types
    kept = whole.kept

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(settings.seed)

    grouped = group(kept, settings.batch_size, generator=generator())
    shuffled = torch.randperm(len(kept), generator=generator()).tolist()
    return {
        "grouped": positions_in_order(kept, grouped, settings.batch_size),
        "random": positions_in_order(kept, shuffled, settings.batch_size),
        "fixed": whole.limit * len(kept),
    }


def positions_in_order(lengths: Sequence[int], order: Sequence[int], size: int) -> int:
    """Count the positions of all batches in this order, each as wide as its longest text."""
    batches = [order[begin : begin + size] for begin in range(0, len(order), size)]
    return sum(len(batch) * max(lengths[place] for place in batch) for batch in batches)
