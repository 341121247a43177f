"""Vectors and matrices from files, text and arrays; every mistake is one line with its fix."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attnlab.design.attention import Array, Scale
from attnlab.errors import DataError, UserError

FILES = (".csv", ".npy", ".json", ".txt", ".tsv")
LARGEST = 1e100


def read(source: str, what: str, *, free_rows: bool = False) -> Array:
    """A matrix, one vector a row, from CSV, NPY or JSON, or written out: `1,0;0,1` or `[[1,0],[0,1]]`."""
    return matrix(_raw(source, what), what, free_rows=free_rows)


def _raw(source: str, what: str) -> Any:
    path = Path(source)
    if path.suffix.lower() not in FILES and not _is_file(path):
        return _json(source, what) if source.lstrip().startswith("[") else _lines(source.split(";"), what)
    try:
        if path.suffix.lower() == ".npy":
            return np.load(path, allow_pickle=False)
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(
            f"{what}: there is no file {source}; give a CSV, NPY or JSON file, or write it out as '1,0;0,1'"
        ) from None
    except (ValueError, OSError, EOFError) as error:
        raise DataError(
            f"{what}: {source} cannot be read ({str(error).splitlines()[0]}); save it as CSV with one row a vector"
        ) from None
    if path.suffix.lower() == ".json":
        return _json(text, f"{what}: {source}")
    return _lines(text.splitlines(), f"{what}: {source}")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # numbers written out are longer than a name may be
        return False


def numbers(source: str, what: str) -> Array:
    """One vector: `1,0,0`, or a file with one row or one column."""
    found = read(source, what)
    if min(found.shape) != 1:
        raise DataError(f"{what} must be one vector, not {found.shape[0]} x {found.shape[1]} numbers; give one row")
    return found.ravel()


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{what} is not JSON ({error.msg} at character {error.pos}); write [[1, 0], [0, 1]]") from None
    except (ValueError, RecursionError):
        raise DataError(f"{what} is JSON too deep or with a number too long; write [[1, 0], [0, 1]]") from None


def _lines(lines: Sequence[str], what: str) -> list[list[float]]:
    rows = []
    for place, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        cells = line.replace("\t", ",").split(",") if "," in line or "\t" in line else line.split()
        try:
            rows.append([float(cell) for cell in cells])
        except ValueError:
            bad = next(cell.strip() for cell in cells if not _is_number(cell))
            raise DataError(
                f"{what}: '{bad}' in row {place} is not a number; rows are numbers with commas, no header"
            ) from None
    return rows


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def matrix(data: ArrayLike, what: str, *, free_rows: bool = False) -> Array:
    """A finite matrix with at least one row; a single vector becomes one row. With `free_rows` a row of NaN is
    allowed.
    """
    rows: Any = data
    if isinstance(rows, list | tuple) and rows and all(isinstance(r, list | tuple) for r in rows):
        widths = [len(r) for r in rows]
        if len(set(widths)) > 1:
            odd = next(i for i, w in enumerate(widths) if w != widths[0])
            raise DataError(
                f"{what}: row 0 has length {widths[0]} and row {odd} has length {widths[odd]}; make them equal"
            )
    try:
        if np.iscomplexobj(rows):
            raise DataError(f"{what} has complex numbers; give real ones")
        found = np.array(rows, dtype=np.float64)
    except DataError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise DataError(f"{what} must be numbers, one vector a row; write [[1, 0], [0, 1]]") from None
    if found.ndim == 1 and found.size:
        found = found[None, :]
    if found.ndim != 2 or not found.size:
        raise DataError(
            f"{what} has no rows; give at least one vector"
            if not found.size
            else f"{what} must be a matrix, not {found.ndim}-dimensional"
        )
    bad = ~np.isfinite(found)
    if free_rows:
        bad &= ~np.isnan(found).all(axis=1, keepdims=True)
    if bad.any():
        r, c = (int(x) for x in np.argwhere(bad)[0])
        raise DataError(f"{what}: row {r}, column {c} is {found[r, c]}; replace it by a finite number")
    sizes = np.abs(found).max(axis=1)  # of rows: a tiny number beside others is harmless
    odd = sizes[(sizes > LARGEST) | ((sizes > 0) & (sizes < 1 / LARGEST))]
    if len(odd):
        raise DataError(
            f"{what}: a row of size {odd[0]:g} has squares that no float can hold; scale it to between 1e-100 and 1e100"
        )
    return found


def pair(keys: ArrayLike, values: ArrayLike) -> tuple[Array, Array]:
    """Keys and values, one value a key."""
    k, v = matrix(keys, "keys"), matrix(values, "values")
    if len(k) != len(v):
        raise DataError(f"there are {len(k)} keys and {len(v)} values; give one value for every key")
    return k, v


def target(data: ArrayLike, width: int) -> Array:
    """The wanted output."""
    found = matrix(data, "target").ravel()
    if len(found) != width:
        raise UserError(f"the target has {len(found)} numbers and a value has {width}; give {width}")
    return found


def index(j: int, n: int) -> int:
    """A row number."""
    if isinstance(j, bool | str) or not float(j).is_integer():
        raise UserError(f"index {j} is not a whole number; choose from 0 to {n - 1}")
    if not 0 <= j < n:
        raise UserError(f"index {j} is out of range: there are {n} keys; choose from 0 to {n - 1}")
    return int(j)


def indices(chosen: Sequence[int] | None, n: int) -> list[int]:
    """Distinct row numbers; all of them when none are given."""
    if chosen is None:
        return list(range(n))
    if not len(chosen):
        raise UserError("no indices are given; name at least one key, such as 0,1")
    found = [index(j, n) for j in chosen]
    if len(set(found)) < len(found):
        twice = next(j for j in found if found.count(j) > 1)
        raise UserError(f"index {twice} is given twice; name every key once and give it its whole weight")
    return found


def weights(given: ArrayLike | None, n: int) -> Array:
    """Positive weights that sum to 1; equal when none are given."""
    if given is None:
        return np.full(n, 1.0 / n)
    w = matrix(given, "weights").ravel()
    if len(w) != n:
        raise UserError(f"there are {len(w)} weights for {n} indices; give one weight for every index")
    if w.min() <= 0:
        raise UserError(f"weight {w.min():g} is not positive; leave its index out instead")
    if abs(w.sum() - 1) > 1e-6:
        shown = ",".join(f"{x:.4g}" for x in w / w.sum())
        raise UserError(f"the weights sum to {w.sum():.6g}, not 1; divide by their sum: {shown}")
    return w / w.sum()


def tolerance(eps: float) -> float:
    """How far the output may be off."""
    if not (np.isfinite(eps) and eps > 0):
        raise UserError(f"tolerance {eps:g} must be a positive number, such as 0.01")
    return float(eps)


def seconds(given: float) -> float:
    """Computing time."""
    if not (np.isfinite(given) and given >= 0):
        raise UserError(f"seconds {given:g} must be a number from 0 on, such as 5")
    return float(given)


def scale(name: str) -> Scale:
    """`none` or `sqrt`."""
    known: dict[str, Scale] = {"none": "none", "sqrt": "sqrt"}
    if name not in known:
        raise UserError(f"scale '{name}' is unknown; choose none or sqrt (scores over the square root of the width)")
    return known[name]
