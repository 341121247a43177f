"""Checks on the numbers that every test gets: that they are finite numbers, and enough of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.errors import UserError

Numbers = NDArray[np.float64]


def require(condition: bool, message: str) -> None:
    """Raise a UserError unless the condition holds."""
    if not condition:
        raise UserError(message)


def numbers(values: ArrayLike, what: str, dimensions: tuple[int, ...] = (1,)) -> Numbers:
    """The values as float64; there must be at least one, and all must be finite."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} must be numbers, in rows of one length: {error}") from None
    require(array.ndim in dimensions, f"{what} must have {' or '.join(map(str, dimensions))} axes, not {array.ndim}")
    require(array.size > 0, f"{what} must hold at least one value")
    broken = np.flatnonzero(~np.isfinite(array))
    if len(broken):
        raise UserError(
            f"{what} must be finite, but {len(broken):,} of {array.size:,} values are not, the first at position"
            f" {broken[0] + 1:,}: count a run that diverged as failed, or train all runs again with a lower learning rate"
        )
    return array


def paired_values(a: ArrayLike, b: ArrayLike, what: str, dimensions: tuple[int, ...] = (1,)) -> tuple[Numbers, Numbers]:
    """Two tables of the same shape whose entries are pairs."""
    first, second = numbers(a, f"{what} of A", dimensions), numbers(b, f"{what} of B", dimensions)
    require(
        first.shape == second.shape,
        f"{what} of A and B must belong together one by one, but there are {_shape_of(first)} and {_shape_of(second)}",
    )
    return first, second


def paired_answers(a: ArrayLike, b: ArrayLike, dimensions: tuple[int, ...] = (1,)) -> tuple[Numbers, Numbers]:
    """Right and wrong of two models on the same questions, as 1 and 0."""
    first, second = paired_values(a, b, "the answers", dimensions)
    for name, values in (("A", first), ("B", second)):
        require(
            bool(((values == 0) | (values == 1)).all()), f"the answers of {name} must be right or wrong (True or False)"
        )
    return first, second


def _shape_of(values: Numbers) -> str:
    return " x ".join(f"{size:,}" for size in values.shape)


def summed(table: Numbers, clusters: Sequence[int] | None) -> Numbers:
    """The rows of a table, summed by cluster where clusters are given."""
    if clusters is None:
        return table
    require(len(clusters) == len(table), f"there must be one cluster per item: {len(table):,}, not {len(clusters):,}")
    _, number = np.unique(np.asarray(clusters), return_inverse=True)
    return np.column_stack([np.bincount(number, weights=column) for column in table.T])


def check_level(value: float, what: str) -> None:
    """Check that a probability lies strictly between 0 and 1."""
    require(0 < value < 1, f"{what} must lie between 0 and 1, not {value}")


def check_count(value: Any, what: str, least: int = 1) -> int:
    """A whole number of at least `least`."""
    require(isinstance(value, int) and not isinstance(value, bool), f"{what} must be a whole number, not {value!r}")
    require(value >= least, f"{what} must be at least {least}, not {value}")
    return int(value)
