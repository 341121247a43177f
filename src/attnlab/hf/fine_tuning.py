"""Fine-tuning by transformers' Trainer: what it is told, and what is recorded.

Three things are changed. Evaluation goes through the tables in order, longest texts first: Trainer would shuffle them where
training batches are grouped, and predictions would come in another order than the texts. Right answers and tokens are counted
in passing. And the optimizer is ours. Loops, schedule, checkpoints and the choice of the best epoch are Trainer's.
Imports transformers and datasets, and is therefore imported late.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Sampler, SequentialSampler
from transformers import DataCollatorWithPadding, EvalPrediction, PreTrainedTokenizerBase, set_seed

from attnlab.corpora.labelled import LabelledTable, Tables
from attnlab.errors import UserError
from attnlab.hf import training
from attnlab.hf.loading import Encoder, load_encoder, quietly
from attnlab.hf.outcome import Epoch, Outcome, Scored
from attnlab.hf.settings import RATES, FineTuning
from attnlab.stages import Show

# Data


def tokenized(table: LabelledTable, ids: Sequence[int], tokenizer: PreTrainedTokenizerBase, limit: int) -> Any:
    """A table as a dataset of token ids, cut at the limit, with the row number of every text."""
    rows = datasets.Dataset.from_dict({"text": table.texts, "labels": list(ids), "row": list(range(len(table.rows)))})

    def encode(batch: dict[str, list[Any]]) -> dict[str, Any]:
        return dict(tokenizer(batch["text"], truncation=True, max_length=limit))

    return rows.map(encode, batched=True, remove_columns=["text"], new_fingerprint=table.sha256[:16])


def collator(tokenizer: PreTrainedTokenizerBase, settings: FineTuning, limit: int) -> DataCollatorWithPadding:
    """How texts become a batch: padded to the longest of them, or all to the limit."""
    if settings.batching == "fixed":
        return DataCollatorWithPadding(tokenizer, padding="max_length", max_length=limit)
    return DataCollatorWithPadding(tokenizer)


def _longest_first(rows: Any) -> Any:  # the order of evaluation: little padding, and the largest batch first
    lengths = [len(one) for one in rows["input_ids"]]
    return rows.select(sorted(range(len(lengths)), key=lambda place: -lengths[place]))


# The trainer


def make_optimizer(model: nn.Module, decayed: Collection[str], settings: FineTuning) -> torch.optim.Optimizer:
    """The optimizer of a run; weight decay applies to the parameters of the given names."""
    return training.make_optimizer(
        model,
        settings.optimizer,
        settings.rate,
        decayed=decayed,
        weight_decay=settings.weight_decay,
        matrices=inner_matrices(model) if settings.optimizer == "muon" else (),
        # As fast beside Muon as by default, faster or slower by the same factor.
        adamw_rate=RATES["adamw"] * settings.rate / RATES["muon"],
    )


def inner_matrices(model: nn.Module) -> list[Tensor]:
    """The weights of the linear maps inside the encoder's layers, which are those in lists of modules."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    linear = [module for one in lists for module in one.modules() if isinstance(module, nn.Linear)]
    found = {id(one.weight): one.weight for one in linear if min(one.weight.shape) > 1}
    assert found, "an encoder without layers"
    return list(found.values())


class Watcher(training.Watch):
    """Shows the steps, and records the epoch under way and those that are over."""

    def __init__(self, show: Show, after_epoch: Callable[[Epoch], None]) -> None:
        super().__init__(show.step)
        self.show, self.after_epoch = show, after_epoch
        self.texts = self.right = self.padding = 0
        self.train_loss = float("nan")
        self.began = self.before = self.epoch_seconds = 0.0  # `before`: seconds of the epochs that are over
        self.epochs: list[Epoch] = []
        self.logits: list[Any] = []  # of the validation table, epoch by epoch

    def seconds(self) -> float:
        """Seconds of training, validation left out."""
        return self.before + time.perf_counter() - self.began

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock and the counts."""
        self.texts = self.right = 0
        self.began = time.perf_counter()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop the clock: validation is not training."""
        self.epoch_seconds = time.perf_counter() - self.began
        self.before += self.epoch_seconds

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """Keep the training loss of the epoch, which Trainer averages."""
        if logs and "loss" in logs:
            self.train_loss = float(logs["loss"])

    def on_evaluate(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        """Record the epoch."""
        number, accuracy, loss = len(self.epochs) + 1, found["metrics"]["eval_accuracy"], found["metrics"]["eval_loss"]
        right = self.right / max(self.texts, 1)
        self.epochs.append(Epoch(number, self.train_loss, right, float(loss), float(accuracy), self.epoch_seconds))
        self.show.line(
            f"epoch {number} of {args.num_train_epochs:g}: loss {self.train_loss:.3f}, on validation {loss:.3f},"
            f" accuracy {100 * accuracy:.1f} %"
        )
        self.after_epoch(self.epochs[-1])

    def count(self, inputs: Any, logits: Tensor, loss: Tensor) -> None:
        """Count a training batch."""
        mask, labels = inputs["attention_mask"], inputs["labels"]
        real = int(mask.sum())
        self.loss = float(loss.detach())
        self.texts, self.right = self.texts + len(labels), self.right + int((logits.argmax(-1) == labels).sum())
        self.tokens, self.padding = self.tokens + real, self.padding + mask.numel() - real

    def measure(self, said: EvalPrediction) -> dict[str, float]:
        """The accuracy on validation; the scores are kept."""
        logits = _only_logits(said.predictions)
        self.logits.append(logits)
        # Scores that are not numbers say nothing; their largest would be the first label.
        right = (logits.argmax(-1) == said.label_ids) & np.isfinite(logits).all(axis=-1)
        return {"accuracy": float(right.mean())}


class _OrderedTrainer(training.QuietTrainer):
    """transformers' Trainer with evaluation in order, our optimizer, and counts."""

    def __init__(self, watch: Watcher, settings: FineTuning, **options: Any) -> None:
        self.watch, self.settings = watch, settings
        super().__init__(watch, compute_metrics=watch.measure, **options)

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
        """Trainer's own loss; training batches are counted."""
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if model.training:
            self.watch.count(inputs, outputs["logits"] if isinstance(outputs, dict) else outputs[1], loss)
        return (loss, outputs) if return_outputs else loss


def _arguments(settings: FineTuning, folder: str, keep: bool) -> Any:
    return training.arguments(
        folder,
        settings.batch_size,
        settings.seed,
        learning_rate=settings.rate,
        num_train_epochs=settings.epochs,
        lr_scheduler_type="linear",
        warmup_steps=settings.warmup,  # below 1 it is a share
        train_sampling_strategy="group_by_length" if settings.batching == "grouped" else "random",
        logging_strategy="epoch",
        save_strategy="best" if keep else "no",  # checkpoints only where the model is kept
        save_total_limit=1,
        save_only_model=True,
        load_best_model_at_end=keep,
        metric_for_best_model="accuracy",
        greater_is_better=True,
        logging_nan_inf_filter=False,
        use_cpu=not torch.accelerator.is_available(),
        dataloader_pin_memory=torch.accelerator.is_available(),
    )


# One fine-tuning


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
    watch = Watcher(show, after_epoch)
    with quietly(), tempfile.TemporaryDirectory(dir=folder, prefix=".best-") as checkpoints:
        parts = {
            part: tokenized(table, tables.ids(table), encoder.tokenizer, limit) for part, table in tables.parts.items()
        }
        _tell_cuts(parts, limit, settings, show)
        dev = _longest_first(parts["dev"])
        trainer = _OrderedTrainer(
            watch,
            settings,
            model=encoder.model,
            args=_arguments(settings, checkpoints, folder is not None),
            train_dataset=parts["train"],
            eval_dataset=dev,
            processing_class=encoder.tokenizer,
            data_collator=collator(encoder.tokenizer, settings, limit),
        )
        trainer.train()
        best = max(range(len(watch.epochs)), key=lambda place: watch.epochs[place].dev_accuracy)
        test = None
        if folder is not None:
            _refuse_divergence(watch.logits[best], settings)
            _save(encoder, folder)
            if tables.test is not None:
                trainer.compute_metrics = None
                rows = _longest_first(parts["test"])
                said = _only_logits(trainer.predict(rows).predictions)
                test = _scored(said, rows["row"], tables.ids(tables.test))
    return Outcome(
        tables.labels,
        _scored(watch.logits[best], dev["row"], tables.ids(tables.dev)),
        test,
        tuple(watch.epochs),
        best + 1,
        time.perf_counter() - began,
        steps=trainer.state.global_step,
        tokens=watch.tokens,
        padding=watch.padding,
        facts={**encoder.describe(), "max_length": limit, "device": str(encoder.model.device)},
    )


def _save(encoder: Encoder, folder: Path) -> None:
    encoder.model.save_pretrained(folder)
    encoder.tokenizer.save_pretrained(folder)


def _only_logits(predictions: Any) -> Any:  # some models give more than these
    return predictions[0] if isinstance(predictions, tuple) else predictions


def _scored(logits: Any, order: Sequence[int], gold: Sequence[int]) -> Scored:
    """Probabilities in the order of the table, from logits in the order of evaluation."""
    placed = np.empty_like(logits, dtype=np.float64)
    placed[list(order)] = logits
    shifted = placed - placed.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    loss = float(-logs[np.arange(len(gold)), list(gold)].mean())
    return Scored(tuple(gold), tuple(tuple(map(float, row)) for row in np.exp(logs)), loss)


def _tell_cuts(parts: Mapping[str, Any], limit: int, settings: FineTuning, show: Show) -> None:
    """Say so where texts are as long as the model can read, and that is less than was asked for."""
    full = sum(len(ids) == limit for rows in parts.values() for ids in rows["input_ids"])
    if limit < settings.max_length and full:
        show.line(f"the model has places for {limit} tokens: longer texts are cut there ({full:,} fill them)")


def _refuse_divergence(logits: Any, settings: FineTuning) -> None:
    if not np.isfinite(logits).all():
        raise UserError(
            f"training diverged, no epoch gave scores that are numbers: give a smaller rate than {settings.rate:g}, such as"
            f" --lr {settings.rate / 10:g}"
        )
