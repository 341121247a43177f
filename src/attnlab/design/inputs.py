"""Vectors, matrices and settings from files, text and arrays; every error is one line that names the fix."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attnlab.design.attention import Scale
from attnlab.design.exact import Reading, Rows, binary, decimal, dot, rationals
from attnlab.errors import DataError, UserError, cut
from attnlab.reading import open_file, read_bytes

FILES = (".csv", ".npy", ".json", ".txt", ".tsv")
LARGEST = 1e100
_MOST = 20_000_000  # numbers in an array file
Data = ArrayLike | Rows
Real = float | Decimal | Fraction


def read(source: str, what: str, *, free_rows: bool = False) -> Rows:
    """A matrix, one vector per row, from CSV, NPY or JSON, or written out: `1,0;0,1` or `[[1,0],[0,1]]`.

    Text means the decimals as written, NPY the binary values.
    """
    return matrix(_raw(source, what), what, free_rows=free_rows)


def _raw(source: str, what: str) -> Any:
    path = Path(source)
    if path.suffix.lower() not in FILES and not _is_file(path):
        return _json(source, what) if source.lstrip().startswith("[") else _lines(source.split(";"), what)
    if path.suffix.lower() == ".npy":
        return _npy(path, what)
    text = read_text(path, f"{what}: ", "a CSV, NPY or JSON file, or write it out as '1,0;0,1'")
    if path.suffix.lower() == ".json":
        return _json(text, f"{what}: {shown(source)}")
    return _lines(text.splitlines(), f"{what}: {shown(source)}")


def read_text(path: Path, where: str, fix: str) -> str:
    """A UTF-8 text file of a reasonable size."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except FileNotFoundError:
        raise DataError(f"{where}there is no file {shown(path)}; give {fix}") from None
    except UnicodeDecodeError:
        raise DataError(f"{where}{shown(path)} is not UTF-8 text; save it as UTF-8") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or _first_line(error)
        raise DataError(f"{where}{shown(path)} cannot be read ({why}); give {fix}") from None


def _npy(path: Path, what: str) -> Any:
    """An array file: memory-mapped, so that its header cannot claim more than the file holds, and never unpickled."""
    try:
        open_file(path).close()  # a pipe would block numpy
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{what}: there is no file {shown(path)}; give a CSV, NPY or JSON file") from None
    except Exception as error:  # numpy evaluates the header, and a forged one may raise anything
        raise DataError(
            f"{what}: {shown(path)} cannot be read ({_first_line(error)}); save it as CSV with one vector per row"
        ) from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iuf" or array.size > _MOST:
        raise DataError(
            f"{what}: {shown(path)} must be one array of at most {_MOST:,} real numbers; save it as CSV instead"
        )
    with np.errstate(all="ignore"):  # what float64 cannot hold becomes infinite, which is refused later
        return np.array(array, dtype=np.float64)


def _first_line(error: Exception) -> str:
    return shown((str(error).splitlines() or [type(error).__name__])[0], 120)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # numbers written out can be longer than a file name may be
        return False


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text, parse_float=decimal, parse_int=decimal, parse_constant=decimal)
    except json.JSONDecodeError as error:
        raise DataError(f"{what} is not JSON ({error.msg} at character {error.pos}); write [[1, 0], [0, 1]]") from None
    except (ValueError, RecursionError):
        raise DataError(f"{what} is JSON too deep or with a number too long; write [[1, 0], [0, 1]]") from None


def _lines(lines: Sequence[str], what: str) -> list[list[Decimal]]:
    rows = []
    for place, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        cells = line.replace("\t", ",").split(",") if "," in line or "\t" in line else line.split()
        row = []
        for cell in cells:
            try:
                row.append(decimal(cell.strip()))
            except ValueError as error:
                raise DataError(
                    f"{what}: '{shown(cell)}' in row {place} {error}; rows are numbers with commas, no header"
                ) from None
        rows.append(row)
    return rows


def shown(text: object, most: int = 60) -> str:
    """Any input as one short line, for a message."""
    line = str(text)[: most + 1].strip()
    line = line if line.isprintable() else ascii(line)[1:-1]
    return cut(line, most)


def matrix(data: Data, what: str, *, free_rows: bool = False) -> Rows:
    """A finite matrix with at least one row; a single vector becomes one row. With `free_rows` a row may be all NaN.

    Floats and numpy arrays mean their binary values; text, Decimal and Fraction mean the numbers as written. Rows were
    checked when they were read.
    """
    if isinstance(data, Rows):
        return data
    rows = _rows(data, what)
    floats = rows.floats
    bad = ~np.isfinite(floats)
    if free_rows:
        bad &= ~np.isnan(floats).all(axis=1, keepdims=True)
    if bad.any():
        r, c = (int(x) for x in np.argwhere(bad)[0])
        raise DataError(f"{what}: row {r}, column {c} is {floats[r, c]}; replace it by a finite number")
    sizes = np.abs(floats).max(axis=1)  # of rows: a tiny number next to larger ones is harmless
    odd = sizes[(sizes > LARGEST) | ((sizes > 0) & (sizes < 1 / LARGEST))]
    if len(odd):
        raise DataError(
            f"{what}: the squares of a row of size {odd[0]:g} exceed the range of floats; scale it to between 1e-100 and 1e100"
        )
    if rows.reading == "decimal" and any(any(rows.exact[i]) for i in np.flatnonzero(sizes == 0)):
        raise DataError(f"{what}: a row is smaller than any float, and not 0; scale it to between 1e-100 and 1e100")
    return rows


def _rows(data: ArrayLike, what: str) -> Rows:
    if isinstance(data, list | tuple) and all(isinstance(row, list | tuple) for row in data):
        widths = [len(row) for row in data if isinstance(row, list | tuple)]
        odd = next((i for i, width in enumerate(widths) if width != widths[0]), None)
        if odd is not None:
            lengths = f"row 0 has length {widths[0]} and row {odd} has length {widths[odd]}"
            raise DataError(f"{what}: {lengths}; make them equal")
    try:
        numbers = np.asarray(data)
        if numbers.dtype.kind in "OU":
            numbers = np.vectorize(_number, otypes=[object])(np.array(data, dtype=object))
        floats = np.array(numbers, dtype=np.float64) if numbers.dtype.kind != "c" else np.zeros(0)
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        raise DataError(f"{what} must be numbers, one vector per row; write [[1, 0], [0, 1]]") from None
    if numbers.dtype.kind == "c":
        raise DataError(f"{what} has complex numbers; give real ones")
    if floats.ndim == 1 and floats.size:
        floats, numbers = floats[None, :], numbers[None, :]
    if floats.ndim != 2 or not floats.size:
        shape = f"must be a matrix, not {floats.ndim}-dimensional; give one vector per row"
        raise DataError(f"{what} {shape if floats.size else 'has no rows; give at least one vector'}")
    if numbers.dtype.kind != "O":
        return binary(floats)
    reading: Reading = "binary" if any(isinstance(x, float | np.floating) for x in numbers.flat) else "decimal"
    return Rows(floats, reading, lambda: rationals(numbers.tolist()))


def _number(x: Any) -> Any:
    """One exact number from a list or object array."""
    if isinstance(x, str):
        return decimal(x.strip())
    if isinstance(x, Decimal):
        return decimal(str(x))
    return x if isinstance(x, int | float | Fraction) else float(x)


def pair(keys: Data, values: Data) -> tuple[Rows, Rows]:
    """Keys and values, one value per key."""
    k, v = matrix(keys, "keys"), matrix(values, "values")
    if len(k.floats) != len(v.floats):
        raise DataError(f"there are {len(k.floats)} keys and {len(v.floats)} values; give one value for every key")
    return k, v


def vector(data: Data, what: str, width: int | None = None, of: str = "") -> Rows:
    """One vector, given as a row or as a column, as one row."""
    rows = matrix(data, what)
    n, d = rows.floats.shape
    if min(n, d) != 1:
        raise DataError(f"{what} must be one vector, not {n} x {d} numbers; give one row")
    if width is not None and n * d != width:
        raise UserError(f"the {what} has {n * d} numbers and a {of} has {width}; give {width}")
    if n == 1:
        return rows
    return Rows(rows.floats.reshape(1, -1), rows.reading, lambda: [[x for (x,) in rows.exact]])


def whole(text: str) -> int:
    """A whole number from text, written as such: neither 1.0 nor 1e0."""
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", text):
        raise ValueError(f"'{shown(text)}' is not a whole number")
    return int(text)


def index(j: int, n: int) -> int:
    """A row number."""
    whole = isinstance(j, int | np.integer) or (isinstance(j, float | np.floating) and float(j).is_integer())
    if isinstance(j, bool) or not whole:
        raise UserError(f"index {shown(j)} is not a whole number; choose from 0 to {n - 1}")
    if not 0 <= j < n:
        raise UserError(f"index {shown(j, 20)} is out of range: there are {n} keys; choose from 0 to {n - 1}")
    return int(j)


def indices(chosen: Sequence[int] | None, n: int) -> list[int]:
    """Distinct row numbers; by default all."""
    if chosen is None:
        return list(range(n))
    if not len(chosen):
        raise UserError("no indices are given; name at least one key, such as 0,1")
    rows = [index(j, n) for j in chosen]
    if twice := [j for j in rows if rows.count(j) > 1]:
        raise UserError(f"index {twice[0]} is given twice; name every key once, with its total weight")
    return rows


def weights(data: Data | None, n: int) -> Rows:
    """Positive weights that sum to 1; by default equal."""
    if data is None:
        return Rows(np.full((1, n), 1.0 / n), "decimal", lambda: [[Fraction(1, n)] * n])
    w = vector(data, "weights")
    if w.floats.size != n:
        raise UserError(f"there are {w.floats.size} weights for {n} indices; give one weight for every index")
    if w.floats.min() <= 0:
        raise UserError(f"weight {w.floats.min():g} is not positive; leave its index out instead")
    return normalised(w)


def normalised(w: Rows) -> Rows:
    """Rows of weights that sum to 1 up to rounding, divided by their sum."""
    sums = w.floats.sum(axis=1, keepdims=True)
    if np.abs(sums - 1).max() > 1e-6:
        r = int(np.abs(sums - 1).argmax())
        shown = ",".join(f"{x:.4g}" for x in w.floats[r][:8] / sums[r]) + (",..." if w.floats.shape[1] > 8 else "")
        raise UserError(f"the weights sum to {sums[r, 0]:.6g}, not 1; divide by their sum: {shown}")
    return Rows(w.floats / sums, w.reading, lambda: [[x / sum(row) for x in row] for row in w.exact])


def mixture(w: Rows, values: Rows) -> Rows:
    """The weighted means of the values, one per row of weights."""
    return Rows(
        w.floats @ values.floats,
        values.reading,
        lambda: [[dot(row, column) for column in zip(*values.exact, strict=True)] for row in w.exact],
    )


def tolerance(eps: Real) -> Fraction:
    """The maximum error of the output."""
    positive(float(eps), "tolerance", 0.01)
    return Fraction(eps)


def positive(value: float, name: str, example: float = 1) -> float:
    """A positive setting of a reasonable size."""
    if not 1 / LARGEST <= value <= LARGEST:
        raise UserError(f"{name} {value:g} must be a positive number from 1e-100 to 1e100, such as {example:g}")
    return float(value)


def seconds(limit: float) -> float:
    """A time limit."""
    if not (np.isfinite(limit) and limit >= 0):
        raise UserError(f"seconds {limit:g} must be a non-negative number, such as 5")
    return float(limit)


def scale(name: Scale) -> Scale:
    """`none` or `sqrt`."""
    if name not in ("none", "sqrt"):
        raise UserError(f"scale '{name}' is unknown; choose none or sqrt (scores over the square root of the width)")
    return name
