"""The view "design": the solver, the noise experiment, and answer sheets.

Records of requests and answers, and the tasks that a worker runs. Nothing here computes: attnlab.design solves and
attnlab.course marks. Both are imported by the tasks only, because the server imports no numpy.
"""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct, structs

from attnlab.errors import DataError, UserError
from attnlab.reading import packaged_text
from attnlab.serve.routes import Options, Query, Route

if TYPE_CHECKING:
    from attnlab.course.sheets import Sheet
    from attnlab.design.check import Outcome, Task

Number = Annotated[float, Meta(ge=-1e12, le=1e12)]
Vector = Annotated[list[Number], Meta(min_length=1, max_length=16)]
Rows = Annotated[list[Vector], Meta(min_length=1, max_length=64)]
Index = Annotated[int, Meta(ge=0, le=63)]

_SAMPLES = 400  # that the page animates
_SIMULATED = 20_000
_MOST_ROWS, _MOST_COLUMNS = 64, 8  # that the planes show
_WORDS = {"name", "title", "text", "ask", "scale", "kind"}  # settings that are never files
_ELSEWHERE = {
    "predictions": "It asks for a file of predictions: hand it in, and mark it with attnlab check.",
    "module": "It asks for a class or a function: mark it with attnlab check.",
    "mechanism": "It asks for a class: audit one in the view Mechanisms, or mark it with attnlab check.",
}


# The solver


class Wanted(Query, frozen=True):
    """What a query should do: copy value `index`, mix the values `indices`, or reach `target`."""

    task: Literal["select", "average", "reach"]
    keys: Rows
    values: Rows
    index: Index = 0
    indices: Annotated[list[Index], Meta(min_length=1, max_length=64)] | None = None
    weights: Annotated[list[Number], Meta(min_length=1, max_length=64)] | None = None
    target: Vector | None = None
    tolerance: Annotated[float, Meta(ge=1e-9, le=1e6, title="the tolerance")] = 0.01
    scale: Literal["none", "sqrt"] = "none"
    seconds: Annotated[float, Meta(ge=0, le=5)] = 5.0


class Verdict(Struct, frozen=True):
    """The verdict of the solver as `attnlab design --json` prints it, its numbers in words, and the command."""

    result: Mapping[str, Any]
    facts: list[tuple[str, str]]
    command: str


def solve(_: Options, wanted: Wanted) -> Verdict:
    """A query with a guaranteed error, or a proof that there is none. Numbers mean the decimals that the page shows."""
    from attnlab.design import solve as solver

    keys, values = _decimals(wanted.keys), _decimals(wanted.values)
    tolerance = Decimal(repr(wanted.tolerance))
    common: dict[str, Any] = {"tolerance": tolerance, "scale": wanted.scale, "seconds": wanted.seconds}
    if wanted.task == "select":
        result = solver.select(keys, values, wanted.index, **common)
    elif wanted.task == "average":
        weights = None if wanted.weights is None else _decimals([wanted.weights])[0]
        result = solver.blend(keys, values, wanted.indices, weights, **common)
    elif wanted.target is None:
        raise UserError("there is no target; give the point that the output should reach")
    else:
        result = solver.reach(keys, values, _decimals([wanted.target])[0], **common)
    return Verdict(result.to_dict(), result.facts(), solve_command(wanted))


def _decimals(rows: Sequence[Sequence[float]]) -> list[list[str]]:
    return [[repr(x) for x in row] for row in rows]  # text means the decimals as written


def _rows(rows: Sequence[Sequence[float]]) -> str:
    return ";".join(",".join(map(_short, row)) for row in rows)


def _short(x: float) -> str:
    return repr(x).removesuffix(".0")


def solve_command(wanted: Wanted) -> str:
    """The command that computes the same."""
    name = "blend" if wanted.weights else wanted.task
    parts = [name, "--keys", _rows(wanted.keys), "--values", _rows(wanted.values)]
    if wanted.task == "select":
        parts += ["--index", str(wanted.index)]
    elif wanted.target is not None and wanted.task == "reach":
        parts += ["--target", _rows([wanted.target])]
    elif wanted.indices:
        parts += ["--indices", ",".join(map(str, wanted.indices))]
        parts += ["--weights", _rows([wanted.weights])] if wanted.weights else []
    if wanted.tolerance != 0.01:
        parts += ["--tolerance", _short(wanted.tolerance)]
    if wanted.scale != "none":
        parts += ["--scale", wanted.scale]
    return shlex.join(["attnlab", "design", *parts])


# Noise


class NoiseSettings(Query, frozen=True):
    """Orthonormal keys with noise: alpha in every direction, `varying` along the first key."""

    n: Annotated[int, Meta(ge=2, le=32, title="the number of keys")] = 10
    strength: Annotated[float, Meta(ge=0.01, le=1000, title="the strength C of the queries")] = 10.0
    alpha: Annotated[float, Meta(ge=0, le=10, title="the noise α in every direction")] = 1e-6
    varying: Annotated[float, Meta(ge=0, le=10, title="the variance of key 0 along itself")] = 0.5
    seed: Annotated[int, Meta(ge=0, le=10**6)] = 0


class NoiseResult(Struct, frozen=True):
    """Designs under the same noise as `attnlab design noise --json` prints them, and samples of the weight on v_0 of each.

    A sample fails outside `low` to `high`.
    """

    result: Mapping[str, Any]
    agreement: str
    low: float
    high: float
    samples: list[list[float]]
    command: str


def noise(_: Options, settings: NoiseSettings) -> NoiseResult:
    """One head, equal heads and split heads under noise, and a few samples that all of them share."""
    import numpy as np

    from attnlab.design import noisy_keys
    from attnlab.design.attention import softmax

    result = noisy_keys.noise(**structs.asdict(settings), samples=_SIMULATED)
    chosen = result.indices
    keys = noisy_keys.noisy(np.eye(result.keys), chosen, result.alpha, result.varying, None, "none")
    sampled = keys.sample(_SAMPLES, np.random.default_rng([settings.seed, 2]))
    weights = [softmax(design.queries @ sampled.transpose(0, 2, 1)).mean(axis=1) for design in result.designs]
    low, high = noisy_keys.limits(len(chosen))
    options = " ".join(f"--{name} {_short(getattr(settings, name))}" for name in settings.__struct_fields__)
    return NoiseResult(
        result=result.to_dict(),
        agreement=result.agreement(),
        low=low,
        high=high,
        samples=[[round(float(x), 5) for x in each[:, chosen[0]]] for each in weights],
        command=f"attnlab design noise {options} --samples {_SIMULATED}",
    )


# Derivations


class ProofQuery(Query, frozen=True):
    """A derivation by its name."""

    name: Annotated[str, Meta(max_length=40)] = "softmax"


def prove(_: Options, query: ProofQuery) -> Mapping[str, Any]:
    """The names of all derivations, and one of them as `attnlab design derive --json` prints it, every step checked."""
    from attnlab.design.theorems import DERIVATIONS, derive

    return {"names": [*DERIVATIONS], "proof": json.loads(derive(query.name).to_json())}


# Sheets


SheetText = Annotated[str, Meta(min_length=1, max_length=100_000)]


class Example(Struct, frozen=True):
    """A sheet that the package carries."""

    name: str
    title: str
    text: str


class SheetContent(Query, frozen=True):
    """A sheet of `attnlab check`: the text of its TOML file."""

    text: SheetText


class SheetTask(Struct, frozen=True):
    """A task of a sheet; `why_not` says why it cannot be answered here. Planes show `keys` and `values`."""

    name: str
    ask: str
    text: str
    points: float
    why_not: str = ""
    unmarked: bool = False  # it can be answered, but the sheet has no solution
    tolerance: float | None = None
    scale: str = "none"
    keys: list[list[float]] | None = None
    values: list[list[float]] | None = None
    target: list[float] | None = None
    hint: str = ""


class SheetTasks(Struct, frozen=True):
    """The tasks of a sheet, in its order, the sheet for students, and whether that is another one, without solutions."""

    title: str
    points: float
    tasks: list[SheetTask]
    for_students: str
    has_solutions: bool


class TypedAnswers(Query, frozen=True):
    """Answers by the name of the task, as typed: numbers, an expression, or the word impossible."""

    answers: Annotated[
        dict[Annotated[str, Meta(max_length=200)], Annotated[str, Meta(max_length=5000)]], Meta(max_length=100)
    ]


class SheetAnswers(TypedAnswers, frozen=True):
    """Answers to a sheet."""

    text: SheetText


class SheetMarks(Struct, frozen=True):
    """The marks of the tasks that can be answered here."""

    earned: float
    points: float
    notes: tuple[str, ...]
    tasks: tuple[Outcome, ...]


def examples(_: Options, __: Query) -> list[Example]:
    """The worked exercise, and the sheet that students get in a new assignment."""
    from attnlab.course.handout import students_sheet
    from attnlab.design import check

    worked = packaged_text("serve", "sheets", "worked.toml")
    course = packaged_text("course", "template", "sheet.toml")
    return [
        Example("worked", "The worked exercise", worked),
        Example("course", "Assignment of attnlab course new", students_sheet(check.parse(course, Path("the sheet")))),
    ]


def read_sheet(_: Options, content: SheetContent) -> SheetTasks:
    """The tasks of a sheet."""
    from attnlab.course.handout import solutions, students_sheet
    from attnlab.course.sheets import Design

    with tempfile.TemporaryDirectory() as folder:
        settings, sheet = _sheet(content.text, Path(folder))
        answerable = iter(sheet.tasks if sheet else ())
        tasks = []
        for number, own in enumerate(settings["task"], start=1):
            if not _is_marked(own):
                tasks.append(_not_marked(number, own))
            else:
                task = next(answerable)
                assert isinstance(task, Design)
                tasks.append(_shown(task.task))
        points = sum(task.points for task in tasks if not task.why_not)
        has_solutions = any(solutions(own) for own in settings["task"])
        title, for_students = str(settings.get("title", "Sheet")), students_sheet(settings)
        return SheetTasks(title, points, tasks, for_students, has_solutions)


def _is_marked(own: Mapping[str, Any]) -> bool:
    """Whether a task needs neither files nor code nor a solution that the sheet does not have."""
    from attnlab.course.handout import is_unsolved

    return str(own.get("ask")) not in _ELSEWHERE and not is_unsolved(own)


def _not_marked(number: int, own: Mapping[str, Any]) -> SheetTask:
    """A task that is not marked here: its text, and why it cannot be answered if it needs files or code."""
    points = own.get("points", 1)
    numbers = points if isinstance(points, list) else [points]
    most = max((float(x) for x in numbers if isinstance(x, int | Decimal)), default=0.0)
    name, ask = str(own.get("name", f"task {number}")), own["ask"]
    text, why_not = str(own.get("text", _SENTENCES.get(ask, ""))), _ELSEWHERE.get(ask, "")
    return SheetTask(name, ask, text, most, why_not, unmarked=not why_not, hint=_HINTS.get(ask, _HINT))


def _sheet(text: str, folder: Path) -> tuple[Mapping[str, Any], Sheet | None]:
    """The content of a sheet, and the sheet of those tasks that are marked here."""
    from attnlab.course.sheets import sheet_of
    from attnlab.design import check

    path = folder / "the sheet"
    settings = check.parse(text, path)
    tasks = settings.get("task")
    if not isinstance(tasks, list) or not tasks or not all(isinstance(own, dict) for own in tasks):
        sheet_of({**settings, "task": tasks}, path)  # says what is wrong
        raise DataError("the sheet has no tasks; write [[task]] and its settings below")
    _refuse_files("the sheet", {name: value for name, value in settings.items() if name != "task"})
    kept = []
    for number, own in enumerate(tasks, start=1):
        if _is_marked(own):
            _refuse_files(f"task {own.get('name', number)}", own)
            kept.append({"name": f"task {number}", **own})
    return settings, sheet_of({**settings, "task": kept}, path) if kept else None


def _refuse_files(where: str, settings: Mapping[str, Any]) -> None:
    """Refuse a matrix that is the name of a file: the page reads none."""
    from attnlab.design.inputs import FILES, shown

    for name, value in settings.items():
        if name not in _WORDS and isinstance(value, str) and Path(value).suffix.lower() in FILES:
            raise UserError(
                f"{shown(where)}: {name} is the file {shown(value)}, and the page reads no files;"
                " write the numbers into the sheet, or mark it with attnlab check"
            )


def _shown(task: Task) -> SheetTask:
    """A task for the page: what it asks in words and, where a query is asked for, what the planes can show."""
    keys = values = target = None
    if task.ask in ("select", "average", "blend", "reach"):
        rows = task.rows("keys").floats, task.rows("values").floats
        if all(each.shape[0] <= _MOST_ROWS and each.shape[1] <= _MOST_COLUMNS for each in rows):
            keys, values = (each.tolist() for each in rows)
        if task.ask == "reach":
            target = task.rows("target").floats.ravel().tolist()
    return SheetTask(
        name=task.name,
        ask=task.ask,
        text=str(task.own.get("text", "")) or _words(task),
        points=task.points,
        tolerance=float(task.tolerance),
        scale=task.scale,
        keys=keys,
        values=values,
        target=target,
        hint=_HINTS.get(task.ask, _HINT),
    )


_HINT = "numbers such as [1, 2], an expression such as 10*K[0], or impossible"
_HINTS = {  # where an answer is no vector or matrix
    "layer": "{Q = ..., K = ..., V = ...}, each a matrix or an expression in quotes, or impossible",
    "noise": "one row per head, such as [[10, 0], [0, 10]]",
    "number": "a number such as 5.5",
    "condition": "{A = [[1, -1]], b = 3}, which says A q >= b, or impossible",
}
_SENTENCES = {  # what a task without a text asks for
    "select": "A query whose output is value {index}.",
    "average": "A query whose output is the mean of {values}.",
    "blend": "A query whose output is the {mean} of {values}.",
    "reach": "A query whose output is the target.",
    "identity": "One query for every key, one row each, whose output is the value of that key.",
    "project": "A matrix that keeps the vectors of `keep`, and maps those of `forget` to 0.",
    "edit-key": "A new key {index}, for which the query of the task gives the output wanted.",
    "layer": "Matrices Q, K and V of a head whose self-attention gives the outputs wanted.",
    "noise": "A query for every head; the mean of the heads is to be the mean of {values} under noise.",
    "number": "A number.",
    "condition": "Conditions on the query that are {kind} for key {index} to lead.",
}


def _words(task: Task) -> str:
    """What a task without a text asks for."""
    own = task.own
    values = f"values {', '.join(map(str, own['indices']))}" if "indices" in own else "all values"
    mean = "mean with the weights given" if "weights" in own else "mean"
    return _SENTENCES[task.ask].format(index=own.get("index"), values=values, mean=mean, kind=own.get("kind"))


def mark(_: Options, answers: SheetAnswers) -> SheetMarks:
    """Mark answers as `attnlab check` does."""
    from attnlab.course.answers import Answers
    from attnlab.course.marking import mark_student

    with tempfile.TemporaryDirectory() as folder:
        sheet = _sheet(answers.text, Path(folder))[1]
        if sheet is None:
            raise UserError("no task of this sheet can be marked here; the teacher does it with attnlab check")
        typed = {name: _as_toml(text)[1] for name, text in answers.answers.items() if text.strip()}
        marked = mark_student(sheet, Answers("page", Path(folder), typed))
    return SheetMarks(marked.points, marked.most, marked.notes, marked.outcomes)


def write_answers(_: Options, answers: TypedAnswers) -> str:
    """The file of answers that `attnlab check` marks; what was left empty is left out."""
    filled = [(name, typed) for name, typed in answers.answers.items() if typed.strip()]
    lines = [f"{json.dumps(name, ensure_ascii=False)} = {_as_toml(typed)[0]}\n" for name, typed in filled]
    return "".join(lines)


def _as_toml(typed: str) -> tuple[str, Any]:
    """An answer as TOML, and its value: what was typed if it is a value or numbers with commas, else an expression."""
    from attnlab.design import check

    text = typed.strip()
    for source in (text, f"[{text}]"):
        try:
            settings = check.parse(f"answer = {source}", Path("the answer"))
        except DataError:
            continue
        if len(settings) == 1:
            return source, settings["answer"]
    return json.dumps(text, ensure_ascii=False), text


ROUTES = (
    Route("POST", "/design/solve", Wanted, solve, "solver"),
    Route("POST", "/design/noise", NoiseSettings, noise, "solver"),
    Route("POST", "/design/proof", ProofQuery, prove, "solver"),
    Route("GET", "/design/sheets", Query, examples, "solver"),
    Route("POST", "/design/sheet", SheetContent, read_sheet, "solver"),
    Route("POST", "/design/mark", SheetAnswers, mark, "solver"),
    Route("POST", "/design/answers", TypedAnswers, write_answers, "solver"),
)
