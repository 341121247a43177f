"""What `attnlab classify` shows: the tables before training, a batch explained, predictions, and the report.

The batch is made by the collator of training, from the first lines of the training table in their order; no weights are read
for it. Only the function that makes it imports transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnlab.corpora.labelled import Tables
from attnlab.errors import UserError, cut
from attnlab.hf import BAG_OF_WORDS, FineTuning
from attnlab.hf.classify import Classification, Measured, Predictions, TablesSummary
from attnlab.hf.loading import load_tokenizer, longest_text_of, quietly
from attnlab.report import document as blocks
from attnlab.report import parts
from attnlab.report.document import Cell, Column, Document, Facts, Table, Text, section
from attnlab.report.words import capital, count, duration, percent, plural
from attnlab.store import records

_USES = {"train": "training", "dev": "validation", "test": "test"}
_MOST_TEXTS, _LONGEST_TEXT = 20, 60  # predictions shown, and characters of each text
_MOST_PIECES, _MOST_PADDING = 24, 3  # of the text that is shown piece by piece
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


# The tables


def data_blocks(tables: TablesSummary) -> list[blocks.Block]:
    """How the columns were detected, how often each label occurs, and texts of each."""
    sentences = []
    for name, table in tables.data.items():
        heading = "; heading skipped" if table.heading else ""
        blank = f"; {plural(table.blank, 'blank line')} skipped" if table.blank else ""
        order = f"{table.column.replace('-', ' ')} ({table.detected})"
        sentences.append(f"{table.source}: {count(table.texts)} texts, {_USES[name]}; {order}{heading}{blank}")
    originals = {name: f"{name} (in the files: {label})" for label, name in tables.renamed.items()}
    columns: list[tuple[str, Callable[[str], Cell]]] = [("Label", lambda label: Cell(originals.get(label, label)))]
    for name, table in tables.data.items():
        columns.append((_USES[name], lambda label, table=table: parts.cell(table.counts[label], "count")))  # type: ignore[misc]
    return [
        Text(sentences),
        parts.table_of("Labels", "", tables.labels, columns),
        parts.side_by_side([Text(texts, "samples", label) for label, texts in tables.examples.items()]),
    ]


def warnings_of(warnings: Sequence[str]) -> list[blocks.Notice]:
    """What looks wrong in the tables."""
    return [blocks.Notice("Look at the data:", warning) for warning in warnings]


def tables_document(tables: TablesSummary) -> Document:
    """The tables as they are shown before training."""
    return Document("tables", "Data", [], section("Tables", *data_blocks(tables)), warnings_of(tables.warnings))


# A batch


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
        lost = [length - self.limit for length in self.lengths if length > self.limit]
        if not lost:
            return "no text was truncated"
        tokens = f"{plural(sum(lost), 'token')} lost, at most {count(max(lost))} of one text"
        return f"{plural(len(lost), 'text')} truncated, {tokens}"

    def positions(self, settings: FineTuning) -> dict[str, int]:
        """Count the positions of one epoch, padding included, for each way to make batches."""
        import torch
        from transformers import trainer_pt_utils

        group: Any = trainer_pt_utils.get_length_grouped_indices  # without types
        kept, size = self.kept, settings.batch_size
        grouped = group(kept, size, generator=torch.Generator().manual_seed(settings.seed))
        shuffled = torch.randperm(len(kept), generator=torch.Generator().manual_seed(settings.seed)).tolist()
        return {
            "grouped": positions_in_order(kept, grouped, size),
            "random": positions_in_order(kept, shuffled, size),
            "fixed": self.limit * len(kept),
        }


def positions_in_order(lengths: Sequence[int], order: Sequence[int], size: int) -> int:
    """Count the positions of all batches in this order, each as wide as its longest text."""
    batches = [order[begin : begin + size] for begin in range(0, len(order), size)]
    return sum(len(batch) * max(lengths[place] for place in batch) for batch in batches)


def batch_document(model: str, tables: Tables, settings: FineTuning) -> Document:
    """Explain the first batch of the training table, and count padding and truncation in the whole table."""
    if model == BAG_OF_WORDS:
        raise UserError(f"{BAG_OF_WORDS} has no tokenizer and no batches: explain those of an encoder, with --model")
    from attnlab.hf.fine_tuning import collator, tokenized

    tokenizer = load_tokenizer(model)
    limit = min(settings.max_length, longest_text_of(model, tokenizer))
    with quietly():
        whole = Lengths(tuple(len(ids) for ids in tokenizer(tables.train.texts)["input_ids"]), limit)
        rows = tokenized(tables.train, tables.ids(tables.train), tokenizer, limit)
        batch: Any = collator(tokenizer, settings, limit)(rows[: settings.batch_size])
    ordered, source = sorted(whole.lengths), tables.train.source
    lengths = f"{ordered[0]} to {plural(ordered[-1], 'token')} (median {ordered[len(ordered) // 2]})"
    tokens = sum(whole.kept)
    batching = parts.table_of(
        "Batching",
        "",
        whole.positions(settings).items(),
        [
            ("Batching", lambda way: Cell(way[0])),
            ("Positions per epoch", lambda way: parts.cell(way[1], "count")),
            ("Padding", lambda way: parts.cell(1 - tokens / way[1], "share")),
            (parts.text_column("Batches"), lambda way: Cell(_BATCHING[way[0]])),
        ],
    )
    total = f"{plural(len(ordered), 'text')} of {lengths}, {count(tokens)} together; {whole.truncation()}."
    return Document(
        "batch",
        f"The first batch of {source}, as {model} gets it",
        _tokenizer_sentences(tokenizer, limit, settings),
        [
            *section("Tensors", _tensor_table(batch, tokenizer.padding_side), _padding_text(batch, whole)),
            *section("The shortest text of the batch", *_shortest_text(tokenizer, tables, batch)),
            *section(f"The whole of {source}", Text([total]), batching),
        ],
    )


def _tokenizer_sentences(tokenizer: Any, limit: int, settings: FineTuning) -> list[str]:
    special = zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True)
    listed = ", ".join(f"{token} = {number}" for token, number in special)
    truncated = f"truncated at {limit} tokens"
    if limit < settings.max_length:
        truncated += f", since the model has no more positions, though max_length is {settings.max_length}"
    padding = "to the limit" if settings.batching == "fixed" else "to the longest text of the batch"
    return [
        f"Tokenizer: {type(tokenizer).__name__}, {count(len(tokenizer))} pieces.",
        f"Special tokens: {listed}; {tokenizer.num_special_tokens_to_add()} are put around every text.",
        f"Texts are {truncated}, and padded {padding}, on the {tokenizer.padding_side}.",
    ]


def _tensor_table(batch: Any, side: str) -> Table:
    known = list(_MEANINGS)
    order = sorted(batch, key=lambda name: known.index(name) if name in known else len(known) - 2)  # labels last
    meanings = {name: _MEANINGS.get(name, "a further input of this model").format(side=side) for name in order}
    return parts.table_of(
        "Tensors",
        "",
        order,
        [
            ("Tensor", Cell),
            (parts.text_column("Type"), lambda name: Cell(str(batch[name].dtype).removeprefix("torch."))),
            (parts.text_column("Shape"), lambda name: Cell(" × ".join(map(str, batch[name].shape)))),
            (parts.text_column("Meaning"), lambda name: Cell(meanings[name])),
        ],
    )


def _padding_text(batch: Any, whole: Lengths) -> Text:
    texts, width = batch["input_ids"].shape
    lengths = Lengths(whole.lengths[:texts], whole.limit)
    positions, tokens, longest = texts * width, sum(lengths.kept), texts * whole.limit
    padding = f"{count(positions - tokens)} of padding ({percent(1 - tokens / positions)})"
    counted = f"{texts} × {width} = {plural(positions, 'position')}: {count(tokens)} real tokens and {padding}"
    wider = f"{plural(longest, 'position')}, {longest / positions:.1f} times as many"
    return Text([f"{counted}; {lengths.truncation()}.", f"Padded to {whole.limit} it would have {wider}."])


def _shortest_text(tokenizer: Any, tables: Tables, batch: Any) -> tuple[Text, Table]:
    """The shortest text of the batch, piece by piece: if there is padding, it has some."""
    masks = batch["attention_mask"].tolist()
    place = min(range(len(masks)), key=lambda number: sum(masks[number]))
    row, ids = tables.train.rows[place], batch["input_ids"][place].tolist()
    pieces = list(zip(tokenizer.convert_ids_to_tokens(ids), ids, masks[place], strict=True))
    real, padding = [piece for piece in pieces if piece[2]], [piece for piece in pieces if not piece[2]]
    shown = real[:_MOST_PIECES] + padding[:_MOST_PADDING]
    table = parts.table_of(
        "Pieces",
        f"{len(real)} pieces and {len(padding)} of padding; {len(shown)} of them:",
        shown,
        [
            ("Piece", lambda piece: Cell(piece[0])),
            ("Id", lambda piece: Cell(str(piece[1]), piece[1])),
            ("Mask", lambda piece: Cell(str(piece[2]), piece[2])),
        ],
    )
    label = f"label {row.label} (number {int(batch['labels'][place])})"
    return Text([f"{tables.train.place(place)}, {label}: {row.text}"]), table


# Predictions


def predictions_document(predictions: Predictions, source: str) -> Document:
    """How often each label was given, and the first texts with their labels."""
    texts = predictions.texts
    labels = parts.table_of(
        "Labels",
        "",
        predictions.counts.items(),
        [
            ("Label", lambda label: Cell(label[0])),
            ("Texts", lambda label: parts.cell(label[1], "count")),
            ("Share", lambda label: parts.cell(label[1] / len(texts), "share")),
        ],
    )
    first = parts.table_of(
        "Texts",
        "",
        texts[:_MOST_TEXTS],
        [
            ("Label", lambda row: Cell(row.label)),
            ("Probability", lambda row: parts.cell(row.probabilities[row.label], "share")),
            (parts.text_column("Text"), lambda row: Cell(cut(row.text, _LONGEST_TEXT))),
        ],
    )
    shown = f"The first {_MOST_TEXTS} texts" if len(texts) > _MOST_TEXTS else "Texts"
    title = f"{plural(len(texts), 'text')} of {source}, labelled by {predictions.model}"
    return Document("predictions", title, [], [*section("Labels", labels), *section(shown, first)])


# The report


def read_classification(folder: Path) -> Document:
    """The report of a folder that `attnlab classify` wrote."""
    return classification_document(records.read(Classification, folder / "result.json"))


def classification_document(result: Classification) -> Document:
    """The report of a classification."""
    return parts.report_of(
        "classification",
        result,
        result.verdict,
        [
            *section("Results", _accuracy_table(result)),
            *(section("Training", *_curve_charts(result), _epochs_table(result)) if result.epochs else []),
            *(
                blocks.Section(f"Labels on {name}", list(_labels_blocks(measured, name, result.tables.labels)))
                for name, measured in result.measured.items()
            ),
            *section("Data", *data_blocks(result.tables)),
            parts.reproduce(result, _run_facts(result), more=[_settings(result)]),
        ],
        warnings_of(result.tables.warnings),
        footer="The raw numbers are in result.json, every text with its label in predictions.tsv.",
    )


def _loss_cell(loss: float | None) -> Cell:
    return Cell("NaN") if loss is None else parts.cell(loss, "loss")


def _accuracy_table(result: Classification) -> Table:
    chosen = "the best epoch was chosen on validation, so that figure is slightly optimistic"
    once = "the test table was measured once, after everything was chosen"
    remarks = [*([chosen] if result.best_epoch else []), *([once] if result.test else [])]
    guess = Column("Most common label", note="the accuracy of always predicting it")
    return parts.table_of(
        "Results",
        f"{capital('; '.join(remarks))}." if remarks else "Shares of right labels.",
        result.measured.items(),
        [
            ("Table", lambda part: Cell(part[0])),
            ("Accuracy", lambda part: parts.cell(part[1].accuracy, "share")),
            ("95 % interval", lambda part: parts.interval_cell(part[1])),
            ("Right", lambda part: parts.out_of(part[1].right, part[1].texts)),
            (Column("Loss", note="cross-entropy in nats"), lambda part: _loss_cell(part[1].loss)),
            (guess, lambda part: parts.cell(part[1].commonest, "share")),
        ],
        brief=True,
    )


def _curve_charts(result: Classification) -> list[blocks.Chart]:
    numbers = [float(epoch.epoch) for epoch in result.epochs]

    def both(training: Sequence[float | None], validation: Sequence[float | None]) -> list[blocks.Series]:
        return [blocks.Series("training", numbers, training), blocks.Series("validation", numbers, validation)]  # type: ignore[arg-type]

    losses = both([epoch.train_loss for epoch in result.epochs], [epoch.dev_loss for epoch in result.epochs])
    shares = [(100 * epoch.train_accuracy, 100 * epoch.dev_accuracy) for epoch in result.epochs]
    accuracies = both([training for training, _ in shares], [validation for _, validation in shares])
    x, title = blocks.Axis("epoch"), f"Accuracy; epoch {result.best_epoch} was kept"
    return [
        parts.lines("Loss", losses, x, blocks.Axis("loss", "nats per text", low=0.0), "the loss"),
        parts.lines(title, accuracies, x, blocks.Axis("right labels", "%"), "the accuracy in per cent"),
    ]


def _epochs_table(result: Classification) -> Table:
    """The epochs; the one that was kept is marked."""
    return parts.table_of(
        "Epochs",
        "Training loss and accuracy are measured while the weights change, over the whole epoch and with dropout; validation is"
        " measured at its end.",
        result.epochs,
        [
            (Column("Epoch"), lambda epoch: Cell(str(epoch.epoch), epoch.epoch)),
            ("Training loss", lambda epoch: _loss_cell(epoch.train_loss)),
            ("Validation loss", lambda epoch: _loss_cell(epoch.dev_loss)),
            ("Training accuracy", lambda epoch: parts.cell(epoch.train_accuracy, "share")),
            ("Validation accuracy", lambda epoch: parts.cell(epoch.dev_accuracy, "share")),
            ("Time", lambda epoch: parts.cell(epoch.seconds, "seconds")),
        ],
        mark=lambda epoch: "kept" if epoch.epoch == result.best_epoch else "",
        brief=True,
    )


def _labels_blocks(measured: Measured, name: str, labels: tuple[str, ...]) -> Iterator[blocks.Block]:
    """The confusion matrix, and the mistakes if there are any."""
    counts = measured.confusion
    pairs = "; ".join(
        f"{gold} taken for {predicted} {count(counts[row][column])} times"
        for row, gold in enumerate(labels)
        for column, predicted in enumerate(labels)
        if counts[row][column]
    )
    yield blocks.HeatMap(
        "Rows: the label of the text. Columns: the predicted label.",
        f"Confusion matrix. {pairs}",
        counts,
        labels,
        labels,
        high=float(max(1, *(max(row) for row in counts))),
        numbers=len(labels) <= 20,
        cell=64 if len(labels) <= 6 else 44 if len(labels) <= 12 else 30,
    )
    if measured.mistakes:
        shown, wrong = plural(len(measured.mistakes), "mistake"), count(measured.texts - measured.right)
        yield parts.table_of(
            f"Mistakes on {name}",
            f"{shown} of {wrong} on {name}, the most confident ones. Some may be errors of the table.",
            measured.mistakes,
            [
                ("Text", lambda mistake: Cell(mistake.text)),
                (parts.text_column("Label"), lambda mistake: Cell(mistake.label)),
                (parts.text_column("Predicted"), lambda mistake: Cell(mistake.predicted)),
                (Column("Confidence", largest_first=True), lambda mistake: parts.cell(mistake.confidence, "share")),
            ],
        )


def _run_facts(result: Classification) -> Facts:
    known = {name.replace("_", " "): value for name, value in asdict(result.facts).items() if value not in (None, ())}
    pairs = parts.plain_facts(known)
    if result.steps:
        pairs += [
            ("steps", count(result.steps)),
            ("tokens read", count(result.tokens)),
            ("padding", percent(result.padding / (result.tokens + result.padding))),
            ("time per epoch", duration(sum(epoch.seconds for epoch in result.epochs) / len(result.epochs))),
        ]
    return Facts("Run", pairs)


def _settings(result: Classification) -> blocks.Block:
    settings = asdict(result.settings) if result.epochs else {"seed": result.settings.seed}
    checksums = [(table.source, f"sha256 {table.sha256}") for table in result.tables.data.values()]
    return parts.folded(
        "Settings and checksums", Facts("Settings", parts.plain_facts(settings)), Facts("Checksums", checksums)
    )
