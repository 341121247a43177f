"""Fine-tuning by transformers' Trainer: what it is told, and what is written down as it goes.

Three things are changed. Evaluation goes through the tables in order, longest texts first: Trainer would shuffle them where
training batches are grouped, and predictions would come in another order than the texts. Right answers and tokens are counted
as they pass. And the optimizer is ours. Loops, schedule, checkpoints and the choice of the best epoch are Trainer's.
Imports transformers, and is therefore imported late.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler, SequentialSampler
from transformers import (
    EvalPrediction,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from attnlab.corpora.labelled import Tables
from attnlab.errors import UserError
from attnlab.hf.datasets import collator, longest_first, tokenized
from attnlab.hf.loading import quietly
from attnlab.hf.models import Encoder, describe, load_encoder
from attnlab.hf.optimizer_factory import make_optimizer
from attnlab.hf.outcome import Epoch, Outcome, Scored
from attnlab.hf.settings import FineTuning
from attnlab.stages import Show
from attnlab.train import Step


@dataclass
class Record:
    """What has happened so far: of the epoch under way, and of those that are over."""

    show: Show
    after_epoch: Callable[[Epoch], None]
    loss: float = 0.0
    texts: int = 0
    right: int = 0
    tokens: int = 0
    padding: int = 0
    train_loss: float = float("nan")
    began: float = 0.0
    seconds: float = 0.0  # of training, all epochs
    epoch_seconds: float = 0.0
    epochs: list[Epoch] = field(default_factory=list)
    logits: list[Any] = field(default_factory=list)  # of the validation table, epoch by epoch


class Watcher(TrainerCallback):
    """Writes down the epochs, and shows the steps."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock and the counts."""
        self.record.texts = self.record.right = 0
        self.record.began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Show a step."""
        one, seconds = self.record, self.record.seconds + time.perf_counter() - self.record.began
        progress = state.global_step / state.max_steps
        one.show.step(Step(state.global_step, progress, state.epoch or 0.0, one.loss, 0.0, one.tokens, seconds))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop the clock: validation is not training."""
        self.record.epoch_seconds = time.perf_counter() - self.record.began
        self.record.seconds += self.record.epoch_seconds

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """Keep the training loss of the epoch, which Trainer averages."""
        if logs and "loss" in logs:
            self.record.train_loss = float(logs["loss"])

    def on_evaluate(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        """Write the epoch down."""
        one, number = self.record, len(self.record.epochs) + 1
        accuracy, loss = found["metrics"]["eval_accuracy"], found["metrics"]["eval_loss"]
        one.epochs.append(
            Epoch(
                number, one.train_loss, one.right / max(one.texts, 1), float(loss), float(accuracy), one.epoch_seconds
            )
        )
        one.show.line(
            f"epoch {number} of {args.num_train_epochs:g}: loss {one.train_loss:.3f}, on validation {loss:.3f},"
            f" accuracy {100 * accuracy:.1f} %"
        )
        one.after_epoch(one.epochs[-1])


class OrderedTrainer(Trainer):
    """transformers' Trainer with evaluation in order, our optimizer, and counts."""

    def __init__(self, record: Record, settings: FineTuning, **options: Any) -> None:
        self.record, self.settings = record, settings
        super().__init__(**options)
        self.remove_callback(PrinterCallback)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int]:
        return SequentialSampler(eval_dataset)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """The optimizer that the settings name."""
        if self.optimizer is None:
            whole = self.model if model is None else model
            assert whole is not None
            self.optimizer = make_optimizer(whole, set(self.get_decay_parameter_names(whole)), self.settings)
        return self.optimizer

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Trainer's own loss; in training, what passes by is counted."""
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if model.training:
            mask, labels = inputs["attention_mask"], inputs["labels"]
            logits = outputs["logits"] if isinstance(outputs, dict) else outputs[1]
            one, real = self.record, int(mask.sum())
            one.loss = float(loss.detach())
            one.texts, one.right = one.texts + len(labels), one.right + int((logits.argmax(-1) == labels).sum())
            one.tokens, one.padding = one.tokens + real, one.padding + mask.numel() - real
        return (loss, outputs) if return_outputs else loss


def arguments(settings: FineTuning, folder: str, keep: bool) -> TrainingArguments:
    """What Trainer is told; checkpoints are only made where the model is kept."""
    strategy = {"grouped": "group_by_length"}.get(settings.batching, "random")
    return TrainingArguments(
        output_dir=folder,
        learning_rate=settings.rate,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        num_train_epochs=settings.epochs,
        lr_scheduler_type="linear",
        warmup_steps=settings.warmup,  # below 1 it is a share
        seed=settings.seed,
        train_sampling_strategy=strategy,
        eval_strategy="epoch",
        logging_strategy="epoch",
        save_strategy="best" if keep else "no",
        save_total_limit=1,
        save_only_model=True,
        load_best_model_at_end=keep,
        metric_for_best_model="accuracy",
        greater_is_better=True,
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.accelerator.is_available(),
        dataloader_pin_memory=torch.accelerator.is_available(),
    )


def scored(logits: Any, order: Sequence[int], gold: Sequence[int]) -> Scored:
    """Probabilities in the order of the table, from logits in the order of evaluation."""
    placed = np.empty_like(logits, dtype=np.float64)
    placed[list(order)] = logits
    shifted = placed - placed.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    loss = float(-logs[np.arange(len(gold)), list(gold)].mean())
    return Scored(tuple(gold), tuple(tuple(map(float, row)) for row in np.exp(logs)), loss)


def tell_cuts(parts: Mapping[str, Any], limit: int, settings: FineTuning, show: Show) -> None:
    """Say so where texts are as long as the model has places for, and that is less than was asked for."""
    full = sum(len(ids) == limit for rows in parts.values() for ids in rows["input_ids"])
    if limit < settings.max_length and full:
        show.line(f"the model has places for {limit} tokens: longer texts are cut there ({full:,} fill them)")


def refuse_divergence(logits: Any, settings: FineTuning) -> None:
    """A model whose scores are no numbers is not kept."""
    if not np.isfinite(logits).all():
        raise UserError(
            f"training diverged, no epoch gave scores that are numbers: give a smaller rate than {settings.rate:g}, such as"
            f" --lr {settings.rate / 10:g}"
        )


def only_logits(predictions: Any) -> Any:
    """The scores of the labels, where a model gives more than these."""
    return predictions[0] if isinstance(predictions, tuple) else predictions


def run(
    name: str,
    tables: Tables,
    settings: FineTuning,
    folder: Path | None,
    show: Show,
    after_epoch: Callable[[Epoch], None],
) -> Outcome:
    """Fine-tune a model; with a folder its best epoch is kept there, and measured on the test table if there is one."""
    began = time.perf_counter()
    set_seed(settings.seed)  # the head is drawn when the model is loaded
    encoder = load_encoder(name, tables.labels)
    limit = min(settings.max_length, encoder.limit)
    record = Record(show, after_epoch)
    with quietly(), tempfile.TemporaryDirectory(dir=folder, prefix=".best-") as checkpoints:
        parts = {
            part: tokenized(table, tables.ids(table), encoder.tokenizer, limit) for part, table in tables.parts.items()
        }
        tell_cuts(parts, limit, settings, show)
        dev = longest_first(parts["dev"])
        trainer = make_trainer(encoder, parts["train"], dev, settings, record, checkpoints, folder is not None)
        trainer.train()
        best = max(range(len(record.epochs)), key=lambda place: record.epochs[place].dev_accuracy)
        test = None
        if folder is not None:
            refuse_divergence(record.logits[best], settings)
            encoder.model.save_pretrained(folder)
            encoder.tokenizer.save_pretrained(folder)
            if tables.test is not None:
                trainer.compute_metrics = None
                rows = longest_first(parts["test"])
                said = only_logits(trainer.predict(rows).predictions)
                test = scored(said, rows["row"], tables.ids(tables.test))
    return Outcome(
        tables.labels,
        scored(record.logits[best], dev["row"], tables.ids(tables.dev)),
        test,
        tuple(record.epochs),
        best + 1,
        time.perf_counter() - began,
        steps=trainer.state.global_step,
        tokens=record.tokens,
        padding=record.padding,
        facts={**describe(encoder), "max_length": limit, "device": str(encoder.model.device)},
    )


def make_trainer(
    encoder: Encoder, train: Any, dev: Any, settings: FineTuning, record: Record, checkpoints: str, keep: bool
) -> OrderedTrainer:
    """A Trainer for these tables that records what happens."""

    def measure(said: EvalPrediction) -> dict[str, float]:
        logits = only_logits(said.predictions)
        record.logits.append(logits)
        # Scores that are no numbers say nothing; their largest would be the first label.
        right = (logits.argmax(-1) == said.label_ids) & np.isfinite(logits).all(axis=-1)
        return {"accuracy": float(right.mean())}

    limit = min(settings.max_length, encoder.limit)
    return OrderedTrainer(
        record,
        settings,
        model=encoder.model,
        args=arguments(settings, checkpoints, keep),
        train_dataset=train,
        eval_dataset=dev,
        processing_class=encoder.tokenizer,
        data_collator=collator(encoder.tokenizer, settings, limit),
        compute_metrics=measure,
        callbacks=[Watcher(record)],
    )
