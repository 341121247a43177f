"""The training loop for every task and mechanism.

Batches hold about the same number of tokens in examples of similar length, instead of padding to the block. All
randomness follows from the seed and the epoch, so that a killed run resumes from its last checkpoint with exactly the
losses it would have had. With several processes, each takes its share of the same batches.
"""

from __future__ import annotations

import logging
import math
import os
import shlex
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TextIO

import msgspec
import numpy as np
import torch
from torch import Tensor, distributed, nn

from attnlab import ops
from attnlab.config import ModelConfig, RunConfig
from attnlab.corpora import Question
from attnlab.errors import CheckpointError, DataError, Diverged, Interrupted, one_line
from attnlab.inside.taps import eval_mode
from attnlab.kernels import vocabulary
from attnlab.lm import optim
from attnlab.lm.devices import autocast
from attnlab.lm.evaluate import answer_all, examine, sample
from attnlab.lm.model import LanguageModel, load_weights, model_files, read_tensors, to_bytes
from attnlab.lm.processes import Ranks, distribute, no_sync
from attnlab.lm.tokenizers import Tokenizer
from attnlab.lm.trackers import tracking
from attnlab.machine import cores, memory_held, release_freed_memory
from attnlab.store import records
from attnlab.store.folders import Manifest, add_files, os_errors, read_bytes, write_folder
from attnlab.store.runs import FORMAT, MetricsMark, Run, RunResult, Step
from attnlab.tasks import Example, Task, UniformExamples

IGNORED = -100  # ignored target
_VALIDATE_EVERY = 1000  # steps, in long epochs
_TRAINED_PER_VALIDATED = 20  # tokens; a validated one costs a third, so that validation takes less than 2 % of the time
_COST_OF_ANSWERS = 4  # tokens that reading takes as long as writing the answer takes, per token of question and answer
_PROMPT = 8  # held-out tokens that a sample begins with
_COST_OF_A_PART = 100  # tokens; a call of the model takes as long as 49 to 127, measured for widths of 48 to 512


def choose_threads(config: ModelConfig, asked: int) -> int:
    """Choose the CPU threads of this process: one for tiny models, which two slow down, else its share of the cores."""
    if asked or "OMP_NUM_THREADS" in os.environ:
        return asked or max(1, int(os.environ["OMP_NUM_THREADS"]))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return 1 if config.n_embd < 96 else max(1, cores() // here)


def make_batches(lengths: Sequence[int], budget: int, rng: np.random.Generator) -> list[list[int]]:
    """Group indices into batches of at most `budget` tokens including padding, of similar lengths, in random order."""
    shuffled = rng.permutation(len(lengths))
    ordered = shuffled[np.argsort(np.asarray(lengths)[shuffled], kind="stable")]
    batches: list[list[int]] = []
    for index in ordered.tolist():
        if not batches or (len(batches[-1]) + 1) * lengths[index] > budget:
            batches.append([])
        batches[-1].append(index)
    return [batches[number] for number in rng.permutation(len(batches))]


def make_rows(count: int, rows: int, rng: np.random.Generator) -> list[list[int]]:
    """Group indices into batches of `rows` in random order, regardless of length; the last may have fewer.

    As in the course reports. Padded to the longest, such a batch has about twice the tokens of its sentences: see
    `split_by_length`.
    """
    shuffled = rng.permutation(count).tolist()
    return [shuffled[at : at + rows] for at in range(0, count, rows)]


_Epoch = tuple[Sequence[Example], Sequence[Sequence[int]]]  # examples, and their indices by batch


def make_epoch(task: Task, config: RunConfig, epoch: int) -> _Epoch:
    """Make the examples of an epoch, and group their indices into batches, by rows or by tokens."""
    settings = config.train
    rng = np.random.default_rng([config.seed if settings.order_seed < 0 else settings.order_seed, epoch])
    examples = task.examples(rng)
    if isinstance(examples, UniformExamples):
        rows = settings.rows_per_batch or max(1, settings.tokens_per_batch // (examples.length - 1))
        return examples, [range(at, min(at + rows, len(examples))) for at in range(0, len(examples), rows)]
    if settings.rows_per_batch:
        return examples, make_rows(len(examples), settings.rows_per_batch, rng)
    return examples, make_batches([len(example.ids) for example in examples], settings.tokens_per_batch, rng)


def split_by_length(rows: Sequence[Example], most: int, overhead: float = _COST_OF_A_PART) -> list[list[Example]]:
    """Split a batch into parts of at most `most` rows of similar length, the longest first, at the lowest cost.

    The cost of a part is its number of tokens, padding included, plus the overhead of computing it apart. So rows of equal
    length are one part, in their order, unless they are too many.
    """
    ordered = sorted(rows, key=lambda example: len(example.ids))
    # Of the first rows, for every number of them: the lowest cost, and where the last part then begins.
    costs, begins = np.zeros(len(ordered) + 1), [0]
    for end, longest in enumerate(ordered, start=1):
        first = max(0, end - most)
        totals = costs[first:end] + overhead + (len(longest.ids) - 1) * np.arange(end - first, 0, -1)
        begins.append(first + int(totals.argmin()))
        costs[end] = totals.min()
    cuts = [len(ordered)]
    while cuts[-1]:
        cuts.append(begins[cuts[-1]])
    return [ordered[begin:end] for end, begin in pairwise(cuts)]


def collate(examples: Sequence[Example], pad: int) -> tuple[Tensor, Tensor]:
    """Return the inputs and targets of a batch, padded to its longest example."""
    width = max(len(example.ids) for example in examples) - 1
    ids = np.full((len(examples), width), pad, dtype=np.int64)
    targets = np.full((len(examples), width), IGNORED, dtype=np.int64)
    for row, example in enumerate(examples):
        length = len(example.ids) - 1
        ids[row, :length] = example.ids[:-1]
        targets[row, example.start - 1 : example.end - 1] = example.ids[example.start : example.end]
    return torch.from_numpy(ids), torch.from_numpy(targets)


def number_documents(examples: Sequence[Example]) -> Tensor | None:
    """Number the documents in each row of a batch; None if no row has more than one."""
    if not any(example.starts for example in examples):
        return None
    width = max(len(example.ids) for example in examples) - 1
    numbers = np.zeros((len(examples), width), dtype=np.int64)
    for row, example in enumerate(examples):
        for start in example.starts:
            numbers[row, start:] += 1
    return torch.from_numpy(numbers)


def count_ids(examples: Sequence[Example]) -> int:
    """Count the ids of examples; those of equal length are not read."""
    if isinstance(examples, UniformExamples):
        return examples.length * len(examples)
    return sum(len(example.ids) for example in examples)


@dataclass(frozen=True)
class DevSet:
    """Held-out data to validate on: examples, and the questions if they are to be answered too."""

    examples: Sequence[Example]
    questions: tuple[Question, ...] = ()

    @cached_property
    def cost(self) -> int:
        """The time of a validation, as a number of tokens to read."""
        tokens = count_ids(self.examples)
        return tokens * (1 + _COST_OF_ANSWERS) if self.questions else tokens

    def spread(self, tokens: int) -> DevSet:
        """Return about so many tokens of it, evenly spread (0: all); questions go with their examples."""
        total = count_ids(self.examples)
        step = math.ceil(total / tokens) if tokens else 1
        places = range(0, len(self.examples), max(1, step))
        return DevSet([self.examples[place] for place in places], self.questions[:: max(1, step)])


class SummedLoss(nn.Module):
    """The loss of a batch, summed over its targets; positions without a target are not computed where possible."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, targets: Tensor, documents: Tensor | None = None) -> Tensor:
        """Return the summed negative log probability of all targets; documents in one row do not see each other."""
        counted = targets != IGNORED
        hidden, aims = self.model.hidden(ids, wanted=counted, documents=documents), targets[counted]
        if self.model.config.vocab_size >= vocabulary.LARGE:
            return vocabulary.summed_losses(hidden, self.model.head.weight, aims)
        return ops.token_losses(self.model.head(hidden), aims).sum()


@contextmanager
def _stop_requests() -> Iterator[list[int]]:
    """Collect stop signals instead of ending at once; a second signal ends the process."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number: int, _frame: object) -> None:
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class _Batch:
    """The examples of one step, and where in the run it is."""

    examples: list[Example]
    progress: float  # 0 to 1
    epoch: float
    middle: float  # epochs trained on in the middle of the step
    ends_epoch: bool
    final: bool  # the last of the run


@dataclass(frozen=True)
class _State:
    """Where a training is at a checkpoint, apart from its tensors: state.json."""

    format: int
    step: int
    epoch: int
    position: int  # batches of the epoch that are done
    tokens: int
    seconds: float
    validating: float  # seconds of validation
    validations: int
    validated_at: int  # tokens at the last validation
    best_step: int
    best_loss: float | None
    stale: int  # validations since the best
    metrics: MetricsMark
    scaler: dict[str, float] | None


_COUNTERS = tuple(part.name for part in fields(_State) if part.name not in ("format", "metrics", "scaler"))


class Average:
    """The exponential moving average of the weights, which is validated and saved in their place.

    Early in a run the decay is smaller, (1 + step) / (10 + step), so that the random weights of the start are soon forgotten.
    """

    def __init__(self, model: LanguageModel, decay: float) -> None:
        self.decay = decay
        self.weights = dict(model.named_parameters())
        self.tensors = {name: weight.detach().clone() for name, weight in self.weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after a step, counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.tensors.values()), list(self.weights.values()), 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the average and the weights, in place."""
        for name, weight in self.weights.items():
            kept = weight.detach().clone()
            weight.copy_(self.tensors[name])
            self.tensors[name].copy_(kept)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the average of a checkpoint."""
        if tensors.keys() != self.tensors.keys():
            raise CheckpointError("the averaged weights of the checkpoint do not fit the model: train it again")
        self.tensors = {name: tensors[name].to(weight.device) for name, weight in self.weights.items()}


class Trainer:
    """Trains a model on a task."""

    def __init__(
        self,
        run: Run,
        model: LanguageModel,
        tokenizer: Tokenizer,
        task: Task,
        config: RunConfig,
        ranks: Ranks,
        dev: DevSet | None = None,
    ) -> None:
        self.run, self.model, self.tokenizer, self.task, self.ranks = run, model, tokenizer, task, ranks
        self.config, self.settings = config, config.train
        self.device = next(model.parameters()).device
        self.loss = SummedLoss(model)
        self.module = distribute(self.loss, ranks)
        self.forward: Callable[..., Tensor] = self.module  # the compiled module if asked for
        self.optimizers = optim.make_optimizers(model, self.settings, ranks)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.settings.precision == "fp16")
        self.average = Average(model, self.settings.ema) if self.settings.ema else None
        self.dev = dev.spread(self.settings.validate_tokens) if dev else None
        self.step = self.epoch = self.position = self.tokens = 0
        self.seconds = self.validating = 0.0  # seconds in all, and of validation
        self.validations = self.best_step = self.validated_at = 0  # validated_at: tokens at the last validation
        self.best_loss: float | None = None
        self.stale = 0  # validations since the best
        self.saved = time.monotonic()  # when the last checkpoint was written
        self._made: tuple[int, _Epoch] | None = None  # the number and the batches of the epoch made last
        if ranks.world > 1 and (config.model.dropout or config.model.dropout_of_attention):
            torch.manual_seed(config.seed + 1000 * ranks.rank)

    # Checkpoints

    def checkpoint(self) -> None:
        """Save everything needed for an exact resume."""
        files = model_files(self.model, self.tokenizer)
        files["optimizer.safetensors"] = to_bytes(optim.state_tensors(self.optimizers))
        files["rng.safetensors"] = to_bytes(self._generator_states())
        if self.average:
            files["average.safetensors"] = to_bytes(self.average.tensors)
        if self.ranks.first:
            scaler = self.scaler.state_dict() if self.scaler.is_enabled() else None
            counters = {name: getattr(self, name) for name in _COUNTERS}
            state = _State(FORMAT, **counters, metrics=self.run.metrics_mark(), scaler=scaler)
            files["state.json"] = records.encode(state)
            self.run.save_checkpoint(self.step, files)
        self.ranks.wait()
        release_freed_memory()
        self.saved = time.monotonic()

    def _generator_states(self) -> dict[str, Tensor]:
        """The states of torch's generators by process, and by device if that has one of its own."""
        states = {"": torch.get_rng_state()}
        if self.device.type != "cpu":
            states[f"/{self.device.type}"] = torch.get_device_module(self.device).get_rng_state(self.device)
        by_process: dict[str, Tensor] = {}
        for name, state in states.items():
            every = [torch.empty_like(state) for _ in range(self.ranks.world)]
            if self.ranks.world > 1:
                distributed.all_gather(every, state)
            else:
                every = [state]
            by_process |= {f"{rank}{name}": value for rank, value in enumerate(every)}
        return by_process

    def restore(self) -> list[str]:
        """Restore the newest intact checkpoint, or the beginning; return what was wrong with newer ones."""
        damaged: list[str] = []
        for folder in reversed(self.run.checkpoints()):
            try:
                mark = self._restore(folder)
            except CheckpointError as error:
                damaged.append(str(error))
                continue
            if self.ranks.first:
                self.run.rewind_metrics(mark)
            return damaged
        if damaged:
            raise CheckpointError(
                f"no checkpoint of {self.run.path} is intact ({damaged[0]}); to train from the beginning, remove the folder"
                f" {self.run.path / 'checkpoints'}"
            )
        if self.ranks.first:
            self.run.rewind_metrics()
        return damaged

    def _restore(self, folder: Path) -> MetricsMark:
        """Restore a checkpoint; return its mark of the metrics file."""
        state = records.read(_State, folder / "state.json")
        if state.format != FORMAT:
            raise CheckpointError(f"{folder} has checkpoint format {state.format}, but this version reads {FORMAT}")
        for name in _COUNTERS:
            setattr(self, name, getattr(state, name))
        load_weights(self.model, read_tensors(folder / "model.safetensors"), folder)
        optim.load_state(self.optimizers, read_tensors(folder / "optimizer.safetensors"))
        if self.average:
            self.average.load(read_tensors(folder / "average.safetensors"))
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state.scaler or {})
        self._restore_generators(folder / "rng.safetensors")
        return state.metrics

    def _restore_generators(self, path: Path) -> None:
        """Restore torch's generators; a process or device that did not exist before keeps its own."""
        states, rank = read_tensors(path), self.ranks.rank
        if "0" not in states:
            raise CheckpointError(f"{path} has no generator state: the checkpoint is damaged")
        try:
            if str(rank) in states:
                torch.set_rng_state(states[str(rank)])
            if (name := f"{rank}/{self.device.type}") in states:
                torch.get_device_module(self.device).set_rng_state(states[name], self.device)
        except (RuntimeError, TypeError) as error:
            raise CheckpointError(f"{path} has no generator state ({error}): the checkpoint is damaged") from None

    # The loop

    def fit(self, watch: Callable[[Step], None], note: Callable[[str], None] = lambda _: None) -> None:
        """Train to the end, and write the model and the result."""
        self._compile(note)
        self.model.train()
        stopped = False
        logs = self.settings.loggers if self.ranks.first else ()
        with (
            _stop_requests() as received,
            self._metrics_file() as metrics,
            tracking(logs, self.run.path, self.config.flat(), self.step) as trackers,
        ):
            started = time.perf_counter() - self.seconds
            for batch in self._batches():
                if stopped := self.out_of_patience:
                    break
                rate = optim.rate_at(batch.progress, self.settings, batch.middle)
                loss, norm = self.train_step(batch.examples, rate)
                self.step += 1
                overdue = time.monotonic() - self.saved > 60 * self.settings.checkpoint_minutes
                loss, stop, save = self.ranks.total(loss, bool(received), overdue)
                self.seconds = time.perf_counter() - started
                reached = batch.progress, batch.epoch, loss, rate, self.tokens, round(self.seconds, 3)
                now = Step(self.step, *reached, norm if math.isfinite(norm) else None)
                if math.isfinite(loss) and self._is_due(batch):
                    now = self._validate(now, batch.final)
                    self.seconds = time.perf_counter() - started
                if self.ranks.first:
                    self._record(now, metrics)
                    trackers.log(self.step, now.row())
                    watch(now)
                if not math.isfinite(loss):
                    raise Diverged(f"the loss is {loss} at step {self.step}: train again with a lower --train.lr")
                if stop:
                    self._stop(received)
                if save or self.step % self.settings.checkpoint_every == 0:
                    self.checkpoint()
        if stopped:
            note(f"stopped early: {self.stale} validations without improvement since step {self.best_step}")
        self._finish(stopped)

    # Validation

    @property
    def out_of_patience(self) -> bool:
        """Whether validation has not improved for too long."""
        return 0 < self.settings.patience <= self.stale

    def _is_due(self, batch: _Batch) -> bool:
        """Whether to validate after a batch; always after the last."""
        if self.dev is None or batch.final:
            return self.dev is not None
        if every := self.settings.validate_every:
            return self.step % every == 0
        ended = batch.ends_epoch or self.step % _VALIDATE_EVERY == 0
        return ended and self.tokens - self.validated_at >= _TRAINED_PER_VALIDATED * self.dev.cost

    def _validate(self, now: Step, final: bool) -> Step:
        """Validate, keep the best model, and return the step with what was found; the last has a sample in any case."""
        assert self.dev is not None
        began = time.perf_counter()
        with eval_mode(self.model), torch.no_grad(), self._averaged():
            loss = self._dev_loss(self.dev)
            accuracy = self._dev_accuracy(self.dev)
            self.validations, self.validated_at = self.validations + 1, self.tokens
            every = self.settings.sample_every
            text = self._sample(self.dev) if every and (final or self.validations % every == 0) else None
            if self.best_loss is None or loss < self.best_loss:
                self.best_loss, self.best_step, self.stale = loss, self.step, 0
                files = model_files(self.model, self.tokenizer)
                if self.ranks.first:
                    write_folder(self.run.path / "best", "model", files, replace=True)
            else:
                self.stale += 1
        self.validating += time.perf_counter() - began
        return replace(now, dev_loss=loss, dev_accuracy=accuracy, sample=text)

    def _dev_loss(self, dev: DevSet) -> float:
        """The mean loss per held-out target, computed by all processes together."""
        lengths = [len(example.ids) for example in dev.examples]
        batches = make_batches(lengths, self.settings.tokens_per_batch, np.random.default_rng(0))
        total = 0.0
        for batch in batches[self.ranks.rank :: self.ranks.world]:
            total += float(self._loss(self.loss, [dev.examples[index] for index in batch]))
        targets = sum(
            example.end - example.start for batch in batches for example in map(dev.examples.__getitem__, batch)
        )
        return self.ranks.total(total)[0] / targets

    def _dev_accuracy(self, dev: DevSet) -> float | None:
        """The share of held-out questions that are answered exactly; None if there are none."""
        if not dev.questions:
            return None
        share = dev.questions[self.ranks.rank :: self.ranks.world]
        right = sum(examine(self.model, self.tokenizer, share).right) if share else 0
        return self.ranks.total(right)[0] / len(dev.questions)

    def _sample(self, dev: DevSet) -> str | None:
        """What the model writes: the answer to a held-out question, or text."""
        if not self.ranks.first:
            return None
        if dev.questions:
            asked = dev.questions[self.validations % len(dev.questions)]
            return f"{asked.question} {answer_all(self.model, self.tokenizer, [asked.question])[0]}"
        example = dev.examples[self.validations % len(dev.examples)]
        prompt = self.task.prompt(example, self.tokenizer, min(_PROMPT, self.model.config.block_size // 4))
        return sample(self.model, self.tokenizer, prompt, 1, seed=self.validations)[0]

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """Put the average of the weights in place of the weights, if there is one."""
        if self.average:
            self.average.swap()
        try:
            yield
        finally:
            if self.average:
                self.average.swap()

    def train_step(self, batch: list[Example], rate: float) -> tuple[float, float]:
        """Update the weights once; return this process's share of the mean loss over all targets, and the norm."""
        ranks = self.ranks
        self.model.begin_step()
        self.tokens += sum(example.end - 1 for example in batch)
        targets_in_all = sum(example.end - example.start for example in batch)
        parts = self._parts(batch)
        total = 0.0
        for number, whole in enumerate(parts, start=1):
            part = whole[ranks.rank :: ranks.world]  # may be empty
            with no_sync(self.module, last=number == len(parts)):
                loss = self._loss(self.forward, part or batch[:1]) * (1.0 if part else 0.0) / targets_in_all
                self.scaler.scale(loss * ranks.world).backward()  # the gradients of the processes are averaged
            total += float(loss.item())
        for optimizer in self.optimizers.values():
            self.scaler.unscale_(optimizer)
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip or math.inf))
        if math.isfinite(norm) or not self.scaler.is_enabled():
            optim.set_rates(self.optimizers, rate)
            for optimizer in self.optimizers.values():
                self.scaler.step(optimizer)
            if self.average:
                self.average.update(self.step + 1)
        # Otherwise fp16 has overflowed: the whole step is left out, and the loss is scaled less from now on.
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        self.scaler.update()
        return total, norm

    def _parts(self, batch: list[Example]) -> list[list[Example]]:
        """The parts of a batch that are computed one after the other, each by all processes together.

        Only a batch of rows of any length is split by length, and only on the CPU: a GPU computes the tokens of a batch so
        fast that a further call costs more than padding (an estimate, not measured).
        """
        world = self.ranks.world
        most = math.ceil(math.ceil(len(batch) / world) / self.settings.accumulate) * world
        if self.settings.rows_per_batch and self.device.type == "cpu":
            return split_by_length(batch, most, _COST_OF_A_PART * world)  # each computes a share of the tokens
        return [batch[at : at + most] for at in range(0, len(batch), most)]

    def _loss(self, module: Callable[..., Tensor], examples: Sequence[Example]) -> Tensor:
        """The summed loss of examples."""
        batch = (*collate(examples, self.tokenizer.pad), number_documents(examples))
        placed = [tensor.to(self.device, non_blocking=True) for tensor in batch if tensor is not None]
        with autocast(self.device, self.settings.precision):
            return module(*placed)

    def _record(self, step: Step, metrics: TextIO) -> None:
        with os_errors(self.run.path):
            metrics.write(msgspec.json.encode(step.row()).decode() + "\n")
            metrics.flush()

    def _compile(self, note: Callable[[str], None]) -> None:
        """Compile everything that is compiled on first use, so that it does not count as training time."""
        ids = torch.zeros(1, 2, dtype=torch.long, device=self.device)
        with eval_mode(self.model), torch.no_grad(), autocast(self.device, self.settings.precision):
            self.loss(ids, ids)
        if self.settings.compile:
            failure = self._try_compiled(compiled := torch.compile(self.module, dynamic=True))
            if not self.ranks.total(bool(failure))[0]:
                self.forward = compiled
            else:
                why = failure or "it failed in another process"
                note(f"note: torch.compile failed, training goes on without it: {why}")

    def _try_compiled(self, compiled: Callable[..., Tensor]) -> str:
        """Try a compiled module once, without an effect on training; return what failed."""
        logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module=r"torch\._(dynamo|inductor|functorch)")
        ids = torch.zeros(2, min(8, self.model.config.block_size), dtype=torch.long, device=self.device)
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        failure = ""
        self.model.train()
        try:
            with torch.random.fork_rng(), no_sync(self.module, last=False):
                with autocast(self.device, self.settings.precision):
                    loss = compiled(ids, ids)
                loss.backward()
        except Exception as error:  # torch.compile raises errors of many kinds
            failure = one_line(error)
        for name, buffer in self.model.named_buffers():
            buffer.copy_(buffers[name])
        self.model.zero_grad()
        return failure

    def make_epoch(self) -> _Epoch:
        """Make the examples and batches of this epoch, once; a task that makes no examples of its data is an error."""
        if self._made is None or self._made[0] != self.epoch:
            self._made = self.epoch, make_epoch(self.task, self.config, self.epoch)
        epoch = self._made[1]
        if not epoch[0]:
            raise DataError(
                f"task '{self.config.task.name}' makes no examples from this data: check its options and the files"
            )
        return epoch

    def _batches(self) -> Iterator[_Batch]:
        """Yield the remaining batches."""
        steps = self.settings.steps
        epochs = math.inf if steps else self.settings.epochs
        while self.epoch < epochs:
            examples, batches = self.make_epoch()
            for position in range(self.position, len(batches)):
                epoch = self.epoch + position / len(batches)
                if epoch >= epochs or 0 < steps <= self.step:
                    return
                self.position = position + 1
                # The middle of the step: neither the first nor the last step has rate 0.
                middle = (epoch + min(epochs, epoch + 1 / len(batches))) / 2
                ended = self.epoch + self.position / len(batches)
                yield _Batch(
                    examples=[examples[index] for index in batches[position]],
                    progress=(self.step + 0.5) / steps if steps else middle / epochs,
                    epoch=epoch,
                    middle=middle,
                    ends_epoch=self.position == len(batches),
                    final=self.step + 1 == steps if steps else ended >= epochs,
                )
            self.epoch, self.position = self.epoch + 1, 0

    @contextmanager
    def _metrics_file(self) -> Iterator[TextIO]:
        path = self.run.path / "metrics.jsonl" if self.ranks.first else Path(os.devnull)
        with os_errors(path), path.open("a", encoding="utf-8") as stream:
            yield stream

    def _stop(self, received: list[int]) -> None:
        self.checkpoint()
        reason = signal.Signals(received[0]).name if received else "a signal"
        reason = {"SIGINT": "Ctrl-C"}.get(reason, reason)
        command = f"attnlab resume {shlex.quote(str(self.run.path))}"
        raise Interrupted(f"stopped by {reason} at step {self.step}; all is saved. Resume with: {command}")

    def _finish(self, stopped_early: bool) -> None:
        """Write the model and the result (first process only)."""
        with self._averaged():
            files = model_files(self.model, self.tokenizer)
        if self.ranks.first:
            steps = self.run.metrics()
            recent = [step.loss for step in steps[-max(1, len(steps) // 20) :]]
            validated = bool(self.validations)
            result = RunResult(
                parameters=sum(p.numel() for p in self.model.parameters()),
                steps=self.step,
                epochs=round(steps[-1].epoch, 2) if self.settings.steps or stopped_early else self.settings.epochs,
                tokens=self.tokens,
                seconds=round(self.seconds, 1),
                tokens_per_second=round(self.tokens / self.seconds),
                final_loss=sum(recent) / len(recent),
                threads=torch.get_num_threads(),
                processes=self.ranks.world,
                peak_memory=memory_held("VmHWM"),
                device=str(self.device),
                precision=self.settings.precision,
                best_dev_loss=self.best_loss,
                best_step=self.best_step if validated else None,
                validation_seconds=round(self.validating, 1) if validated else None,
                stopped_early=stopped_early,
            )
            self.run.tidy_checkpoints(self.step)
            best = self.run.path / "best"
            if self.settings.patience and (listed := Manifest.find(best)):
                files = {name: read_bytes(best / name) for name in listed.files}
            write_folder(self.run.path / "model", "model", files, replace=True)
            add_files(self.run.path, {"result.json": records.encode(result)}, existing=["metrics.jsonl"])
        self.ranks.wait()
        self.model.eval()
