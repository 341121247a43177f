"""The training loop for every task and mechanism.

Batches hold about the same number of tokens in examples of similar length, instead of padding to the block. All
randomness follows from the seed and the epoch, so that a killed run resumes from its last checkpoint with exactly the
losses it would have had. Under torchrun, each process takes its share of the same batches.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from attnlab import ops, optim
from attnlab.config import ModelConfig, RunConfig, TrainConfig
from attnlab.errors import CheckpointError, Diverged, Interrupted
from attnlab.folders import add_files, disk, read_json, reporting_damage, to_json, write_folder
from attnlab.kernels import vocabulary
from attnlab.machine import cores, memory_held
from attnlab.model import LanguageModel, load_weights, model_files, read_tensors, to_bytes
from attnlab.processes import Ranks
from attnlab.runs import FORMAT, MetricsMark, Run
from attnlab.taps import eval_mode
from attnlab.tasks import Example, Task
from attnlab.tokenizers import Tokenizer

IGNORED = -100  # ignored target


@dataclass(frozen=True)
class Step:
    """The record of one step."""

    step: int
    progress: float  # 0 to 1
    epoch: float
    loss: float
    rate: float  # learning rate as a share of its peak
    tokens: int  # since the start, without padding
    seconds: float  # since the start, without interruptions


def retain_freed_memory() -> None:
    """Have glibc retain freed memory: mapping large tensors anew at every step is expensive."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    trim_threshold, mmap_threshold = -1, -3
    mallopt(mmap_threshold, 32 * 2**20)  # glibc's maximum
    mallopt(trim_threshold, 2**31 - 1)


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
    """Group indices into batches of `rows` in random order, regardless of length; an incomplete last batch is dropped.

    As in the course reports. It costs padding to the longest example per batch, about twice the tokens of a corpus of
    sentences, in the blocks; the head is computed for real tokens only.
    """
    shuffled = rng.permutation(count).tolist()
    batches = [shuffled[at : at + rows] for at in range(0, count, rows)]
    return batches[:-1] if len(batches) > 1 and len(batches[-1]) < rows else batches


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


class SummedLoss(nn.Module):
    """The loss of a batch, summed over its targets; positions without a target are not computed where possible."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the summed negative log probability of all targets."""
        counted = targets != IGNORED
        hidden, aims = self.model.hidden(ids, wanted=counted), targets[counted]
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


class Trainer:
    """Trains a model on a task."""

    def __init__(
        self, run: Run, model: LanguageModel, tokenizer: Tokenizer, task: Task, config: RunConfig, ranks: Ranks
    ) -> None:
        self.run, self.model, self.tokenizer, self.task, self.ranks = run, model, tokenizer, task, ranks
        self.settings: TrainConfig = config.train
        self.order_seed = config.seed if self.settings.order_seed < 0 else self.settings.order_seed
        self.optimizers = optim.make_optimizers(model, self.settings)
        self.step = self.epoch = self.position = self.tokens = 0
        self.seconds = 0.0
        self.saved = time.monotonic()  # when the last checkpoint was written
        if ranks.world > 1 and (config.model.dropout or config.model.dropout_of_attention):
            torch.manual_seed(config.seed + 1000 * ranks.rank)

    # Checkpoints

    def checkpoint(self) -> None:
        """Save everything needed for an exact resume."""
        states = self._generator_states()
        if self.ranks.first:
            files = model_files(self.model, self.tokenizer)
            files["optimizer.safetensors"] = to_bytes(optim.state_tensors(self.optimizers))
            files["rng.safetensors"] = to_bytes(states)
            counters = {key: getattr(self, key) for key in self._COUNTERS}
            state = {"format": FORMAT, **counters, "metrics": asdict(self.run.metrics_mark())}
            files["state.json"] = json.dumps(state).encode()
            self.run.save_checkpoint(self.step, files)
        self.ranks.wait()
        self.saved = time.monotonic()

    _COUNTERS = ("step", "epoch", "position", "tokens", "seconds")

    def _generator_states(self) -> dict[str, Tensor]:
        state = torch.get_rng_state()
        if self.ranks.world == 1:
            return {"0": state}
        states = [torch.empty_like(state) for _ in range(self.ranks.world)]
        distributed.all_gather(states, state)
        return {str(rank): value for rank, value in enumerate(states)}

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
                self.run.rewind_metrics(self.step, mark)
            return damaged
        if damaged:
            raise CheckpointError(
                f"no checkpoint of {self.run.path} is intact ({damaged[0]}); to train from the beginning, remove the folder"
                f" {self.run.path / 'checkpoints'}"
            )
        if self.ranks.first:
            self.run.rewind_metrics()
        return damaged

    def _restore(self, folder: Path) -> MetricsMark | None:
        """Restore a checkpoint; return its mark of the metrics file, None in older ones."""
        state = read_json(folder / "state.json")
        if state.get("format") != FORMAT:
            raise CheckpointError(
                f"{folder} has checkpoint format {state.get('format')}, but this version reads {FORMAT}"
            )
        with reporting_damage(folder / "state.json"):
            mark = MetricsMark(**state["metrics"]) if state.get("metrics") else None
        for key in self._COUNTERS:
            if not isinstance(state.get(key), int | float):
                raise CheckpointError(f"{folder / 'state.json'} has no number '{key}': the checkpoint is damaged")
            setattr(self, key, state[key])
        load_weights(self.model, read_tensors(folder / "model.safetensors"), folder)
        optim.load_state(self.optimizers, read_tensors(folder / "optimizer.safetensors"))
        self._restore_generator(folder / "rng.safetensors")
        return mark

    def _restore_generator(self, path: Path) -> None:
        """Restore torch's generator; a process that did not exist before keeps its own."""
        states = read_tensors(path)
        if "0" not in states:
            raise CheckpointError(f"{path} has no generator state: the checkpoint is damaged")
        if str(self.ranks.rank) in states:
            try:
                torch.set_rng_state(states[str(self.ranks.rank)])
            except (RuntimeError, TypeError) as error:
                raise CheckpointError(f"{path} has no generator state ({error}): the checkpoint is damaged") from None

    # The loop

    def fit(self, watch: Callable[[Step], None]) -> None:
        """Train to the end, and write the model and the result."""
        summed_loss: nn.Module = SummedLoss(self.model)
        if self.ranks.world > 1:
            summed_loss = DistributedDataParallel(summed_loss)
        self._compile()
        self.model.train()
        with _stop_requests() as received, self._metrics_file() as metrics:
            started = time.perf_counter() - self.seconds
            for batch, progress, epoch in self._batches():
                rate = optim.rate_at(progress, self.settings)
                loss = self.train_step(summed_loss, batch, rate)
                self.step += 1
                overdue = time.monotonic() - self.saved > 60 * self.settings.checkpoint_minutes
                loss, stop, save = self.ranks.total(loss, bool(received), overdue)
                self.seconds = time.perf_counter() - started
                now = Step(self.step, progress, epoch, loss, rate, self.tokens, round(self.seconds, 3))
                if self.ranks.first:
                    self._record(now, metrics)
                    watch(now)
                if not math.isfinite(loss):
                    raise Diverged(f"the loss is {loss} at step {self.step}: train again with a lower --train.lr")
                if stop:
                    self._stop(received)
                if save or self.step % self.settings.checkpoint_every == 0:
                    self.checkpoint()
        del summed_loss
        self._finish()

    def group(self, examples: Sequence[Example], rng: np.random.Generator) -> list[list[int]]:
        """Group the indices of examples into batches, by rows or by tokens."""
        if self.settings.rows_per_batch:
            return make_rows(len(examples), self.settings.rows_per_batch, rng)
        return make_batches([len(one.ids) for one in examples], self.settings.tokens_per_batch, rng)

    def train_step(self, summed_loss: nn.Module, batch: list[Example], rate: float) -> float:
        """Update the weights once; return this process's share of the mean loss over the targets of the whole batch."""
        ranks = self.ranks
        self.tokens += sum(example.end - 1 for example in batch)
        targets_in_all = sum(example.end - example.start for example in batch)
        mine = batch[ranks.rank :: ranks.world]
        ids, targets = collate(mine or batch[:1], self.tokenizer.pad)
        loss = summed_loss(ids, targets) * (1.0 if mine else 0.0) / targets_in_all
        (loss * ranks.world).backward()  # DistributedDataParallel averages the gradients
        if self.settings.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        optim.set_rates(self.optimizers, rate)
        for optimizer in self.optimizers.values():
            optimizer.step()
            optimizer.zero_grad()
        return float(loss.item())

    def _record(self, step: Step, metrics: TextIO) -> None:
        with disk(self.run.path):
            metrics.write(json.dumps(step.__dict__) + "\n")
            metrics.flush()

    def _compile(self) -> None:
        """Compile everything that is compiled on first use, so that it does not count as training time."""
        ids = torch.zeros(1, 2, dtype=torch.long)
        with eval_mode(self.model), torch.no_grad():
            SummedLoss(self.model)(ids, ids)

    def _batches(self) -> Iterator[tuple[list[Example], float, float]]:
        """Yield the remaining batches with their progress and epoch."""
        epochs = self.settings.epochs
        while self.epoch < epochs:
            rng = np.random.default_rng([self.order_seed, self.epoch])
            examples = self.task.examples(rng)
            batches = self.group(examples, rng)
            for position in range(self.position, len(batches)):
                epoch = self.epoch + position / len(batches)
                if epoch >= epochs:
                    return
                self.position = position + 1
                # The middle of the step: neither the first nor the last step has rate 0.
                middle = (epoch + min(epochs, epoch + 1 / len(batches))) / 2
                yield [examples[index] for index in batches[position]], middle / epochs, epoch
            self.epoch, self.position = self.epoch + 1, 0

    @contextmanager
    def _metrics_file(self) -> Iterator[TextIO]:
        path = self.run.path / "metrics.jsonl" if self.ranks.first else Path(os.devnull)
        with disk(path), path.open("a", encoding="utf-8") as stream:
            yield stream

    def _stop(self, received: list[int]) -> None:
        self.checkpoint()
        reason = "SIGTERM" if received[:1] == [signal.SIGTERM] else "Ctrl-C"
        command = f"attnlab resume {shlex.quote(str(self.run.path))}"
        raise Interrupted(f"stopped by {reason} at step {self.step}; all is saved. Resume with: {command}")

    def _finish(self) -> None:
        """Write the model and the result (first process only)."""
        if self.ranks.first:
            rows = self.run.metrics()
            recent = [row["loss"] for row in rows[-max(1, len(rows) // 20) :]]
            result = {
                "steps": self.step,
                "epochs": self.settings.epochs,
                "tokens": self.tokens,
                "seconds": round(self.seconds, 1),
                "tokens_per_second": round(self.tokens / self.seconds),
                "final_loss": sum(recent) / len(recent),
                "parameters": sum(p.numel() for p in self.model.parameters()),
                "threads": torch.get_num_threads(),
                "processes": self.ranks.world,
                "peak_memory": memory_held("VmHWM"),  # of this process, libraries included
            }
            self.run.tidy_checkpoints(self.step)
            write_folder(self.run.path / "model", "model", model_files(self.model, self.tokenizer), replace=True)
            add_files(self.run.path, {"result.json": to_json(result)}, existing=["metrics.jsonl"])
        self.ranks.wait()
        self.model.eval()
