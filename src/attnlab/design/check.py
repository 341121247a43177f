"""Tasks of answer sheets: a teacher asks for a property, a student answers with numbers or expressions, and the property
is tested.

A task has `keys` and `values` and a tolerance, its own or the sheet's. Every answer with the property passes; any other gets
a counterexample. The answer "impossible" passes where impossibility is proved for every query. Numbers mean the decimals as
written, those of NPY files their binary values, and are judged in exact arithmetic. Sheets and answer files as a whole, and
tasks of other kinds: attnlab.course.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attnlab.design import inputs
from attnlab.design.attention import Problem, Scale, softmax
from attnlab.design.conditions import Condition, selected
from attnlab.design.exact import Rows, decimal, dot, rational_rows, read_as
from attnlab.design.expressions import Exact, evaluate, exact_array
from attnlab.design.matrices import layer, project, wanted_rows
from attnlab.design.noisy_keys import blended, noisy, simulate
from attnlab.design.results import Result, number, percent, vector
from attnlab.design.solve import blend, edit_key, reach, select
from attnlab.errors import DataError, UserError, named, unknown

TomlTable = Mapping[str, Any]
Judge = Callable[[Any], "Outcome"]  # of a student's evaluated answer; a malformed one raises UserError
Prepared = tuple[Judge, Callable[[], Result] | None]  # and the solver's verdict on the question, if it has one
_MOST_ROWS = 4  # whose mistakes are reported
_NUMBERS = {"points", "tolerance", "relative", "norm", "alpha", "varying", "weight"}
_WHOLE = {"index", "heads"}
_WORDS = {"name", "ask", "text", "scale", "title", "kind"}
_CONDITIONS = ("sufficient", "necessary")
_COMMON = {"tolerance", "keys", "values", "scale"}
_DECIMAL_COMMA = re.compile(r"[^\[(,]*?(\d+),(\d+)\b(?!\s*,)")  # not within brackets, nor one of several commas


@dataclass(frozen=True)
class Outcome:
    """One task of one student: whether it passed, the points earned and possible, and why.

    `value` is the answer as numbers, by which equal mistakes are counted together; where there is none, `alike` is the
    message without numbers and the student's own words. What is not `marked` could not be judged, and has no points.
    """

    name: str
    passed: bool
    earned: float
    points: float
    message: str
    value: str = ""
    error: float | None = None
    tolerance: float | None = None
    reading: str | None = None
    alike: str = ""
    marked: bool = True


class Task:
    """One question of a sheet, with the settings it inherits; a mistake in the question raises here."""

    def __init__(self, name: str, sheet: TomlTable, own: TomlTable, names: Mapping[str, Exact], folder: Path) -> None:
        self.name, self.sheet, self.own, self.folder = name, sheet, own, folder
        self.read: dict[str, Rows] = {}
        check_settings(own)
        self.ask = str(own["ask"])
        question = ASKS[self.ask]
        known = {"name", "ask", "text", "points", *question.settings, *question.solution}
        if extra := sorted(set(own) - known):
            raise UserError(unknown("setting", inputs.shown(extra[0]), known))
        if missing := [setting for setting in question.needed if setting not in own]:
            choices = f": {' or '.join(_CONDITIONS)}" if missing[0] == "kind" else ""
            hidden = "; the sheet for students has no solutions, so mark with your own" * (
                missing[0] in question.solution
            )
            raise UserError(f"'{missing[0]}' is missing; a task that asks {self.ask} needs it{choices}{hidden}")
        allowed_error = Decimal(self.setting("tolerance", "0.05"))
        exact = self.ask == "number" and allowed_error == 0
        self.tolerance = Fraction(0) if exact else inputs.tolerance(allowed_error)
        self.points = float(own.get("points", 1))
        self.scale: Scale = inputs.scale(self.setting("scale", "none"))
        self.names = dict(names)
        for letter, matrix in (("K", "keys"), ("V", "values")):
            if self.setting(matrix) is not None:
                self.names[letter] = exact_array(self.rows(matrix).exact)
        self.judge, self.solve = question.prepare(self)

    def solvable(self) -> tuple[str | None, str]:
        """Whether the solver finds an answer, in a word and a sentence; None where it is not asked."""
        if self.solve is None:
            return None, ""
        try:
            result = self.solve()
        except UserError as error:
            return "undecided", str(error)
        return result.status, result.statement

    @cached_property
    def _impossible(self) -> Outcome:
        """The answer "impossible", which passes where there is a proof for all queries, however long."""
        if self.solve is None:
            return self.outcome(False, None, "this question cannot be answered with 'impossible'; give numbers")
        try:
            result = self.solve()
        except UserError as error:
            return self.outcome(False, None, str(error))
        passed = result.status == "impossible"
        message = result.statement if passed else f"'impossible' is not proved: {result.statement}"
        if result.status == "solved":
            plain = result.query is not None and result.query.ndim == 1
            message = "'impossible' is not right" + (f": {vector(np.asarray(result.query))} does it" if plain else "")
        return self.outcome(passed, None, message, result.reading)

    def setting(self, name: str, default: Any = None) -> Any:
        """The task's own setting, or the sheet's."""
        return self.own.get(name, self.sheet.get(name, default))

    def rows(self, name: str, *, free_rows: bool = False) -> Rows:
        """A matrix from numbers, a file next to the sheet, or an expression in the sheet's names."""
        if name not in self.read:
            source = self.setting(name)
            if source is None:
                raise DataError(f"'{name}' is missing; give it to the task or to the sheet")
            if isinstance(source, str) and Path(source).suffix.lower() in inputs.FILES:
                self.read[name] = inputs.read(str(self.folder / source), name, free_rows=free_rows)
            else:
                free = free_rows and isinstance(source, list)
                with named(name):
                    rows = _with_free_rows(source, self.names) if free else _evaluated(source, self.names)
                self.read[name] = inputs.matrix(rows, name, free_rows=free_rows)
        return self.read[name]

    def vector(self, name: str, width: int, of: str) -> Rows:
        """One vector of this width."""
        return inputs.vector(self.rows(name), name, width, of)

    def outcome(
        self, passed: bool, error: Fraction | float | None, message: str, reading: str | None = None
    ) -> Outcome:
        """The outcome of this task; where there is an error, it is the message of an answer that passed."""
        outcome = Outcome(self.name, passed, self.points if passed else 0.0, self.points, message, reading=reading)
        if error is None:
            return outcome
        message = f"within {number(float(error))}" if passed else message
        return replace(outcome, message=message, error=float(error), tolerance=float(self.tolerance))

    def mark(self, answer: Any, let: TomlTable) -> Outcome:
        """Judge an answer, or fail it with the reason; `let` holds the student's own names."""
        if isinstance(answer, str) and answer.strip().lower() == "impossible":
            return replace(self._impossible, value="impossible")
        names, broken, comma = dict(self.names), "", _decimal_comma(answer)
        for name, data in let.items():
            try:
                names[name] = named_array(data, names)
            except UserError as error:
                broken += f" ([let] {inputs.shown(name)}: {error})"
        try:
            value = _evaluated(answer, names)
        except UserError as error:
            return self.outcome(False, None, f"{error}{broken}{comma}")
        try:
            return replace(self.judge(value), value=_value(value))
        except UserError as error:
            return self.outcome(False, None, f"{error}{comma}")


def check_settings(settings: TomlTable) -> None:
    """Check the type of every setting of a sheet or task."""
    for name, value in settings.items():
        shown = _shown(value)
        if name in _NUMBERS and not (_is_number(value) and value >= 0):
            raise UserError(f"{name} must be a non-negative number, not {shown}")
        if name in _WHOLE and not (_is_number(value) and isinstance(value, int)):
            raise UserError(f"{name} must be a whole number, not {shown}")
        if name in _WORDS and not isinstance(value, str):
            raise UserError(f"{name} must be text in quotes, not {shown}")
        if name in ("name", "title") and not value.isprintable():
            raise UserError(f"{name} must be one line of text, not {shown}")
        if name in ("indices", "varies") and not (isinstance(value, list) and all(type(j) is int for j in value)):
            raise UserError(f"{name} must be a list of whole numbers, such as [0, 1], not {shown}")


def _is_number(value: Any) -> bool:
    finite = value.is_finite() if isinstance(value, Decimal) else type(value) is int
    return finite and abs(value) < inputs.LARGEST


def _shown(value: Any) -> str:
    """A setting or answer for a message: one short line, however long or deeply nested it is."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a table"
    if isinstance(value, int) and abs(value) > inputs.LARGEST:
        return "a number of more than 100 digits"
    return f"'{inputs.shown(value)}'" if isinstance(value, str) else inputs.shown(value)


def _decimal_comma(answer: Any) -> str:
    """A hint for an answer with what may be a decimal comma."""
    texts = [text for text in (answer if isinstance(answer, list) else [answer]) if isinstance(text, str)]
    comma = next(filter(None, map(_DECIMAL_COMMA.match, texts)), None)
    return f" (a comma separates numbers; a decimal is written {comma[1]}.{comma[2]})" if comma else ""


def _numeric(answer: Any) -> Exact:
    if isinstance(answer, dict):
        raise UserError("the answer is a table; give numbers, or an expression in quotes")
    numbers = exact_array(answer)
    if any(abs(x) > inputs.LARGEST for x in numbers.flat):
        raise UserError(f"the answer has a number beyond {inputs.LARGEST:g}; give smaller ones")
    return numbers


def _shaped(answer: Any, shape: tuple[int, ...]) -> Exact:
    numbers = _numeric(answer)
    if numbers.size == int(np.prod(shape)) and numbers.ndim <= 2 and 1 in (*shape, 0):
        numbers = numbers.reshape(shape)
    if numbers.shape != shape:
        raise UserError(f"the answer has {_counted(numbers.shape)}; give {_counted(shape)}")
    return numbers


def _counted(shape: tuple[int, ...]) -> str:
    return "one number" if np.prod(shape) == 1 else f"{' x '.join(map(str, shape))} numbers"


def _judged(task: Task, problem: Problem, query: list[Fraction], chosen: list[int], which: str = "") -> Outcome:
    """The output of this query against the target; if it fails, in which coordinate, by how much and with what margin."""
    judged = problem.judge(query)
    worst = max(range(len(judged.off)), key=lambda c: abs(judged.off[c]))
    error = abs(judged.off[worst])
    output = [y + x for y, x in zip(problem.y.exact[0], judged.off, strict=True)]
    message = (
        f"{which}the output is {vector(output)} instead of {vector(problem.target)}: off by {number(float(error))} in "
        f"coordinate {worst} (allowed {number(float(task.tolerance))})"
    )
    outside = np.setdiff1d(np.arange(len(problem.keys)), chosen)
    if chosen and len(outside):
        scores = [dot(row, query) for row in problem.k.exact]
        lead = problem.factor * float(min(scores[i] for i in chosen) - max(scores[i] for i in outside))
        top = max(scores)
        mass = softmax(problem.factor * np.array([float(x - top) for x in scores]))[outside].sum()
        message += f"; the margin to the other keys is {number(lead)}, and they hold {percent(mass)} of the weight"
    return task.outcome(judged.within, error, message, problem.reading)


def _together(rows: list[Outcome]) -> Outcome:
    """The outcome of the row with the largest error, with the messages of all rows that failed."""
    worst = max(rows, key=lambda o: (not o.passed, o.error or 0.0))
    failed = [row.message for row in rows if not row.passed]
    more = [f"and {len(failed) - _MOST_ROWS} more rows"] if len(failed) > _MOST_ROWS else []
    return replace(worst, message="; ".join([*failed[:_MOST_ROWS], *more])) if failed else worst


def _query(task: Task) -> Prepared:
    """A query for one target, which is a value, a mixture of values or a given point; or one query for every value."""
    keys, values = inputs.pair(task.rows("keys"), task.rows("values"))
    n, d = keys.floats.shape
    chosen: list[int] = []
    solve: Callable[..., Result]
    if task.ask == "reach":
        targets = [task.vector("target", values.floats.shape[1], of="value")]
        solve = partial(reach, keys, values, targets[0])
    elif task.ask in ("select", "identity"):
        index = None if task.ask == "identity" else inputs.index(task.own["index"], n)
        chosen = list(range(n)) if index is None else [index]
        targets = [values.take([j]) for j in chosen]
        solve = partial(select, keys, values, index)
    else:
        chosen = inputs.indices(task.own.get("indices"), n)
        w = inputs.weights(task.rows("weights") if "weights" in task.own else None, len(chosen))
        targets = [inputs.mixture(w, values.take(chosen))]
        solve = partial(blend, keys, values, chosen, w)
    problems = [Problem(keys, values, target, task.tolerance, task.scale) for target in targets]

    def judge(answer: Any) -> Outcome:
        if task.ask != "identity":
            return _judged(task, problems[0], list(_shaped(answer, (d,))), chosen)
        queries = _shaped(answer, (n, d))
        return _together([_judged(task, problems[j], list(q), [j], f"row {j}: ") for j, q in enumerate(queries)])

    return judge, partial(solve, tolerance=task.tolerance, scale=task.scale)


def _project(task: Task) -> Prepared:
    bases = {name: task.rows(name) for name in ("keep", "forget")}
    keep, forget = (exact_array(rows.exact) for rows in bases.values())
    if keep.shape[1] != forget.shape[1]:
        raise UserError("keep and forget have different widths; give both the same")

    def judge(answer: Any) -> Outcome:
        matrix = _shaped(answer, (keep.shape[1], keep.shape[1]))
        off = np.abs(np.vstack([keep @ matrix.T - keep, forget @ matrix.T])).max(axis=1)
        worst = int(off.argmax())
        what = f"keeps row {worst} of `keep`" if worst < len(keep) else f"forgets row {worst - len(keep)} of `forget`"
        message = f"M {what} only within {number(float(off[worst]))} (allowed {number(float(task.tolerance))})"
        return task.outcome(off[worst] <= task.tolerance, off[worst], message, read_as(**bases))

    return judge, partial(project, **bases, tolerance=task.tolerance)


def _edit_key(task: Task) -> Prepared:
    keys, values = inputs.pair(task.rows("keys"), task.rows("values"))
    n, d = keys.floats.shape
    query = task.vector("query", d, of="key")
    j = inputs.index(task.own["index"], n)
    target = task.vector("target", values.floats.shape[1], of="value") if "target" in task.own else values.take([j])
    norm = None if "norm" not in task.own else inputs.positive(float(task.own["norm"]), "norm")

    def judge(answer: Any) -> Outcome:
        new = list(_shaped(answer, (d,)))
        size = float(np.linalg.norm([float(x) for x in new]))
        if norm is not None and abs(size - norm) > 1e-6 * norm:
            return task.outcome(False, None, f"the key has norm {number(size)} instead of {number(norm)}")
        edited = rational_rows([new if i == j else row for i, row in enumerate(keys.exact)], keys.reading)
        problem = Problem(edited, values, target, task.tolerance, task.scale)
        return _judged(task, problem, query.exact[0], [])

    solve = partial(edit_key, keys, values, query, j, target, norm=norm, tolerance=task.tolerance, scale=task.scale)
    return judge, solve


def _layer(task: Task) -> Prepared:
    tokens, outputs = task.rows("tokens"), task.rows("outputs", free_rows=True)
    wanted, d, m = wanted_rows(tokens, outputs), tokens.floats.shape[1], outputs.floats.shape[1]

    def judge(answer: Any) -> Outcome:
        if not isinstance(answer, dict) or set(answer) != {"Q", "K", "V"}:
            raise UserError("give three matrices, as a table with Q, K and V")
        w_q, w_k, w_v = (np.atleast_2d(_numeric(answer[name])) for name in "QKV")
        if w_q.ndim != 2 or w_q.shape != w_k.shape or w_q.shape[1] != d or w_v.shape != (m, d) or not w_q.size:
            raise UserError(f"Q and K need {d} columns and equal heights, V {m} x {d} numbers")
        x = exact_array(tokens.exact)
        queries = x @ w_q.T
        keys, values = (rational_rows((x @ w.T).tolist(), tokens.reading) for w in (w_k, w_v))
        problems = {i: Problem(keys, values, outputs.take([i]), task.tolerance, task.scale) for i in wanted}
        return _together([_judged(task, problems[i], list(queries[i]), [], f"row {i}: ") for i in wanted])

    return judge, partial(layer, tokens, outputs, tolerance=task.tolerance, scale=task.scale)


def _noise(task: Task) -> Prepared:
    """The root mean square error of the mean over heads, simulated."""
    means, values = (rows.floats for rows in inputs.pair(task.rows("keys"), task.rows("values")))
    chosen = blended(task.own.get("indices", [0, 1]), len(means))
    alpha, varying = (float(task.own.get(name, default)) for name, default in (("alpha", 1e-6), ("varying", 0.0)))
    keys = noisy(means, chosen, alpha, varying, task.own.get("varies"), task.scale)

    def judge(answer: Any) -> Outcome:
        rows = np.atleast_2d(_numeric(answer))
        heads = int(task.own.get("heads", len(rows)))
        queries = _shaped(rows, (heads, means.shape[1])).astype(np.float64)
        design = simulate(keys, values, chosen, {"answer": queries}, 100_000, 0)[0]
        s, error = design.simulated, float(np.sqrt(design.squared_error))
        message = (
            f"under this noise the root mean square error is {number(error)} (allowed {number(float(task.tolerance))}): "
            f"the weight on v_{chosen[0]} has mean {number(s.mean)} and standard deviation {number(s.sd)}, and is off "
            f"1/{len(chosen)} by more than half of it in {percent(s.failures)} of samples"
        )
        return task.outcome(error <= task.tolerance, error, message)

    return judge, None


def _number(task: Task) -> Prepared:
    """Numbers within `tolerance`, plus the share `relative` of each."""
    wanted = named_array(task.own["value"], task.names)
    share = Fraction(task.own.get("relative", 0))
    within = f"tolerance {number(float(task.tolerance))}" + (f", relative {number(float(share))}" if share else "")

    def judge(answer: Any) -> Outcome:
        pairs = zip(_shaped(answer, wanted.shape).flat, wanted.flat, strict=True)
        errors = [(abs(x - y), task.tolerance + share * abs(y), x) for x, y in pairs]
        error, allowed, worst = max(errors, key=lambda row: row[0] - row[1])
        return task.outcome(error <= allowed, error, f"{_value(worst)} is not the right number ({within})")

    return judge, None


def _condition(task: Task) -> Prepared:
    """Conditions A q >= b that must imply a weight of the key, or follow from it."""
    weight, kind = task.own.get("weight", Decimal("0.99")), task.own["kind"]
    selection = selected(task.rows("keys"), task.own["index"], weight, task.scale)
    reading = read_as(keys=selection.keys)
    if kind not in _CONDITIONS:
        raise UserError(unknown("kind", inputs.shown(kind), _CONDITIONS))
    name = f"a_{selection.index} >= {number(float(selection.weight))}"

    def judge(answer: Any) -> Outcome:
        if not isinstance(answer, dict) or set(answer) != {"A", "b"}:
            raise UserError("give conditions A q >= b, as a table with A (a row per condition) and b")
        rows = np.atleast_2d(_numeric(answer["A"]))
        if rows.ndim != 2 or rows.shape[1] != selection.keys.floats.shape[1] or not rows.size:
            raise UserError(f"A has the shape {' x '.join(map(str, rows.shape))}; give rows of the width of a key")
        right = _numeric(answer["b"])
        least = list(np.broadcast_to(right, len(rows)) if right.ndim == 0 else _shaped(right, (len(rows),)))
        if selection.combination is not None:
            return task.outcome(False, None, "no query satisfies the question; the answer is 'impossible'")
        conditions = rows.tolist()
        if kind == "sufficient":
            right_message, wrong = f"it implies {name}", f"it does not imply {name}"
            why, query = selection.refute_sufficient(conditions, least)
        else:
            right_message, wrong = f"{name} implies it, and it implies that the key leads", f"{name} does not imply it"
            why, query = selection.refute_necessary(conditions, least)
            if not why:
                wrong = "it is necessary, but this task also asks that the key leads"
                why, query = selection.too_weak(conditions, least)
        if not why:
            return task.outcome(True, None, right_message, reading)
        shown = ""
        if query is not None:
            shown = f"; at q = {vector(query)} the weight is {number(selection.weight_of(query))}"
        return task.outcome(False, None, f"{wrong}: {why}{shown}", reading)

    def solve() -> Result:
        condition = Condition(selection)
        return Result("condition", condition.status, condition.statement(), reading=reading)

    return judge, solve


class Question(NamedTuple):
    """What a task may ask for, and its settings."""

    prepare: Callable[[Task], Prepared]
    needed: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    solution: tuple[str, ...] = ()  # settings that students never see

    @property
    def settings(self) -> frozenset[str]:
        """The settings that are part of the question."""
        return frozenset(_COMMON).union(self.needed, self.optional) - set(self.solution)


ASKS = {
    "select": Question(_query, ("index",)),
    "identity": Question(_query),
    "blend": Question(_query, (), ("indices", "weights")),
    "average": Question(_query, (), ("indices",)),
    "reach": Question(_query, ("target",)),
    "project": Question(_project, ("keep", "forget")),
    "edit-key": Question(_edit_key, ("query", "index"), ("target", "norm")),
    "layer": Question(_layer, (), ("tokens", "outputs")),
    "noise": Question(_noise, (), ("indices", "alpha", "varying", "varies", "heads")),
    "number": Question(_number, ("value",), ("relative",), solution=("value",)),
    "condition": Question(_condition, ("index", "kind"), ("weight",)),
}


def read_names(sheet: TomlTable, path: Path) -> dict[str, Exact]:
    """The names that a sheet defines for its tasks and answers."""
    names: dict[str, Exact] = {}
    for name, data in table(sheet, "vectors", path).items():
        with named(f"vectors: {inputs.shown(name)}"):
            names[name] = named_array(data, names)
    return names


def table(content: TomlTable, name: str, path: Path) -> TomlTable:
    """A table inside a TOML file; empty if there is none."""
    part = content.get(name, {})
    if not isinstance(part, dict):
        raise UserError(f"{path.name}: {name} must be a table; write [{name}] and one name = value per line")
    return part


def _value(answer: Any) -> str:
    """An evaluated answer for reading, the same for equal numbers."""
    if isinstance(answer, dict):
        return ", ".join(f"{inputs.shown(name)} = {_value(part)}" for name, part in answer.items())
    rows = np.asarray(answer)
    if rows.ndim == 0:
        return f"{float(rows):.10g}"
    return vector(rows) if rows.ndim == 1 else "; ".join(map(_value, rows[:_MOST_ROWS]))


def named_array(data: Any, names: Mapping[str, Exact]) -> Exact:
    """The numbers of a name, from numbers or an expression of other names."""
    value = _evaluated(data, names)
    if isinstance(value, dict):
        raise UserError("a name is a table; give numbers, or an expression in quotes")
    return exact_array(value)


def _with_free_rows(source: list[Any], names: Mapping[str, Exact]) -> list[list[Any]]:
    """Rows of outputs, of which some may be free: "free" or nan throughout."""

    def is_free(row: Any) -> bool:
        nan = isinstance(row, list) and row and all(isinstance(x, Decimal) and x.is_nan() for x in row)
        return row == "free" or bool(nan)

    rows = [None if is_free(row) else _evaluated(row, names) for row in source]
    width = max((np.size(row) for row in rows if row is not None), default=1)
    return [[Decimal("nan")] * width if row is None else list(np.atleast_1d(row)) for row in rows]


def _evaluated(answer: Any, names: Mapping[str, Exact]) -> Any:
    """The value of a number, an expression, a list of them, or a table of those."""
    if isinstance(answer, str):
        return evaluate(answer, names)
    if isinstance(answer, dict):
        return {name: _evaluated(part, names) for name, part in answer.items()}
    if isinstance(answer, list):
        parts = [_evaluated(part, names) for part in answer]
        if any(isinstance(part, dict) for part in parts):
            raise UserError("a list holds a table; give numbers, or expressions in quotes")
        if len({np.shape(part) for part in parts}) > 1:
            raise UserError("the rows have different lengths; make them equal")
        return np.stack(parts) if parts else np.array([], dtype=object)
    if not _is_number(answer):
        raise UserError(
            f"{_shown(answer)} is not an answer; give numbers, finite and below {inputs.LARGEST:g}, or a quoted expression"
        )
    return exact_array(Fraction(answer))


def read_toml(path: Path) -> TomlTable:
    """Read a TOML file, with numbers as written."""
    return parse(inputs.read_text(path, "", "a TOML file"), path)


def parse(text: str, path: Path) -> TomlTable:
    """The content of a TOML file, with numbers as written."""
    try:
        return tomllib.loads(text, parse_float=decimal)
    except RecursionError:
        raise DataError(f"{path.name} is nested too deeply; give at most a list of rows") from None
    except ValueError as error:
        fix = "put expressions in quotes and lists in brackets"
        raise DataError(f"{path.name} is not TOML: {str(error).splitlines()[0]}; {fix}") from None
