"""A run while it trains: a bar with loss, rate and remaining time, plain lines without a terminal, and trackers.

Trackers are TensorBoard, Weights & Biases and Trackio. They never stop a run: one that fails is switched off with a note,
and metrics.jsonl stays the source. Knows nothing about models.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from attnlab.errors import AttnlabWarning, UserError
from attnlab.machine import is_main_process
from attnlab.store.listing import SMOOTHING, share_done
from attnlab.store.runs import Step

LINES = 5  # per stage, without a terminal
_BAR = 16  # columns of the bar
PAUSE = 10.0  # seconds between lines about the share of a text that is tokenised
EVERY = 10  # steps between those that are logged to trackers; those with a validation are always logged
PROJECT = "attnlab"  # in trackers


def silent(_: object) -> None:
    """Ignore the argument."""


@dataclass(frozen=True)
class Show:
    """Callbacks of a stage: lines for people, and for a progress bar every step and the share of a text made into tokens."""

    line: Callable[[str], None] = silent
    step: Callable[[Step], None] = silent
    reading: Callable[[float], None] = silent


QUIET = Show()


def clock(seconds: float) -> str:
    """Format seconds as minutes and seconds."""
    return f"{int(seconds // 60)}:{int(seconds % 60):02d}"


def say(console: Console, line: str) -> None:
    """Print a line verbatim: paths may contain markup, and must not be wrapped."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


class Meter:
    """Smoothed loss, rate and remaining time, updated at every step."""

    def __init__(self) -> None:
        self.loss = self.tokens_per_second = self.left = 0.0
        self.dev = ""  # the last validation
        self._total = self._weight = 0.0  # of an exponential average of the losses
        self._first: Step | None = None

    def update(self, step: Step) -> None:
        """Update with one step."""
        self._total = SMOOTHING * self._total + step.loss
        self._weight = SMOOTHING * self._weight + 1
        self.loss = self._total / self._weight  # bias correction, as in Adam
        self.dev = validation(step) or self.dev
        if self._first is None:
            self._first = step
            return
        seconds = max(step.seconds - self._first.seconds, 1e-9)
        self.tokens_per_second = (step.tokens - self._first.tokens) / seconds
        done = max(step.progress - self._first.progress, 1e-9)
        self.left = seconds * (1 - step.progress) / done

    def __str__(self) -> str:
        losses = f"loss {self.loss:.3f}" + (f"  {self.dev}" if self.dev else "")
        if not self.tokens_per_second:  # one step is too little to measure the rate
            return losses
        return f"{clock(self.left)} left  {losses}  {self.tokens_per_second:,.0f} tokens/s"


def validation(step: Step) -> str:
    """Format what a validation found; empty for a step without one."""
    if step.dev_loss is None:
        return ""
    right = f", {100 * step.dev_accuracy:.1f} % right" if step.dev_accuracy is not None else ""
    return f"dev loss {step.dev_loss:.3f}{right}"


@contextmanager
def display(label: str, console: Console | None = None) -> Iterator[Show]:
    """Show the progress of a stage; with several processes, only that of the main one."""
    console = console or Console()
    if not is_main_process():
        yield QUIET
    elif console.is_terminal or console.is_jupyter:
        with _bar(label, console) as show:
            yield show
    else:
        yield _lines(label, console)


class _Shortened(ProgressColumn):
    """The meter on one line; a narrow terminal cuts its end."""

    def __init__(self) -> None:
        super().__init__(table_column=Column(no_wrap=False))  # the column that becomes narrower

    def render(self, task: Task) -> Text:
        """Show the meter."""
        return Text(task.fields["meter"], no_wrap=True, overflow="ellipsis")


@contextmanager
def _bar(label: str, console: Console) -> Iterator[Show]:
    columns = (TextColumn("{task.description}"), BarColumn(_BAR), _Shortened())
    meter = Meter()
    with Progress(*columns, console=console, refresh_per_second=4) as progress:
        bar = progress.add_task(label, total=1.0, meter="")

        def step(state: Step) -> None:
            meter.update(state)
            progress.update(bar, completed=state.progress, meter=f"{share_done(state.progress):>4}  {meter}")
            if state.sample is not None:
                say(progress.console, _sampled(label, state))

        def reading(share: float) -> None:
            progress.update(bar, completed=share if share < 1 else 0.0, meter="tokenising, once" if share < 1 else "")

        yield Show(lambda line: say(progress.console, f"{label}: {line}"), step, reading)
        progress.update(bar, completed=1.0)


def _lines(label: str, console: Console) -> Show:
    meter = Meter()
    shown = [0]

    def step(state: Step) -> None:
        meter.update(state)
        if state.progress * LINES >= shown[0] and meter.tokens_per_second:
            shown[0] = int(state.progress * LINES) + 1
            say(console, f"{label}: {share_done(state.progress):>5}  {meter}")
        elif state.dev_loss is not None:
            say(console, f"{label}: {share_done(state.progress):>5}  step {state.step:,}: {validation(state)}")
        if state.sample is not None:
            say(console, _sampled(label, state))

    read = [time.monotonic() + PAUSE]

    def reading(share: float) -> None:
        if share < 1 and time.monotonic() > read[0]:
            read[0] = time.monotonic() + PAUSE
            say(console, f"{label}: tokenising, once: {share_done(share)}")

    return Show(lambda line: say(console, f"{label}: {line}"), step, reading)


def _sampled(label: str, step: Step) -> str:
    return f"{label}: sample after step {step.step:,}: {' '.join((step.sample or '').split())}"


# Trackers


@dataclass(frozen=True)
class _Tracker:
    """Where numbers and texts by name are logged: a function for those of a step, and one that writes what is left."""

    log: Callable[[int, Mapping[str, float], Mapping[str, str]], None]
    close: Callable[[], None]


def _tensorboard(run: Path, settings: Mapping[str, Any], step: int) -> _Tracker:
    """Event files in the folder `tensorboard` of the run."""
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)

    def log(step: int, numbers: Mapping[str, float], texts: Mapping[str, str]) -> None:
        for name, number in numbers.items():
            writer.add_scalar(name, number, step)
        for name, text in texts.items():
            writer.add_text(name, text, step)

    return _Tracker(log, writer.close)


def _wandb(run: Path, settings: Mapping[str, Any], step: int) -> _Tracker:
    """Weights & Biases, with its files in the folder of the run."""
    import wandb

    quiet = wandb.Settings(silent=True)
    return _dashboard(wandb, settings, name=run.name, dir=str(run), id=_identity(run), settings=quiet)


def _trackio(run: Path, settings: Mapping[str, Any], step: int) -> _Tracker:
    """Trackio, which knows runs by their names only."""
    import trackio

    return _dashboard(trackio, settings, name=f"{run.name}-{_identity(run)[:6]}")


def _identity(run: Path) -> str:
    """A name that stays the same when the run is resumed."""
    return hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:16]


def _dashboard(package: Any, config: Mapping[str, Any], **options: Any) -> _Tracker:
    """A run in a package with the interface of Weights & Biases; offline modes are those of the package."""

    def close() -> None:
        with redirect_stdout(StringIO()):
            package.finish()

    with redirect_stdout(StringIO()):
        package.init(project=PROJECT, config=dict(config), resume="allow", **options)
    return _Tracker(lambda step, numbers, texts: package.log({**numbers, **texts}, step=step), close)


# How to open each tracker, and what to do if that fails.
_TRACKERS: dict[str, tuple[Callable[[Path, Mapping[str, Any], int], _Tracker], str]] = {
    "tensorboard": (_tensorboard, "check that its folder can be written"),
    "wandb": (_wandb, "log in with `wandb login` or set WANDB_MODE=offline"),
    "trackio": (_trackio, "set TRACKIO_DIR to a folder that can be written"),
}


@contextmanager
def tracking(
    names: Sequence[str], run: Path, settings: Mapping[str, Any], step: int
) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
    """Open the named trackers for a run that begins or goes on after a step; yield what logs a row of metrics.jsonl."""
    trackers: dict[str, _Tracker] = {}

    def note(message: str) -> None:
        warnings.warn(" ".join(message.split()), AttnlabWarning, stacklevel=3)

    def each(action: Callable[[_Tracker], object]) -> None:
        for name, tracker in list(trackers.items()):
            try:
                action(tracker)
            except Exception as error:  # whatever a service or its package raises must not end the training
                del trackers[name]
                note(f"{name} failed and is switched off: {error}; metrics.jsonl has everything")

    def log(step: int, row: Mapping[str, Any]) -> None:
        if not trackers or (step % EVERY and "dev_loss" not in row):
            return
        named = {f"dev/{key[4:]}" if key.startswith("dev_") else f"train/{key}": value for key, value in row.items()}
        numbers = {key: float(value) for key, value in named.items() if isinstance(value, int | float)}
        texts = {key: value for key, value in named.items() if isinstance(value, str)}
        each(lambda tracker: tracker.log(step, numbers, texts))

    for name in names:
        open_tracker, advice = _TRACKERS[name]
        try:
            trackers[name] = open_tracker(run, settings, step)
        except Exception as error:
            note(f"{name} cannot be used: {error}; {advice}")
    try:
        yield log
    finally:
        each(lambda tracker: tracker.close())


def require_packages(names: Sequence[str]) -> None:
    """Raise UserError if the package of a tracker is not installed."""
    for name in names:
        if find_spec(name) is None:
            raise UserError(f"{name} is not installed: pip install 'attnlab[{name}]'")
