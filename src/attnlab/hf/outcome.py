"""What came out of a fine-tuning, in plain numbers: per text, per epoch. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import Any


@dataclass(frozen=True)
class Scored:
    """One table as a model sees it: the probability of every label for every text, in the order of the table."""

    gold: tuple[int, ...]
    probabilities: tuple[tuple[float, ...], ...]
    loss: float

    @cached_property
    def predicted(self) -> tuple[int, ...]:
        """The likeliest label of each text; -1, which is nobody's, where the probabilities are no numbers."""
        return tuple(
            max(range(len(row)), key=row.__getitem__) if all(map(isfinite, row)) else -1 for row in self.probabilities
        )

    @cached_property
    def right(self) -> tuple[bool, ...]:
        """Whether each text got its label."""
        return tuple(said == meant for said, meant in zip(self.predicted, self.gold, strict=True))

    @property
    def accuracy(self) -> float:
        """The share of texts that got their label."""
        return sum(self.right) / len(self.right)


@dataclass(frozen=True)
class Epoch:
    """One pass over the training table; its own loss and accuracy are counted while the weights change, with dropout."""

    epoch: int
    train_loss: float
    train_accuracy: float
    dev_loss: float
    dev_accuracy: float
    seconds: float  # of training, the look at the validation table left out


@dataclass(frozen=True)
class Trial:
    """One strength of the bag-of-words baseline, judged within the training table."""

    strength: float
    accuracy: float


@dataclass(frozen=True)
class Outcome:
    """A finished fine-tuning. `dev` is the best epoch's; `test` is there if a model was kept and a test table given."""

    labels: tuple[str, ...]
    dev: Scored
    test: Scored | None
    epochs: tuple[Epoch, ...]
    best_epoch: int  # counted from 1; 0 where there are no epochs
    seconds: float
    steps: int = 0
    tokens: int = 0  # read in training, padding left out
    padding: int = 0  # places computed for nothing
    facts: Mapping[str, Any] = field(default_factory=dict)
    trials: Sequence[Trial] = ()

    @property
    def accuracy(self) -> float:
        """Validation accuracy of the best epoch."""
        return self.dev.accuracy

    @property
    def right(self) -> tuple[bool, ...]:
        """Whether the best epoch is right, for every text of the validation table in its order."""
        return self.dev.right

    @property
    def curve(self) -> list[float]:
        """Validation accuracy, epoch by epoch."""
        return [one.dev_accuracy for one in self.epochs]
