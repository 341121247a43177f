"""Fine-tuning by transformers' Trainer, and prediction by its pipeline.

Three things are changed. Evaluation reads the tables in order, longest texts first: Trainer would shuffle them if training
batches are grouped, and predictions would come in another order than the texts. Right answers and tokens are counted on the
way. And the optimizer is ours. Loops, schedule, checkpoints and the choice of the best epoch are Trainer's.
Imports transformers and datasets, and is therefore imported late.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from scipy.special import log_softmax
from torch import Tensor, nn
from torch.utils.data import Sampler, SequentialSampler
from transformers import (
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    pipeline,
    set_seed,
)

from attnlab.corpora.labelled import LabelledTable, Tables
from attnlab.errors import UserError
from attnlab.hf import RATES, FineTuning
from attnlab.hf.classify import Classification, Epoch, ModelFacts, Outcome, ScoredTable
from attnlab.hf.loading import (
    load_encoder,
    load_tokenizer,
    load_weights,
    locate,
    longest_text,
    quietly,
    require_reachable,
)
from attnlab.lm.devices import choose_device
from attnlab.lm.optim import Muon, OptimizerPair
from attnlab.lm.progress import Show
from attnlab.store import records
from attnlab.store.runs import Step

_MOMENTUM = 0.9  # of SGD
_TEXTS_AT_ONCE = 64  # in prediction

# Data


def tokenized(table: LabelledTable, ids: Sequence[int], tokenizer: PreTrainedTokenizerBase, limit: int) -> Any:
    """A table as a dataset of token ids, truncated at the limit, with the row number of every text."""
    rows = datasets.Dataset.from_dict({"text": table.texts, "labels": list(ids), "row": list(range(len(table.rows)))})

    def encode(texts: list[str]) -> dict[str, list[list[int]]]:
        return dict(tokenizer(texts, truncation=True, max_length=limit))

    return rows.map(
        encode, input_columns="text", batched=True, remove_columns=["text"], new_fingerprint=table.sha256[:16]
    )


def collator(tokenizer: PreTrainedTokenizerBase, settings: FineTuning, limit: int) -> DataCollatorWithPadding:
    """How texts become a batch: padded to the longest of them, or to the limit."""
    if settings.batching == "fixed":
        return DataCollatorWithPadding(tokenizer, padding="max_length", max_length=limit)
    return DataCollatorWithPadding(tokenizer)


def _longest_first(rows: Any) -> Any:  # the order of evaluation: little padding, and the largest batch first
    lengths = [len(ids) for ids in rows["input_ids"]]
    return rows.select(sorted(range(len(lengths)), key=lambda place: -lengths[place]))


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


class EpochRecorder(TrainerCallback):
    """Shows every step, and records the current epoch and the finished ones."""

    def __init__(self, show: Show, after_epoch: Callable[[Epoch], None]) -> None:
        self.show, self.after_epoch = show, after_epoch
        self.loss, self.tokens = 0.0, 0  # of the last batch, and read so far
        self.texts = self.right = self.padding = 0
        self.train_loss = float("nan")
        self.began = self.before = self.epoch_seconds = 0.0  # `before`: seconds of the finished epochs
        self.epochs: list[Epoch] = []
        self.logits: list[Any] = []  # of the validation table, epoch by epoch

    def seconds(self) -> float:
        """Seconds of training, without validation."""
        return self.before + time.perf_counter() - self.began

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Show the step."""
        step, share = state.global_step, state.global_step / state.max_steps
        self.show.step(Step(step, share, state.epoch or 0.0, self.loss, 0.0, self.tokens, self.seconds()))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock and the counts."""
        self.texts = self.right = 0
        self.began = time.perf_counter()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop the clock: validation is not training."""
        self.epoch_seconds = time.perf_counter() - self.began
        self.before += self.epoch_seconds

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """Record the training loss of the epoch, which Trainer averages."""
        if logs and "loss" in logs:
            self.train_loss = float(logs["loss"])

    def on_evaluate(self, args: Any, state: Any, control: Any, **event: Any) -> None:
        """Record the epoch."""
        number, accuracy, loss = len(self.epochs) + 1, event["metrics"]["eval_accuracy"], event["metrics"]["eval_loss"]
        right = self.right / max(self.texts, 1)
        losses = _finite(self.train_loss), _finite(float(loss))
        self.epochs.append(Epoch(number, losses[0], right, losses[1], float(accuracy), self.epoch_seconds))
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

    def measure(self, evaluated: EvalPrediction) -> dict[str, float]:
        """The accuracy on validation; the scores are recorded."""
        logits = _only_logits(evaluated.predictions)
        self.logits.append(logits)
        # The argmax of NaN would be the first label.
        right = (logits.argmax(-1) == evaluated.label_ids) & np.isfinite(logits).all(axis=-1)
        return {"accuracy": float(right.mean())}


class _OrderedTrainer(Trainer):
    """transformers' Trainer with evaluation in order, counts, and nothing printed but by the recorder."""

    def __init__(self, recorder: EpochRecorder, **options: Any) -> None:
        self.recorder = recorder
        super().__init__(callbacks=[recorder], compute_metrics=recorder.measure, **options)
        self.remove_callback(PrinterCallback)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[int]:
        return SequentialSampler(eval_dataset)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Trainer's own loss; training batches are counted."""
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if model.training:
            self.recorder.count(inputs, outputs["logits"] if isinstance(outputs, dict) else outputs[1], loss)
        return (loss, outputs) if return_outputs else loss


def _arguments(settings: FineTuning, folder: str, keep: bool) -> TrainingArguments:
    return TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        seed=settings.seed,
        eval_strategy="epoch",
        report_to="none",
        disable_tqdm=True,
        learning_rate=settings.rate,
        num_train_epochs=settings.epochs,
        lr_scheduler_type="linear",
        warmup_steps=settings.warmup,  # below 1 it is a share
        train_sampling_strategy="group_by_length" if settings.batching == "grouped" else "random",
        logging_strategy="epoch",
        save_strategy="best" if keep else "no",  # checkpoints only if the model is kept
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
    """Fine-tune a model; with a folder its best epoch is saved there, and measured on the test table if there is one."""
    began = time.perf_counter()
    set_seed(settings.seed)  # the head is drawn when the model is loaded
    encoder = load_encoder(name, tables.labels)
    limit = min(settings.max_length, encoder.limit)
    recorder = EpochRecorder(show, after_epoch)
    with quietly(), tempfile.TemporaryDirectory(dir=folder, prefix=".best-") as checkpoints:
        parts = {
            part: tokenized(table, tables.ids(table), encoder.tokenizer, limit) for part, table in tables.parts.items()
        }
        _show_truncation(parts, limit, settings, show)
        dev = _longest_first(parts["dev"])
        ordered = _OrderedTrainer(
            recorder,
            model=encoder.model,
            args=_arguments(settings, checkpoints, folder is not None),
            train_dataset=parts["train"],
            eval_dataset=dev,
            processing_class=encoder.tokenizer,
            data_collator=collator(encoder.tokenizer, settings, limit),
        )
        decayed = set(ordered.get_decay_parameter_names(encoder.model))
        ordered.optimizer = make_optimizer(encoder.model, decayed, settings)
        ordered.train()
        best = max(range(len(recorder.epochs)), key=lambda place: recorder.epochs[place].dev_accuracy)
        test = None
        if folder is not None:
            if not np.isfinite(recorder.logits[best]).all():
                raise UserError(
                    f"training diverged, every epoch gave NaN: use a smaller rate than {settings.rate:g},"
                    f" such as --lr {settings.rate / 10:g}"
                )
            encoder.model.save_pretrained(folder)
            encoder.tokenizer.save_pretrained(folder)
            if tables.test is not None:
                ordered.compute_metrics = None
                rows = _longest_first(parts["test"])
                logits = _only_logits(ordered.predict(rows).predictions)
                test = _scored(logits, rows["row"], tables.ids(tables.test))
    return Outcome(
        epochs=tuple(recorder.epochs),
        best_epoch=best + 1,
        seconds=time.perf_counter() - began,
        labels=tables.labels,
        dev=_scored(recorder.logits[best], dev["row"], tables.ids(tables.dev)),
        test=test,
        steps=ordered.state.global_step,
        tokens=recorder.tokens,
        padding=recorder.padding,
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
    """Probabilities in the order of the table, from logits in the order of evaluation."""
    placed = np.empty_like(logits, dtype=np.float64)
    placed[list(order)] = logits
    logs = log_softmax(placed, axis=1)
    loss = _finite(float(-logs[np.arange(len(gold)), list(gold)].mean()))
    return ScoredTable(tuple(gold), tuple(map(tuple, np.nan_to_num(np.exp(logs), nan=0.0).tolist())), loss)


def _finite(loss: float) -> float | None:
    return loss if isfinite(loss) else None


def _show_truncation(parts: Mapping[str, datasets.Dataset], limit: int, settings: FineTuning, show: Show) -> None:
    """Say how many texts fill all positions of the model, if that is fewer than asked for."""
    full = sum(len(ids) == limit for rows in parts.values() for ids in rows["input_ids"])
    if limit < settings.max_length and full:
        show.line(f"the model has positions for {limit} tokens: longer texts are truncated ({full:,} fill all of them)")


# Prediction


def predict(name: str, texts: list[str]) -> tuple[list[str], list[list[float]]]:
    """The labels of an encoder, and their probabilities for every text; texts are truncated as they were in its training."""
    tokenizer, place = load_tokenizer(name), Path(require_reachable(locate(name)))
    model, missing = load_weights("AutoModelForSequenceClassification", str(place), name)
    if missing:  # transformers would make them up
        raise UserError(
            f"{name} has no trained head for labels: make a classifier of it with attnlab classify TRAIN DEV"
        )
    limit = longest_text(model, tokenizer)
    if place.name == "model" and (place.parent / "predictions.tsv").is_file():  # written by `attnlab classify`
        limit = min(limit, records.read(Classification, place.parent / "result.json").facts.max_length or limit)
    make: Any = pipeline  # typed for each task apart
    options = {"function_to_apply": "softmax", "truncation": True, "max_length": limit, "batch_size": _TEXTS_AT_ONCE}
    with quietly():
        device = choose_device("auto")
        classifier = make("text-classification", model=model, tokenizer=tokenizer, device=device, top_k=None)
        rows = [{score["label"]: score["score"] for score in scores} for scores in classifier(texts, **options)]
    labels = [label for _, label in sorted(model.config.id2label.items())]
    return labels, [[row[label] for label in labels] for row in rows]
