"""The training loop for every task and mechanism.

All randomness follows from the seed and the epoch, so that a killed run resumes from its last checkpoint with exactly the
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor, distributed, nn

from attnlab import ops
from attnlab.config import ModelConfig, RunConfig
from attnlab.errors import CheckpointError, DataError, Diverged, Interrupted, one_line
from attnlab.inside.taps import eval_mode
from attnlab.kernels import vocabulary
from attnlab.lm import optim
from attnlab.lm.batches import (
    COST_OF_A_PART,
    IGNORED,
    DevSet,
    Epoch,
    collate,
    make_batches,
    make_epoch,
    number_documents,
    split_by_length,
)
from attnlab.lm.decoding import sample
from attnlab.lm.devices import autocast
from attnlab.lm.evaluate import answer_all, examine
from attnlab.lm.model import LanguageModel, load_weights, model_files, read_tensors, to_bytes
from attnlab.lm.processes import Ranks, distribute, no_sync
from attnlab.lm.progress import tracking
from attnlab.lm.tokenizers import Tokenizer
from attnlab.machine import cores, memory_held, release_freed_memory
from attnlab.store import records
from attnlab.store.folders import Manifest, add_files, os_errors, read_bytes, write_folder
from attnlab.store.runs import FORMAT, MetricsMark, Run, RunResult, Step
from attnlab.tasks import Example, Task

_VALIDATE_EVERY = 1000  # steps, in long epochs
_TRAINED_PER_VALIDATED = 20  # tokens; a validated one costs a third, so that validation takes less than 2 % of the time
_PROMPT = 8  # held-out tokens that a sample begins with


def choose_threads(config: ModelConfig, asked: int) -> int:
    """Choose the CPU threads of this process: one for tiny models, which two slow down, else its share of the cores."""
    if asked or "OMP_NUM_THREADS" in os.environ:
        return asked or max(1, int(os.environ["OMP_NUM_THREADS"]))
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return 1 if config.n_embd < 96 else max(1, cores() // here)


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


@dataclass
class _Place:
    """How far a training is."""

    step: int = 0
    epoch: int = 0
    position: int = 0  # batches of the epoch that are done
    tokens: int = 0
    seconds: float = 0.0  # in all
    validating: float = 0.0  # seconds of validation
    validations: int = 0
    validated_at: int = 0  # tokens at the last validation
    best_step: int = 0
    best_loss: float | None = None
    stale: int = 0  # validations since the best


@dataclass(frozen=True)
class _State:
    """A checkpoint apart from its tensors: state.json."""

    format: int
    place: _Place
    metrics: MetricsMark
    scaler: dict[str, float] | None


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
        self.average = optim.Average(model, self.settings.ema) if self.settings.ema else None
        self.dev = dev.spread(self.settings.validate_tokens) if dev else None
        self.at = _Place()
        self.saved = time.monotonic()  # when the last checkpoint was written
        self._made: tuple[int, Epoch] | None = None  # the number and the batches of the epoch made last
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
            files["state.json"] = records.encode(_State(FORMAT, self.at, self.run.metrics_mark(), scaler))
            self.run.save_checkpoint(self.at.step, files)
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
            every = [state.clone() for _ in range(self.ranks.world)]
            if self.ranks.world > 1:
                distributed.all_gather(every, state)
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
        self.at = state.place
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
        stopped, examples = False, list[Example]()
        with _stop_requests() as received, self._recording() as record:
            started = time.perf_counter() - self.at.seconds
            for batch in self._batches():
                if stopped := 0 < self.settings.patience <= self.at.stale:
                    break
                rate = optim.rate_at(batch.progress, self.settings, batch.middle)
                loss, norm = self.train_step(batch.examples, rate)
                self.at.step, examples = self.at.step + 1, batch.examples
                overdue = time.monotonic() - self.saved > 60 * self.settings.checkpoint_minutes
                loss, stop, save = self.ranks.total(loss, bool(received), overdue)
                self.at.seconds = time.perf_counter() - started
                reached = batch.progress, batch.epoch, loss, rate, self.at.tokens, round(self.at.seconds, 3)
                now = Step(self.at.step, *reached, norm if math.isfinite(norm) else None)
                if math.isfinite(loss) and self._is_due(batch):
                    now = self._validate(now, batch.final)
                    self.at.seconds = time.perf_counter() - started
                if self.ranks.first:
                    record(now)
                    watch(now)
                if not math.isfinite(loss):
                    raise Diverged(f"the loss is {loss} at step {self.at.step}: train again with a lower --train.lr")
                if stop:
                    self._stop(received)
                if save or self.at.step % self.settings.checkpoint_every == 0:
                    self.checkpoint()
        if stopped:
            note(f"stopped early: {self.at.stale} validations without improvement since step {self.at.best_step}")
        self._finish(stopped, examples)

    # Validation

    def _is_due(self, batch: _Batch) -> bool:
        """Whether to validate after a batch; always after the last."""
        if self.dev is None or batch.final:
            return self.dev is not None
        if every := self.settings.validate_every:
            return self.at.step % every == 0
        ended = batch.ends_epoch or self.at.step % _VALIDATE_EVERY == 0
        return ended and self.at.tokens - self.at.validated_at >= _TRAINED_PER_VALIDATED * self.dev.cost

    def _validate(self, now: Step, final: bool) -> Step:
        """Validate, keep the best model, and return the step with what was found; the last has a sample in any case."""
        assert self.dev is not None
        began = time.perf_counter()
        with eval_mode(self.model), torch.no_grad(), self._averaged():
            loss = self._dev_loss(self.dev)
            accuracy = self._dev_accuracy(self.dev)
            self.at.validations, self.at.validated_at = self.at.validations + 1, self.at.tokens
            every = self.settings.sample_every
            text = self._sample(self.dev) if every and (final or self.at.validations % every == 0) else None
            if math.isfinite(loss) and (self.at.best_loss is None or loss < self.at.best_loss):
                self.at.best_loss, self.at.best_step, self.at.stale = loss, self.at.step, 0
                files = model_files(self.model, self.tokenizer)
                if self.ranks.first:
                    write_folder(self.run.path / "best", "model", files, replace=True)
            else:
                self.at.stale += 1
        self.at.validating += time.perf_counter() - began
        return replace(now, dev_loss=loss, dev_accuracy=accuracy, sample=text)

    def _dev_loss(self, dev: DevSet) -> float:
        """The mean loss per held-out target, computed by all processes together."""
        lengths = [len(example.ids) for example in dev.examples]
        batches = make_batches(lengths, self.settings.tokens_per_batch, np.random.default_rng(0))
        total = 0.0
        for batch in batches[self.ranks.rank :: self.ranks.world]:
            total += float(self._loss(self.loss, [dev.examples[index] for index in batch]))
        return self.ranks.total(total)[0] / sum(example.end - example.start for example in dev.examples)

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
            asked = dev.questions[self.at.validations % len(dev.questions)]
            return f"{asked.question} {answer_all(self.model, self.tokenizer, [asked.question])[0]}"
        example = dev.examples[self.at.validations % len(dev.examples)]
        prompt = self.task.prompt(example, self.tokenizer, min(_PROMPT, self.model.config.block_size // 4))
        return sample(self.model, self.tokenizer, prompt, 1, seed=self.at.validations)[0]

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
        self.at.tokens += sum(example.end - 1 for example in batch)
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
                self.average.update(self.at.step + 1)
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
            return split_by_length(batch, most, COST_OF_A_PART * world)  # each computes a share of the tokens
        return [batch[at : at + most] for at in range(0, len(batch), most)]

    def _loss(self, module: Callable[..., Tensor], examples: Sequence[Example]) -> Tensor:
        """The summed loss of examples."""
        batch = (*collate(examples, self.tokenizer.pad), number_documents(examples))
        placed = [tensor.to(self.device, non_blocking=True) for tensor in batch if tensor is not None]
        with autocast(self.device, self.settings.precision):
            return module(*placed)

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

    def make_epoch(self) -> Epoch:
        """Make the examples and batches of this epoch, once; a task that makes no examples of its data is an error."""
        if self._made is None or self._made[0] != self.at.epoch:
            self._made = self.at.epoch, make_epoch(self.task, self.config, self.at.epoch)
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
        while self.at.epoch < epochs:
            examples, batches = self.make_epoch()
            for position in range(self.at.position, len(batches)):
                epoch = self.at.epoch + position / len(batches)
                if epoch >= epochs or 0 < steps <= self.at.step:
                    return
                self.at.position = position + 1
                # The middle of the step: neither the first nor the last step has rate 0.
                middle = (epoch + min(epochs, epoch + 1 / len(batches))) / 2
                ended = self.at.epoch + self.at.position / len(batches)
                yield _Batch(
                    examples=[examples[index] for index in batches[position]],
                    progress=(self.at.step + 0.5) / steps if steps else middle / epochs,
                    epoch=epoch,
                    middle=middle,
                    ends_epoch=self.at.position == len(batches),
                    final=self.at.step + 1 == steps if steps else ended >= epochs,
                )
            self.at.epoch, self.at.position = self.at.epoch + 1, 0

    @contextmanager
    def _recording(self) -> Iterator[Callable[[Step], None]]:
        """Open metrics.jsonl and the trackers in the first process; yield what writes a step to them."""
        path = self.run.path / "metrics.jsonl" if self.ranks.first else Path(os.devnull)
        logs = self.settings.loggers if self.ranks.first else ()
        with (
            os_errors(path),
            path.open("ab") as stream,
            tracking(logs, self.run.path, self.config.flat(), self.at.step) as log,
        ):

            def record(step: Step) -> None:
                with os_errors(self.run.path):
                    stream.write(msgspec.json.encode(step.row()) + b"\n")
                    stream.flush()
                log(step.step, step.row())

            yield record

    def _stop(self, received: list[int]) -> None:
        self.checkpoint()
        reason = signal.Signals(received[0]).name if received else "a signal"
        reason = {"SIGINT": "Ctrl-C"}.get(reason, reason)
        command = f"attnlab resume {shlex.quote(str(self.run.path))}"
        raise Interrupted(f"stopped by {reason} at step {self.at.step}; all is saved. Resume with: {command}")

    def _finish(self, stopped_early: bool, examples: list[Example]) -> None:
        """Write the model and the result (first process only)."""
        with self._averaged():
            if not examples:  # resumed after the last step
                epoch, batches = self.make_epoch()
                examples = [epoch[index] for index in batches[0]]
            with eval_mode(self.model), torch.no_grad():  # the last step may have been too large
                finite = math.isfinite(self._loss(self.loss, examples))
            if not finite or not all(weight.isfinite().all() for weight in self.model.parameters()):
                raise Diverged(
                    f"the model is not finite after step {self.at.step}: train again with a lower --train.lr"
                )
            files = model_files(self.model, self.tokenizer)
        if self.ranks.first:
            steps = self.run.metrics()
            recent = [step.loss for step in steps[-max(1, len(steps) // 20) :]]
            validated = bool(self.at.validations)
            result = RunResult(
                parameters=sum(p.numel() for p in self.model.parameters()),
                steps=self.at.step,
                epochs=round(steps[-1].epoch, 2) if self.settings.steps or stopped_early else self.settings.epochs,
                tokens=self.at.tokens,
                seconds=round(self.at.seconds, 1),
                tokens_per_second=round(self.at.tokens / self.at.seconds),
                final_loss=sum(recent) / len(recent),
                threads=torch.get_num_threads(),
                processes=self.ranks.world,
                peak_memory=memory_held("VmHWM"),
                device=str(self.device),
                precision=self.settings.precision,
                best_dev_loss=self.at.best_loss,
                best_step=self.at.best_step if validated else None,
                validation_seconds=round(self.at.validating, 1) if validated else None,
                stopped_early=stopped_early,
            )
            self.run.tidy_checkpoints(self.at.step)
            best = self.run.path / "best"
            # Answers may still get better while their loss rises; text does not.
            rose = self.at.stale > 0 and self.dev is not None and not self.dev.questions
            if (self.settings.patience or rose) and (listed := Manifest.find(best)):
                files = {name: read_bytes(best / name) for name in listed.files}
            write_folder(self.run.path / "model", "model", files, replace=True)
            add_files(self.run.path, {"result.json": records.encode(result)}, existing=["metrics.jsonl"])
        self.ranks.wait()
        self.model.eval()
