"""Sheets and answers: a teacher asks for a property, a student gives any numbers or expressions, and the property is
tested.

A sheet is TOML: `keys` and `values`, a tolerance, and tasks. Whatever has the property passes; what has it not gets
the counterexample. The answer "impossible" passes where it is proved.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.design import inputs
from attnlab.design.attention import Array, Problem, Scale, factor
from attnlab.design.edits import edit_key
from attnlab.design.expressions import evaluate
from attnlab.design.layers import layer
from attnlab.design.noisy_keys import Keys, simulate
from attnlab.design.projection import project
from attnlab.design.results import Result, number, vector
from attnlab.design.solve import blend, reach, select
from attnlab.errors import DataError, UserError, unknown

NUMBERS = {"points", "tolerance", "norm", "alpha", "varying"}
WHOLE = {"index", "heads"}
WORDS = {"name", "ask", "text", "scale", "title"}
NEEDED = {"select": ("index",), "edit-key": ("query", "index"), "reach": ("target",), "project": ("keep", "forget")}
COMMON = {"name", "ask", "points", "tolerance", "keys", "values", "text", "scale"}


def _checked(who: str, settings: Mapping[str, Any]) -> None:
    """Every setting of a sheet or task is of its kind."""
    for name, given in settings.items():
        is_number = isinstance(given, int | float) and not isinstance(given, bool) and abs(given) < inputs.LARGEST
        if name in NUMBERS and not (is_number and given >= 0):
            raise UserError(f"{who}: {name} must be a number from 0 on, not {given!r}")
        if name in WHOLE and not (is_number and isinstance(given, int)):
            raise UserError(f"{who}: {name} must be a whole number, not {given!r}")
        if name in WORDS and not isinstance(given, str):
            raise UserError(f"{who}: {name} must be text in quotes, not {given!r}")
        if name == "indices" and not (isinstance(given, list) and all(type(j) is int for j in given)):
            raise UserError(f"{who}: indices must be a list of whole numbers, such as [0, 1], not {given!r}")


@dataclass(frozen=True)
class Outcome:
    """One task: passed or not, and why not."""

    name: str
    passed: bool
    points: float
    error: float | None
    tolerance: float
    message: str


@dataclass(frozen=True)
class Marks:
    """A whole sheet."""

    title: str
    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        """Whether every task passed."""
        return all(o.passed for o in self.outcomes)

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        rows = [vars(o) for o in self.outcomes]
        return {
            "title": self.title,
            "passed": self.passed,
            "points": self.points,
            "of": sum(o.points for o in self.outcomes),
            "tasks": rows,
        }

    @property
    def points(self) -> float:
        """What was reached."""
        return sum(o.points for o in self.outcomes if o.passed)


class Task:
    """One question of a sheet, with the settings it inherits."""

    def __init__(
        self, sheet: Mapping[str, Any], own: Mapping[str, Any], names: Mapping[str, Array], folder: Path, place: int
    ) -> None:
        self.own, self.names, self.folder = own, names, folder
        self.name = f"task {place}"
        if not isinstance(own, dict):
            raise UserError(f"{self.name} must be a table; write [[task]] and its settings below")
        self.name = str(own.get("name", self.name))
        _checked(self.name, own)
        self.ask = own.get("ask")
        if self.ask not in ASKS:
            raise UserError(f"{self.name}: " + unknown("ask", str(self.ask), ASKS))
        if extra := set(own) - COMMON - ASKS[self.ask][1]:
            raise UserError(f"{self.name}: " + unknown("setting", sorted(extra)[0], COMMON | ASKS[self.ask][1]))
        for needed in NEEDED.get(str(self.ask), ()):
            if needed not in own:
                raise UserError(f"{self.name}: '{needed}' is missing; a task that asks {self.ask} needs it")
        self.sheet = sheet
        self.tolerance = inputs.tolerance(self.setting("tolerance", 0.05))
        self.points = float(own.get("points", 1))
        self.scale: Scale = inputs.scale(self.setting("scale", "none"))

    def setting(self, name: str, default: Any = None) -> Any:
        """The task's own setting, or the sheet's."""
        return self.own.get(name, self.sheet.get(name, default))

    def array(self, name: str, *, free_rows: bool = False, default: Any = None) -> Array:
        """A matrix from numbers, a file beside the sheet, or an expression in the sheet's names."""
        given = self.setting(name, default)
        if given is None:
            raise DataError(f"{self.name}: '{name}' is missing; give it to the task or to the sheet")
        if isinstance(given, str):
            path = self.folder / given
            is_file = path.suffix.lower() in inputs.FILES
            given = inputs.read(str(path), name, free_rows=free_rows) if is_file else evaluate(given, self.names)
        if isinstance(given, list) and any(isinstance(row, str) for row in given):
            width = max(np.size(self._row(row, 0)) for row in given)
            given = np.array([self._row(row, width) for row in given])
        return inputs.matrix(given, f"{self.name}: {name}", free_rows=free_rows)

    def _row(self, row: Any, width: int) -> Array:
        if row == "free":
            return np.full(width, np.nan)
        return np.asarray(_evaluated(row, self.names))

    def vector(self, name: str) -> Array:
        """One vector."""
        return self.array(name).ravel()

    def problem(self, target: Array) -> Problem:
        """The question as the solver sees it."""
        k, v = inputs.pair(self.array("keys"), self.array("values"))
        return Problem(k, v, target, self.tolerance, self.scale)

    def outcome(self, error: float, message: str) -> Outcome:
        """Passed exactly when the error is within the tolerance."""
        passed = error <= self.tolerance
        said = f"within {number(error)}" if passed else message
        return Outcome(self.name, passed, self.points, float(error), self.tolerance, said)


def _numeric(task: Task, answer: Any) -> Array:
    if isinstance(answer, dict):
        raise UserError(f"{task.name}: the answer is a table; give numbers, or an expression in quotes")
    return np.asarray(answer, dtype=np.float64)


def _shaped(task: Task, answer: Any, shape: tuple[int, ...]) -> Array:
    found = _numeric(task, answer)
    if found.size == int(np.prod(shape)) and found.ndim <= 2 and 1 in (*shape, 0):
        found = found.reshape(shape)
    if found.shape != shape:
        wanted, given = (" x ".join(map(str, s)) or "one number" for s in (shape, found.shape))
        raise UserError(f"{task.name}: the answer has the shape {given}; give {wanted} numbers")
    return found


def _query_outcome(task: Task, problem: Problem, query: Array, chosen: list[int], which: str = "") -> Outcome:
    """The output of this query against the target; when it fails, where, how far and with what margin."""
    weights = problem.weights(query)
    output = weights @ problem.values
    off = np.abs(output - problem.target)
    worst = int(off.argmax())
    scores = problem.factor * (problem.keys @ query)
    outside = np.setdiff1d(np.arange(len(scores)), chosen)
    margin = ""
    if chosen and len(outside):
        lead = float(scores[chosen].min() - scores[outside].max())
        margin = (
            f"; the margin to the other keys is {number(lead)} and they hold {weights[outside].sum():.1%} of the weight"
        )
    said = (
        f"{which}the output is {vector(output)} and {vector(problem.target)} was wanted: off by "
        f"{number(off[worst])} in coordinate {worst} "
        f"(allowed {number(task.tolerance)}){margin}"
    )
    return task.outcome(float(off.max()), said)


def _select(task: Task, answer: Any) -> Outcome:
    values = task.array("values")
    j = inputs.index(task.own["index"], len(values))
    problem = task.problem(values[j])
    return _query_outcome(task, problem, _shaped(task, answer, (problem.keys.shape[1],)), [j])


def _identity(task: Task, answer: Any) -> Outcome:
    values = task.array("values")
    queries = _shaped(task, answer, task.array("keys").shape)
    rows = [_query_outcome(task, task.problem(values[j]), q, [j], f"row {j}: ") for j, q in enumerate(queries)]
    return max(rows, key=lambda o: o.error or 0.0)


def _blend_settings(task: Task) -> tuple[list[int], Array]:
    chosen = inputs.indices(task.own.get("indices"), len(task.array("keys")))
    return chosen, inputs.weights(task.own.get("weights"), len(chosen))


def _blend(task: Task, answer: Any) -> Outcome:
    chosen, w = _blend_settings(task)
    problem = task.problem(w @ task.array("values")[chosen])
    return _query_outcome(task, problem, _shaped(task, answer, (problem.keys.shape[1],)), chosen)


def _reach(task: Task, answer: Any) -> Outcome:
    problem = task.problem(inputs.target(task.vector("target"), task.array("values").shape[1]))
    return _query_outcome(task, problem, _shaped(task, answer, (problem.keys.shape[1],)), [])


def _project(task: Task, answer: Any) -> Outcome:
    keep, forget = task.array("keep"), task.array("forget")
    if keep.shape[1] != forget.shape[1]:
        raise UserError(f"{task.name}: keep and forget have different widths; give both the same")
    matrix = _shaped(task, answer, (keep.shape[1], keep.shape[1]))
    off = np.abs(np.vstack([keep @ matrix.T - keep, forget @ matrix.T])).max(axis=1)
    worst = int(off.argmax())
    what = f"keeps row {worst} of `keep`" if worst < len(keep) else f"forgets row {worst - len(keep)} of `forget`"
    return task.outcome(
        float(off.max()), f"M {what} only within {number(off[worst])} (allowed {number(task.tolerance)})"
    )


def _edit_key(task: Task, answer: Any) -> Outcome:
    keys, values, query = task.array("keys"), task.array("values"), task.vector("query")
    if len(query) != keys.shape[1]:
        raise UserError(f"{task.name}: the query has {len(query)} numbers; give {keys.shape[1]}")
    j = inputs.index(task.own["index"], len(keys))
    new = _shaped(task, answer, (keys.shape[1],))
    norm = task.own.get("norm")
    if norm is not None and abs(np.linalg.norm(new) - norm) > 1e-6 * norm:
        size = number(float(np.linalg.norm(new)))
        return Outcome(
            task.name,
            False,
            task.points,
            None,
            task.tolerance,
            f"the key has norm {size} and {number(norm)} was asked for",
        )
    edited = np.where(np.arange(len(keys))[:, None] == j, new, keys)
    target = values[j] if "target" not in task.own else task.vector("target")
    return _query_outcome(task, Problem(edited, values, target, task.tolerance, task.scale), query, [])


def _layer(task: Task, answer: Any) -> Outcome:
    tokens, outputs = task.array("tokens"), task.array("outputs", free_rows=True)
    if not isinstance(answer, dict) or set(answer) != {"Q", "K", "V"}:
        raise UserError(f"{task.name}: give three matrices, as a table with Q, K and V")
    w_q, w_k, w_v = (np.atleast_2d(_numeric(task, answer[name])) for name in "QKV")
    if w_q.shape != w_k.shape or w_q.shape[1] != tokens.shape[1] or w_v.shape != (outputs.shape[1], tokens.shape[1]):
        raise UserError(
            f"{task.name}: Q and K need {tokens.shape[1]} columns and equal heights, V {outputs.shape[1]} x "
            f"{tokens.shape[1]} numbers"
        )
    rows = []
    for i in range(len(tokens)):
        if not np.isnan(outputs[i]).any():
            problem = Problem(tokens @ w_k.T, tokens @ w_v.T, outputs[i], task.tolerance, task.scale)
            rows.append(_query_outcome(task, problem, w_q @ tokens[i], [], f"row {i}: "))
    return max(rows, key=lambda o: o.error or 0.0)


def _noise(task: Task, answer: Any) -> Outcome:
    """The root of the expected squared error of the mean over heads, simulated."""
    means, values = task.array("keys"), task.array("values")
    queries = np.atleast_2d(_numeric(task, answer))
    heads = int(task.own.get("heads", len(queries)))
    queries = _shaped(task, queries, (heads, means.shape[1]))
    pair = inputs.indices(task.own.get("indices", [0, 1]), len(means))
    stretch = np.zeros(len(means))
    stretch[pair[0]] = float(task.own.get("varying", 0.0))
    keys = Keys(means, float(task.own.get("alpha", 1e-6)), stretch, factor(task.scale, means.shape[1]))
    found = simulate(keys, values, (pair[0], pair[1]), {"answer": queries}, 100_000, 0)[0]
    s = found.simulated
    error = float(np.sqrt(found.squared_error))
    said = (
        f"under this noise the root mean square error is {number(error)} (allowed {number(task.tolerance)}): the "
        f"weight on v_{pair[0]} has mean "
        f"{number(s.mean)} and spread {number(s.sd)}, and leaves [0.25, 0.75] in {s.failures:.1%} of samples"
    )
    return task.outcome(error, said)


def _solve(task: Task) -> Result:
    """The same question, for the answer "impossible"."""
    common: dict[str, Any] = {"tolerance": task.tolerance, "scale": task.scale}
    if task.ask == "project":
        return project(task.array("keep"), task.array("forget"), tolerance=task.tolerance)
    if task.ask == "layer":
        return layer(task.array("tokens"), task.array("outputs", free_rows=True), **common)
    if task.ask == "noise":
        raise UserError(f"{task.name}: a question about noise cannot be answered with 'impossible'; give the queries")
    k, v = task.array("keys"), task.array("values")
    if task.ask in ("select", "identity"):
        return select(k, v, task.own.get("index"), **common)
    if task.ask == "reach":
        return reach(k, v, task.vector("target"), **common)
    if task.ask == "edit-key":
        target = task.vector("target") if "target" in task.own else None
        return edit_key(k, v, task.vector("query"), int(task.own["index"]), target, norm=task.own.get("norm"), **common)
    chosen, w = _blend_settings(task)
    return blend(k, v, chosen, w, **common)


ASKS: dict[str, tuple[Callable[[Task, Any], Outcome], set[str]]] = {
    "select": (_select, {"index"}),
    "identity": (_identity, set()),
    "blend": (_blend, {"indices", "weights"}),
    "average": (_blend, {"indices"}),
    "reach": (_reach, {"target"}),
    "project": (_project, {"keep", "forget"}),
    "edit-key": (_edit_key, {"query", "index", "target", "norm"}),
    "layer": (_layer, {"tokens", "outputs"}),
    "noise": (_noise, {"indices", "alpha", "varying", "heads"}),
}


def mark(sheet: Path, answers: Path) -> Marks:
    """Every task of the sheet against the answers."""
    asked, given = _toml(sheet), _toml(answers)
    _checked(sheet.name, asked)
    names: dict[str, Array] = {}
    for name, data in _table(asked, "vectors", sheet).items():
        names[name] = np.asarray(_evaluated(data, names))
    if not isinstance(asked.get("task"), list) or not asked["task"]:
        raise DataError(f"{sheet.name} has no tasks; add [[task]] with a name and what to ask: {', '.join(ASKS)}")
    tasks = [Task(asked, own, names, sheet.parent, place) for place, own in enumerate(asked["task"], start=1)]
    known = [task.name for task in tasks]
    if twice := sorted({name for name in known if known.count(name) > 1}):
        raise UserError(f"{sheet.name}: two tasks are called '{twice[0]}'; give every task a name of its own")
    let = _table(given, "let", answers)
    for name in given:
        if name not in known and name != "let":
            raise UserError(f"{answers.name}: " + unknown("task", name, known))
    return Marks(
        str(asked.get("title", sheet.stem)),
        tuple(_one(task, given.get(task.name), let) for task in tasks),
    )


def _table(content: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    found = content.get(name, {})
    if not isinstance(found, dict):
        raise UserError(f"{path.name}: {name} must be a table; write [{name}] and a name = value a line")
    return found


def _one(task: Task, answer: Any, let: Mapping[str, Any]) -> Outcome:
    if answer is None:
        return Outcome(task.name, False, task.points, None, task.tolerance, "there is no answer")
    if isinstance(answer, str) and answer.strip().lower() == "impossible":
        result = _solve(task)
        passed = result.status == "impossible"
        shown = (
            f": {vector(result.query)} does it"
            if result.status == "solved" and result.query is not None and result.query.ndim == 1
            else ""
        )
        said = (
            result.statement
            if passed
            else f"'impossible' is not right{shown}"
            if result.status == "solved"
            else f"'impossible' is not proved: {result.statement}"
        )
        return Outcome(task.name, passed, task.points, None, task.tolerance, said)
    names = dict(task.names)
    for name, setting in (("K", "keys"), ("V", "values")):
        if task.setting(setting) is not None:
            names[name] = task.array(setting)
    try:
        for name, data in let.items():
            names[name] = _evaluated(data, names)
        given = _evaluated(answer, names)
    except UserError as error:
        raise UserError(f"the answer to '{task.name}': {error}") from None
    return ASKS[str(task.ask)][0](task, given)


def _evaluated(answer: Any, names: Mapping[str, Array]) -> Any:
    """Numbers, expressions, lists of them, and tables of those."""
    if isinstance(answer, str):
        return evaluate(answer, names)
    if isinstance(answer, dict):
        return {name: _evaluated(part, names) for name, part in answer.items()}
    if isinstance(answer, list):
        parts = [_evaluated(part, names) for part in answer]
        if any(isinstance(part, dict) for part in parts):
            raise UserError("a list holds a table; give numbers, or expressions in quotes")
        if len({np.shape(part) for part in parts}) > 1:
            raise UserError("the rows of an answer have different lengths; give every row the same")
        return np.array(parts)
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        raise UserError(f"{answer!r} is not an answer; give numbers, or an expression in quotes")
    if not abs(answer) < inputs.LARGEST:
        raise UserError(f"{str(answer)[:20]} is not an answer; give finite numbers")
    return np.float64(answer)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"there is no file {path}; give a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise DataError(
            f"{path.name} is not TOML: {str(error).splitlines()[0]}; put expressions in quotes and lists in brackets"
        ) from None
