"""How fast `attnlab classify` trains: beside a plain transformers Trainer, and beside padding every text to the same length.

    python benchmarks/classify.py [TRAIN DEV] [--rounds 3] [--texts 1280] [--length 512]

All train the same small RoBERTa, made on the spot, on the same texts with AdamW and batches of 64; an epoch each, in turns
within one process, evaluation and set-up left out. `trainer` is the script that everybody writes: Dataset.map, a collator that
pads, Trainer with its own settings. `alike` is the same with its batches grouped by length, as ours are. `fixed` is ours with
every text padded to --length, which costs the same for each, so that a tenth of the texts is timed once. Without files: the
built-in sentences by topic.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from birthplaces import options

from attnlab.corpora.labelled import Tables, built_in_tables, read_tables
from attnlab.hf import FineTuning, fine_tune

WIDTH, LAYERS, PIECES = 64, 2, 4000


def make_model(folder: Path, texts: list[str], places: int) -> str:
    """A small RoBERTa with byte-pair pieces of its own."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import RobertaConfig, RobertaForMaskedLM, RobertaTokenizerFast

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pieces = ByteLevelBPETokenizer()
    pieces.train_from_iterator(texts, vocab_size=PIECES, special_tokens=special, show_progress=False)
    pieces.save_model(str(folder))
    tokenizer = RobertaTokenizerFast.from_pretrained(str(folder))
    tokenizer.save_pretrained(folder)
    config = RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=places + 2,
        pad_token_id=1,
    )
    models: Any = RobertaForMaskedLM  # without types
    models(config).save_pretrained(folder)
    return str(folder)


def plain_trainer(model: str, tables: Tables, strategy: str, length: int) -> float:
    """Seconds of one epoch of the usual script, without its evaluation."""
    from datasets import Dataset
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        PrinterCallback,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    times: list[float] = []

    class Clock(TrainerCallback):
        """The beginning and the end of the epoch."""

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """Note the time."""
            times.append(time.perf_counter())

        def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """Note the time."""
            times.append(time.perf_counter())

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForSequenceClassification.from_pretrained(model, num_labels=len(tables.labels))
    rows = Dataset.from_dict({"text": tables.train.texts, "labels": tables.ids(tables.train)})

    def encode(batch: dict[str, Any]) -> Any:
        return tokenizer(batch["text"], truncation=True, max_length=length)

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=64,
            num_train_epochs=1,
            learning_rate=5e-5,
            train_sampling_strategy=strategy,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(
            model=network,
            args=arguments,
            train_dataset=rows.map(encode, batched=True),
            data_collator=DataCollatorWithPadding(tokenizer),
            processing_class=tokenizer,
            callbacks=[Clock()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return times[1] - times[0]


def ours(model: str, tables: Tables, settings: FineTuning) -> float:
    """Seconds of one epoch of ours."""
    return fine_tune(model, tables, settings).epochs[0].seconds


def part(tables: Tables, texts: int) -> Tables:
    """About so many of the training texts, evenly spread, and a few to evaluate on."""
    rows = tables.train.rows[:: max(1, len(tables.train.rows) // texts)]
    return replace(
        tables, train=replace(tables.train, rows=rows), dev=replace(tables.dev, rows=tables.dev.rows[:64]), test=None
    )


def main() -> None:
    """Print the seconds of each per thousand texts, and the ratios."""
    parser = options(__doc__, rounds=3, texts=1280, length=512)
    parser.add_argument("tables", nargs="*", metavar="TRAIN DEV", help="default: the built-in sentences by topic")
    given = parser.parse_args()
    if len(given.tables) not in (0, 2):
        parser.error("give two tables, TRAIN and DEV, or none")
    rounds, texts, length = given.rounds, given.texts, given.length
    import datasets
    from transformers.utils import logging

    told: Any = logging  # half of it has no types
    told.set_verbosity_error()
    told.disable_progress_bar()
    datasets.disable_progress_bars()
    whole = read_tables(*given.tables) if given.tables else built_in_tables()
    tables, few = part(whole, texts), part(whole, max(64, texts // 10))
    settings = FineTuning(epochs=1, max_length=length)
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder), tables.train.texts, length)
        ways: dict[str, Callable[[], float]] = {
            "attnlab": lambda: ours(model, tables, settings),
            "alike": lambda: plain_trainer(model, tables, "group_by_length", length),
            "trainer": lambda: plain_trainer(model, tables, "random", length),
        }
        ours(model, few, settings)  # the first run of a process is slower
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                seconds[name].append(1000 * way() / len(tables.train.rows))
        seconds["fixed"] = [1000 * ours(model, few, replace(settings, batching="fixed")) / len(few.train.rows)]
    best = {name: min(values) for name, values in seconds.items()}
    print(
        f"{len(tables.train.rows):,} texts of {tables.train.source}; seconds for a thousand texts, the best of {rounds} rounds:"
    )
    for name, value in best.items():
        print(f"{name:9s} {value:8.2f}  ({', '.join(f'{one:.2f}' for one in seconds[name])})")
    for name, what in (
        ("alike", "a Trainer with groups"),
        ("trainer", "a plain Trainer"),
        ("fixed", f"padding to {length}"),
    ):
        print(f"{what} takes {best[name] / best['attnlab']:.2f} times as long")


if __name__ == "__main__":
    main()
