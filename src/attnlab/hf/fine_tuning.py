"""Fine-tuning by transformers' Trainer, and prediction by its pipeline.

Three things are changed. Evaluation reads the tables in order, longest texts first: Trainer would shuffle them if training
batches are grouped, and predictions would come in another order than the texts. Right answers and tokens are counted on the
way. And the optimizer is attnlab's. Loops, schedule, checkpoints and the choice of the best epoch are Trainer's.
Imports transformers, and is therefore imported late.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import Sampler, SequentialSampler
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase

from attnlab.corpora.labelled import LabelledTable, Tables
from attnlab.errors import UserError
from attnlab.hf import RATES, FineTuning, loading
from attnlab.hf.classify import Classification, Epoch, ModelFacts, Outcome, ScoredTable
from attnlab.lm.devices import choose_device
from attnlab.lm.optim import Muon, OptimizerPair
from attnlab.lm.progress import Show
from attnlab.store import records
from attnlab.store.runs import Step

_MOMENTUM = 0.9  # of SGD
_TEXTS_AT_ONCE = 64  # in prediction

# Data


def tokenized(
    table: LabelledTable, ids: Sequence[int], tokenizer: PreTrainedTokenizerBase, limit: int
) -> list[dict[str, Any]]:
    """A table as token ids, truncated at the limit, with the labels."""
    columns = {**tokenizer(table.texts, truncation=True, max_length=limit), "labels": list(ids)}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def collator(tokenizer: PreTrainedTokenizerBase, settings: FineTuning, limit: int) -> DataCollatorWithPadding:
    """How texts become a batch: padded to the longest of them, or to the limit."""
    if settings.batching == "fixed":
        return DataCollatorWithPadding(tokenizer, padding="max_length", max_length=limit)
    return DataCollatorWithPadding(tokenizer)


def _longest_first(rows: Sequence[dict[str, Any]]) -> list[int]:
    """The order of evaluation: little padding, and the largest batch first."""
    return sorted(range(len(rows)), key=lambda place: -len(rows[place]["input_ids"]))


# The trainer


def make_optimizer(model: nn.Module, decayed: Collection[str], settings: FineTuning) -> torch.optim.Optimizer:
    """The optimizer of a run; weight decay applies to the parameters named in `decayed`.

    Muon updates the matrices of the layers, and AdamW the rest at its default rate, changed by the same factor as Muon's.
    """
    matrices = inner_matrices(model) if settings.optimizer == "muon" else []
    updated_by_muon = {id(weight) for weight in matrices}
    groups: dict[bool, list[Tensor]] = {True: [], False: []}
    for name, weight in model.named_parameters():
        if weight.requires_grad and id(weight) not in updated_by_muon:
            groups[name in decayed].append(weight)
    decays = {True: settings.weight_decay, False: 0.0}
    parameters = [{"params": weights, "weight_decay": decays[decay]} for decay, weights in groups.items()]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=settings.rate, momentum=_MOMENTUM)
    if settings.optimizer == "adagrad":
        return torch.optim.Adagrad(parameters, lr=settings.rate)
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=settings.rate, fused=True)
    rest = torch.optim.AdamW(parameters, lr=RATES["adamw"] * settings.rate / RATES["muon"], fused=True)
    return OptimizerPair(Muon(matrices, settings.rate, weight_decay=settings.weight_decay), rest)


def inner_matrices(model: nn.Module) -> list[Tensor]:
    """The weights of the linear maps inside the encoder's layers: those in lists of modules."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    linear = [module for layers in lists for module in layers.modules() if isinstance(module, nn.Linear)]
    weights = {id(module.weight): module.weight for module in linear if min(module.weight.shape) > 1}
    assert weights, "an encoder without layers"
    return list(weights.values())


class RecordingTrainer(transformers.Trainer):
    """transformers' Trainer with evaluation in order; it counts batches, records epochs, and prints nothing by itself."""

    def __init__(self, show: Show, after_epoch: Callable[[Epoch], None], **options: Any) -> None:
        self.show, self.after_epoch = show, after_epoch
        self.epochs: list[Epoch] = []
        self.logits: list[Any] = []  # of the validation table, epoch by epoch
        self.tokens = self.padding = 0  # read so far
        self.texts = self.right = 0  # of this epoch
        self.train_loss, self.began = float("nan"), 0.0
        super().__init__(compute_metrics=self.measure, **options)
        self.remove_callback(transformers.PrinterCallback)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int]:
        return SequentialSampler(eval_dataset)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Trainer's own loss; training batches are counted and shown."""
        if model.training and not self.texts:
            self.began = time.perf_counter()
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if model.training:
            logits, mask = outputs["logits"] if isinstance(outputs, dict) else outputs[1], inputs["attention_mask"]
            self.texts += len(mask)
            self.right += int((logits.argmax(-1) == inputs["labels"]).sum())
            self.tokens += int(mask.sum())
            self.padding += int((mask == 0).sum())
            step, epoch = self.state.global_step + 1, self.state.epoch or 0.0
            seconds = sum(epoch.seconds for epoch in self.epochs) + time.perf_counter() - self.began
            share = step / self.state.max_steps
            self.show.step(Step(step, share, epoch, float(loss.detach()), 0.0, self.tokens, seconds))
        return (loss, outputs) if return_outputs else loss

    def measure(self, evaluated: transformers.EvalPrediction) -> dict[str, float]:
        """The accuracy on validation; the scores are recorded."""
        logits = _only_logits(evaluated.predictions)
        self.logits.append(logits)
        # The argmax of NaN would be the first label.
        right = (logits.argmax(-1) == evaluated.label_ids) & np.isfinite(logits).all(axis=-1)
        return {"accuracy": float(right.mean())}

    def log(self, logs: dict[str, float], *others: Any) -> None:
        """Record the training loss of the epoch, which Trainer averages."""
        self.train_loss = float(logs.get("loss", self.train_loss))
        super().log(logs, *others)

    def evaluate(self, *options: Any, **named: Any) -> dict[str, float]:
        """Measure the validation table, and record the epoch; its seconds are those of training."""
        seconds, number = time.perf_counter() - self.began, len(self.epochs) + 1
        metrics: dict[str, float] = super().evaluate(*options, **named)
        loss, accuracy = float(metrics["eval_loss"]), float(metrics["eval_accuracy"])
        losses = f"loss {self.train_loss:.3f}, on validation {loss:.3f}"
        self.show.line(f"epoch {number} of {self.args.num_train_epochs:g}: {losses}, accuracy {100 * accuracy:.1f} %")
        right, self.right, self.texts = self.right / self.texts, 0, 0
        train, dev = (value if isfinite(value) else None for value in (self.train_loss, loss))
        self.epochs.append(Epoch(number, train, right, dev, accuracy, seconds))
        self.after_epoch(self.epochs[-1])
        return metrics


def _arguments(settings: FineTuning, folder: str, keep: bool) -> transformers.TrainingArguments:
    return transformers.TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        seed=settings.seed,
        eval_strategy="epoch",
        disable_tqdm=True,
        learning_rate=settings.rate,
        num_train_epochs=settings.epochs,  # the rate falls linearly to zero
        warmup_steps=settings.warmup,  # below 1 it is a share
        train_sampling_strategy="group_by_length" if settings.batching == "grouped" else "random",
        logging_strategy="epoch",
        save_strategy="best" if keep else "no",  # checkpoints only if the model is kept
        save_total_limit=1,
        save_only_model=True,
        load_best_model_at_end=keep,
        metric_for_best_model="accuracy",
        logging_nan_inf_filter=False,
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
    """Fine-tune a model; with a folder its best epoch is saved there, and measured on the test table if there is one."""
    began = time.perf_counter()
    transformers.set_seed(settings.seed)  # the head is drawn when the model is loaded
    encoder = loading.load_encoder(name, tables.labels)
    limit = min(settings.max_length, encoder.limit)
    with loading.quietly(), tempfile.TemporaryDirectory(dir=folder, prefix=".best-") as checkpoints:
        parts = {
            part: tokenized(table, tables.ids(table), encoder.tokenizer, limit) for part, table in tables.parts.items()
        }
        full = sum(len(row["input_ids"]) == limit for rows in parts.values() for row in rows)
        if limit < settings.max_length and full:
            truncated = f"longer texts are truncated ({full:,} fill all of them)"
            show.line(f"the model has positions for {limit} tokens: {truncated}")
        order = _longest_first(parts["dev"])
        trainer = RecordingTrainer(
            show,
            after_epoch,
            model=encoder.model,
            args=_arguments(settings, checkpoints, folder is not None),
            train_dataset=parts["train"],
            eval_dataset=[parts["dev"][place] for place in order],
            processing_class=encoder.tokenizer,
            data_collator=collator(encoder.tokenizer, settings, limit),
        )
        decayed = set(trainer.get_decay_parameter_names(encoder.model))
        trainer.optimizer = make_optimizer(encoder.model, decayed, settings)
        trainer.train()
        best = max(range(len(trainer.epochs)), key=lambda place: trainer.epochs[place].dev_accuracy)
        test = None
        if folder is not None:
            if not np.isfinite(trainer.logits[best]).all():
                raise UserError(
                    f"training diverged, every epoch gave NaN: use a smaller rate than {settings.rate:g},"
                    f" such as --lr {settings.rate / 10:g}"
                )
            encoder.model.save_pretrained(folder)
            encoder.tokenizer.save_pretrained(folder)
            if tables.test is not None:
                trainer.compute_metrics = None
                places = _longest_first(parts["test"])
                rows: Any = [parts["test"][place] for place in places]
                logits = _only_logits(trainer.predict(rows).predictions)
                test = _scored(logits, places, tables.ids(tables.test))
    return Outcome(
        epochs=tuple(trainer.epochs),
        best_epoch=best + 1,
        seconds=time.perf_counter() - began,
        labels=tables.labels,
        dev=_scored(trainer.logits[best], order, tables.ids(tables.dev)),
        test=test,
        steps=trainer.state.global_step,
        tokens=trainer.tokens,
        padding=trainer.padding,
        facts=ModelFacts(
            architecture=type(encoder.model).__name__,
            parameters=sum(weight.numel() for weight in encoder.model.parameters()),
            vocabulary=len(encoder.tokenizer),
            positions=encoder.limit,
            max_length=limit,
            device=str(encoder.model.device),
            new_weights=encoder.fresh,
        ),
    )


def _only_logits(predictions: Any) -> Any:  # some models return more
    return predictions[0] if isinstance(predictions, tuple) else predictions


def _scored(logits: Any, order: Sequence[int], gold: Sequence[int]) -> ScoredTable:
    """The predictions in the order of the table, from logits in the order of evaluation."""
    return ScoredTable.of(logits[np.argsort(order)], gold)


# Prediction


def predict(name: str, texts: list[str]) -> tuple[list[str], list[list[float]]]:
    """The labels of an encoder, and their probabilities for every text; texts are truncated as they were in its training."""
    tokenizer, place = loading.load_tokenizer(name), Path(loading.require_reachable(loading.locate(name)))
    model, missing = loading.load_weights("AutoModelForSequenceClassification", str(place), name)
    if missing:  # transformers would make them up
        raise UserError(
            f"{name} has no trained head for labels: make a classifier of it with attnlab classify TRAIN DEV"
        )
    limit = loading.longest_text(model, tokenizer)
    if place.name == "model" and (place.parent / "predictions.tsv").is_file():  # written by `attnlab classify`
        limit = min(limit, records.read(Classification, place.parent / "result.json").facts.max_length or limit)
    make: Any = transformers.pipeline  # typed for each task apart
    options = {"function_to_apply": "softmax", "truncation": True, "max_length": limit, "batch_size": _TEXTS_AT_ONCE}
    with loading.quietly():
        device = choose_device("auto")
        classifier = make("text-classification", model=model, tokenizer=tokenizer, device=device, top_k=None)
        rows = [{score["label"]: score["score"] for score in scores} for scores in classifier(texts, **options)]
    labels = [label for _, label in sorted(model.config.id2label.items())]
    return labels, [[row[label] for label in labels] for row in rows]
