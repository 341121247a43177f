"""Training progress: a bar with loss, rate and remaining time; plain lines outside of terminals and notebooks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from attnlab.lm.stages import QUIET, Show
from attnlab.machine import is_main_process
from attnlab.store.listing import SMOOTHING, share_done

if TYPE_CHECKING:
    from attnlab.store.runs import Step

LINES = 5  # per stage, without a terminal
PAUSE = 10.0  # seconds between lines about the share of a text that is tokenised


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
        return f"{losses}  {self.tokens_per_second:,.0f} tokens/s  {clock(self.left)} left"


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


@contextmanager
def _bar(label: str, console: Console) -> Iterator[Show]:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[meter]}"), TimeElapsedColumn())
    meter = Meter()
    with Progress(*columns, console=console, refresh_per_second=4) as progress:
        bar = progress.add_task(label, total=1.0, meter="")

        def step(state: Step) -> None:
            meter.update(state)
            progress.update(bar, completed=state.progress, meter=str(meter))
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
