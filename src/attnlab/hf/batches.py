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

MOST_PIECES, MOST_PADDING = 24, 3  # of the text that is shown
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
class TokenizerFacts:
    """A tokenizer and its settings; `limit` is where texts are truncated."""

    kind: str
    pieces: int
    special_tokens: dict[str, int]  # with their ids
    added_to_a_text: int
    padding: str
    padding_side: str
    max_length: int
    limit: int


@dataclass(frozen=True)
class TensorFacts:
    """One tensor of a batch."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    meaning: str


@dataclass(frozen=True)
class Lengths:
    """The lengths of texts in tokens, special ones included: after truncation `tokens`, before it the others."""

    texts: int
    tokens: int
    shortest: int
    median: int
    longest: int
    truncated: int
    tokens_cut: int
    most_cut: int

    @classmethod
    def of(cls, lengths: Sequence[int], limit: int) -> Lengths:
        """Count texts that are truncated at a limit."""
        cut = [length - limit for length in lengths if length > limit]
        ordered = sorted(lengths)
        kept = sum(min(length, limit) for length in lengths)
        median = ordered[len(ordered) // 2]
        return cls(len(lengths), kept, ordered[0], median, ordered[-1], len(cut), sum(cut), max(cut, default=0))


@dataclass(frozen=True)
class Padding:
    """Positions computed for texts, and how many of them are padding."""

    positions: int
    padding: int

    @property
    def share(self) -> float:
        """The share of padding."""
        return self.padding / self.positions


@dataclass(frozen=True)
class Piece:
    """A piece of a text with its id; the mask is 0 for padding."""

    piece: str
    id: int
    mask: int


@dataclass(frozen=True)
class TextPieces:
    """A text of the batch, piece by piece."""

    line: str
    text: str
    label: str
    label_id: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class BatchExplanation:
    """The first batch, and what padding costs in the whole table for each way to make batches."""

    model: str
    source: str
    labels: tuple[str, ...]
    tokenizer: TokenizerFacts
    tensors: tuple[TensorFacts, ...]
    batch: Lengths
    padding: Padding
    text: TextPieces
    table: Lengths
    batching: dict[str, Padding]


def explain_batch(model: str, tables: Tables, settings: FineTuning) -> BatchExplanation:
    """Explain the first batch of the training table, and count padding and truncation in the whole table."""
    if model == BAG_OF_WORDS:
        raise UserError(f"{BAG_OF_WORDS} has no tokenizer and no batches: explain those of an encoder, with --model")
    tokenizer = load_tokenizer(model)
    limit = min(settings.max_length, longest_text_of(model, tokenizer))
    first = range(min(settings.batch_size, len(tables.train.rows)))
    with quietly():
        # With special tokens, before truncation.
        lengths = [len(ids) for ids in tokenizer(tables.train.texts)["input_ids"]]
        rows = tokenized(tables.train, tables.ids(tables.train), tokenizer, limit).remove_columns("row")
        batch: Any = collator(tokenizer, settings, limit)([rows[place] for place in first])
    known = list(_MEANINGS)
    order = sorted(batch, key=lambda name: known.index(name) if name in known else len(known) - 2)  # labels last
    in_batch = Lengths.of(lengths[: settings.batch_size], limit)
    positions = batch["input_ids"].numel()
    return BatchExplanation(
        model=model,
        source=tables.train.source,
        labels=tables.labels,
        tokenizer=_tokenizer_facts(tokenizer, limit, settings),
        tensors=tuple(
            TensorFacts(
                name,
                str(batch[name].dtype).removeprefix("torch."),
                tuple(batch[name].shape),
                _MEANINGS.get(name, "a further input of this model").format(side=tokenizer.padding_side),
            )
            for name in order
        ),
        batch=in_batch,
        padding=Padding(positions, positions - in_batch.tokens),
        text=_shortest_text(tokenizer, tables, batch),
        table=Lengths.of(lengths, limit),
        batching=compare_batching(lengths, limit, settings),
    )


def _tokenizer_facts(tokenizer: PreTrainedTokenizerBase, limit: int, settings: FineTuning) -> TokenizerFacts:
    return TokenizerFacts(
        kind=type(tokenizer).__name__,
        pieces=len(tokenizer),
        special_tokens=dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True)),
        added_to_a_text=tokenizer.num_special_tokens_to_add(),
        padding="to the limit" if settings.batching == "fixed" else "to the longest text of the batch",
        padding_side=tokenizer.padding_side,
        max_length=settings.max_length,
        limit=limit,
    )


def compare_batching(lengths: Sequence[int], limit: int, settings: FineTuning) -> dict[str, Padding]:
    """Count the positions of one epoch, and the padding among them, for each way to make batches."""
    group: Any = trainer_pt_utils.get_length_grouped_indices  # without types
    kept = [min(length, limit) for length in lengths]

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(settings.seed)

    orders = {
        "grouped": group(kept, settings.batch_size, generator=generator()),
        "random": torch.randperm(len(kept), generator=generator()).tolist(),
    }
    positions = {name: count_positions(kept, order, settings.batch_size) for name, order in orders.items()}
    positions["fixed"] = limit * len(kept)
    return {name: Padding(total, total - sum(kept)) for name, total in positions.items()}


def count_positions(lengths: Sequence[int], order: Sequence[int], size: int) -> int:
    """Count the positions of all batches in this order, each as wide as its longest text."""
    batches = [order[begin : begin + size] for begin in range(0, len(order), size)]
    return sum(len(batch) * max(lengths[place] for place in batch) for batch in batches)


def _shortest_text(tokenizer: PreTrainedTokenizerBase, tables: Tables, batch: Any) -> TextPieces:
    """The shortest text of the batch: if there is padding, it has some."""
    masks = batch["attention_mask"].tolist()
    place = min(range(len(masks)), key=lambda number: sum(masks[number]))
    ids, row = batch["input_ids"][place].tolist(), tables.train.rows[place]
    pieces = zip(tokenizer.convert_ids_to_tokens(ids), ids, masks[place], strict=True)
    return TextPieces(
        tables.train.place(place),
        row.text,
        row.label,
        int(batch["labels"][place]),
        tuple(Piece(piece, number, mask) for piece, number, mask in pieces),
    )


# What is shown


def batch_document(explained: BatchExplanation) -> Document:
    """The explanation of a batch as a Document."""
    text, table = explained.text, explained.table
    return Document(
        "batch",
        f"The first batch of {explained.source}, as {explained.model} gets it",
        _tokenizer_sentences(explained),
        [
            *section("Tensors", _tensor_table(explained), Text(_batch_sentences(explained))),
            *section(
                "The shortest text of the batch",
                Text([f"{text.line}, label {text.label} (number {text.label_id}): {text.text}"]),
                _piece_table(text),
            ),
            *section(
                f"The whole of {explained.source}",
                Text(
                    [
                        f"{plural(table.texts, 'text')} of {table.shortest} to {plural(table.longest, 'token')}"
                        f" (median {table.median}), {count(table.tokens)} together; {_truncation(table)}"
                    ]
                ),
                _batching_table(explained),
            ),
        ],
    )


def _tokenizer_sentences(explained: BatchExplanation) -> list[str]:
    facts = explained.tokenizer
    special = ", ".join(f"{token} = {number}" for token, number in facts.special_tokens.items())
    cut = f"truncated at {facts.limit} tokens"
    if facts.limit < facts.max_length:
        cut += f", since the model has no more positions, though max_length is {facts.max_length}"
    return [
        f"Tokenizer: {facts.kind}, {count(facts.pieces)} pieces.",
        f"Special tokens: {special}; {facts.added_to_a_text} are put around every text.",
        f"Texts are {cut}, and padded {facts.padding}, on the {facts.padding_side}.",
    ]


def _tensor_table(explained: BatchExplanation) -> Table:
    rows = [
        Row(Cell(tensor.name), [Cell(tensor.dtype), Cell(" × ".join(map(str, tensor.shape))), Cell(tensor.meaning)])
        for tensor in explained.tensors
    ]
    return Table("Tensors", "", columns("Tensor", *map(text_column, ("Type", "Shape", "Meaning"))), rows)


def _truncation(lengths: Lengths) -> str:
    if not lengths.truncated:
        return "no text was truncated"
    return (
        f"{plural(lengths.truncated, 'text')} truncated, {plural(lengths.tokens_cut, 'token')} lost, at most"
        f" {count(lengths.most_cut)} of one text"
    )


def _batch_sentences(explained: BatchExplanation) -> list[str]:
    batch, padding, limit = explained.batch, explained.padding, explained.tokenizer.limit
    whole = batch.texts * limit
    return [
        f"{batch.texts} × {padding.positions // batch.texts} = {plural(padding.positions, 'position')}:"
        f" {count(batch.tokens)} real tokens and {count(padding.padding)} of padding ({percent(padding.share)});"
        f" {_truncation(batch)}.",
        f"Padded to {limit} it would have {plural(whole, 'position')}, {whole / padding.positions:.1f} times as many.",
    ]


def _piece_table(text: TextPieces) -> Table:
    """The first pieces of a text, and the first of its padding."""
    real = [piece for piece in text.pieces if piece.mask]
    padding = [piece for piece in text.pieces if not piece.mask]
    shown = real[:MOST_PIECES] + padding[:MOST_PADDING]
    rows = [Row(Cell(piece.piece), [Cell(str(piece.id)), Cell(str(piece.mask))]) for piece in shown]
    caption = f"{len(real)} pieces and {len(padding)} of padding; {len(shown)} of them:"
    return Table("Pieces", caption, columns("Piece", "Id", "Mask"), rows)


def _batching_table(explained: BatchExplanation) -> Table:
    rows = [
        Row(Cell(name), [cell(padding.positions, "count"), cell(padding.share, "share"), Cell(_BATCHING[name])])
        for name, padding in explained.batching.items()
    ]
    return Table("Batching", "", columns("Batching", "Positions per epoch", "Padding", text_column("Batches")), rows)
