"""Logging of a run to TensorBoard, Weights & Biases or Trackio while it trains. metrics.jsonl stays the source.

A tracker never stops a run: if it fails, it is switched off with a note.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

from attnlab.errors import AttnlabWarning, UserError

EVERY = 10  # steps between logged ones; those with a validation are always logged
PROJECT = "attnlab"


class _Tracker(Protocol):
    """Takes numbers and texts by name."""

    def log(self, step: int, numbers: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Log what belongs to one step."""

    def close(self) -> None:
        """Write what is left."""


class _TensorBoard:
    """Event files in the folder `tensorboard` of the run."""

    def __init__(self, run: Path, settings: Mapping[str, Any], step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)

    def log(self, step: int, numbers: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Log what belongs to one step."""
        for name, number in numbers.items():
            self.writer.add_scalar(name, number, step)
        for name, text in texts.items():
            self.writer.add_text(name, text, step)

    def close(self) -> None:
        """Write what is left."""
        self.writer.close()


class _Dashboard:
    """Weights & Biases, or Trackio, which has the same interface; offline modes are those of the packages."""

    def __init__(self, package: Any, **options: Any) -> None:
        self.package = package
        with redirect_stdout(StringIO()):
            package.init(project=PROJECT, **options)

    def log(self, step: int, numbers: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Log what belongs to one step."""
        self.package.log({**numbers, **texts}, step=step)

    def close(self) -> None:
        """Write what is left."""
        with redirect_stdout(StringIO()):
            self.package.finish()


def _wandb(run: Path, settings: Mapping[str, Any], step: int) -> _Tracker:
    import wandb

    options = {"dir": str(run), "config": dict(settings), "id": _identity(run), "resume": "allow"}
    return _Dashboard(wandb, name=run.name, settings=wandb.Settings(silent=True), **options)


def _trackio(run: Path, settings: Mapping[str, Any], step: int) -> _Tracker:
    import trackio

    return _Dashboard(trackio, name=f"{run.name}-{_identity(run)[:6]}", config=dict(settings), resume="allow")


def _identity(run: Path) -> str:
    """A name that stays the same when the run is resumed."""
    return hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:16]


_MAKE: dict[str, Callable[[Path, Mapping[str, Any], int], _Tracker]] = {
    "tensorboard": _TensorBoard,
    "wandb": _wandb,
    "trackio": _trackio,
}

_HINTS = {
    "tensorboard": "check that its folder can be written",
    "wandb": "log in with `wandb login` or set WANDB_MODE=offline",
    "trackio": "set TRACKIO_DIR to a folder that can be written",
}


def _warn(message: str) -> None:
    warnings.warn(" ".join(message.split()), AttnlabWarning, stacklevel=2)


class Trackers:
    """The trackers of a run."""

    def __init__(self, trackers: dict[str, _Tracker]) -> None:
        self.trackers = trackers

    def log(self, step: int, row: Mapping[str, Any]) -> None:
        """Log a row of metrics.jsonl, unless it is to be left out."""
        if not self.trackers or (step % EVERY and "dev_loss" not in row):
            return
        named = {f"dev/{key[4:]}" if key.startswith("dev_") else f"train/{key}": value for key, value in row.items()}
        numbers = {key: float(value) for key, value in named.items() if isinstance(value, int | float)}
        texts = {key: value for key, value in named.items() if isinstance(value, str)}
        for name in list(self.trackers):
            self._try(name, lambda tracker: tracker.log(step, numbers, texts))

    def close(self) -> None:
        """Close all trackers."""
        for name in list(self.trackers):
            self._try(name, lambda tracker: tracker.close())

    def _try(self, name: str, action: Callable[[_Tracker], None]) -> None:
        try:
            action(self.trackers[name])
        except Exception as error:  # whatever a service or its package raises must not end the training
            del self.trackers[name]
            _warn(f"{name} failed and is switched off: {error}; metrics.jsonl has everything")


@contextmanager
def tracking(names: Sequence[str], run: Path, settings: Mapping[str, Any], step: int) -> Iterator[Trackers]:
    """Open the named trackers for a run that begins or goes on after a step."""
    with ExitStack() as opened:
        trackers = Trackers({})
        opened.callback(trackers.close)
        for name in names:
            try:
                trackers.trackers[name] = _MAKE[name](run, settings, step)
            except Exception as error:  # whatever a package raises, such as a missing key
                _warn(f"{name} cannot be used: {error}; {_HINTS[name]}")
        yield trackers


def require_packages(names: Sequence[str]) -> None:
    """Raise UserError if the package of a tracker is not installed."""
    from importlib.util import find_spec

    for name in names:
        if find_spec(name) is None:
            raise UserError(f"{name} is not installed: pip install 'attnlab[{name}]'")
