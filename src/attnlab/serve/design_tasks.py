"""What the view "design" has a worker compute; the server itself imports neither numpy nor the solver."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Mapping, Sequence
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab.errors import DataError, UserError

if TYPE_CHECKING:
    from attnlab.course.sheets import Sheet
    from attnlab.design.check import Task

Plain = dict[str, Any]
_SAMPLES = 400  # that the page animates
_SIMULATED = 20_000
_SHOWN = 64, 8  # most rows and columns that the planes show
_WORDS = {"name", "title", "text", "ask", "scale", "kind"}  # settings that are never files
_ELSEWHERE = {
    "predictions": "It asks for a file of predictions: hand it in, and mark it with attnlab check.",
    "mechanism": "It asks for a class: audit one in the view Mechanisms, or mark it with attnlab check.",
}


# The solver


def solve(wanted: Mapping[str, Any]) -> Plain:
    """The verdict on a wanted output. Numbers mean the decimals that the page shows."""
    from attnlab.design import solve as solver

    k, v = _decimals(wanted["keys"]), _decimals(wanted["values"])
    common: Plain = {
        "tolerance": Decimal(repr(wanted["tolerance"])),
        "scale": wanted["scale"],
        "seconds": wanted["seconds"],
    }
    if wanted["task"] == "select":
        result = solver.select(k, v, wanted["index"], **common)
    elif wanted["task"] == "average":
        weights = None if wanted["weights"] is None else _decimals([wanted["weights"]])[0]
        result = solver.blend(k, v, wanted["indices"], weights, **common)
    elif wanted["target"] is None:
        raise UserError("there is no target; give the point that the output should reach")
    else:
        result = solver.reach(k, v, _decimals([wanted["target"]])[0], **common)
    facts = [{"name": name, "value": value} for name, value in result.facts()]
    return {**result.to_dict(), "facts": facts, "command": solve_command(wanted)}


def _decimals(rows: Sequence[Sequence[float]]) -> list[list[str]]:
    return [[repr(x) for x in row] for row in rows]  # text means the decimals as written


def _rows(rows: Sequence[Sequence[float]]) -> str:
    return ";".join(",".join(map(_short, row)) for row in rows)


def _short(x: float) -> str:
    return repr(x).removesuffix(".0")


def solve_command(wanted: Mapping[str, Any]) -> str:
    """The command that computes the same."""
    task, weights, indices = wanted["task"], wanted["weights"], wanted["indices"]
    parts = ["blend" if weights else task, "--keys", _rows(wanted["keys"]), "--values", _rows(wanted["values"])]
    if task == "select":
        parts += ["--index", str(wanted["index"])]
    elif task == "reach":
        parts += ["--target", _rows([wanted["target"]])]
    elif indices:
        parts += ["--indices", ",".join(map(str, indices))]
        parts += ["--weights", _rows([weights])] if weights else []
    if wanted["tolerance"] != 0.01:
        parts += ["--tolerance", _short(wanted["tolerance"])]
    if wanted["scale"] != "none":
        parts += ["--scale", wanted["scale"]]
    return shlex.join(["attnlab", "design", *parts])


# Noise


def noise(settings: Mapping[str, Any]) -> Plain:
    """The designs under noise, each with its law and a few samples that all designs share."""
    import numpy as np

    from attnlab.design import noisy_keys
    from attnlab.design.attention import softmax

    given = {name: settings[name] for name in ("n", "strength", "alpha", "varying", "seed")}
    found = noisy_keys.noise(**given, samples=_SIMULATED)
    plain = found.to_dict()
    chosen, seed = found.indices, settings["seed"]
    keys = noisy_keys.noisy(np.eye(found.keys), chosen, found.alpha, found.varying, None, "none")
    sampled = keys.sample(_SAMPLES, np.random.default_rng([seed, 2]))
    designs = []
    for one, design in zip(plain["designs"], found.designs, strict=True):
        weights = softmax(design.queries @ sampled.transpose(0, 2, 1)).mean(axis=1)
        samples = [round(float(x), 5) for x in weights[:, chosen[0]]]
        designs.append(
            {**{name: one[name] for name in ("name", "closed_form", "simulated", "law")}, "samples": samples}
        )
    low, high = noisy_keys.limits(len(chosen))
    parts = [f"--{name} {_short(settings[name])}" for name in ("n", "strength", "alpha", "varying", "seed")]
    return {
        "statement": plain["statement"],
        "agreement": found.agreement(),
        "low": low,
        "high": high,
        "designs": designs,
        "simulated_samples": _SIMULATED,
        "command": f"attnlab design noise {' '.join(parts)} --samples {_SIMULATED}",
    }


# Sheets


def examples() -> list[Plain]:
    """The worked exercise, and the sheet of a new assignment."""
    worked = resources.files("attnlab.serve").joinpath("sheets", "a12.toml").read_text(encoding="utf-8")
    course = resources.files("attnlab.course").joinpath("template", "sheet.toml").read_text(encoding="utf-8")
    return [
        {"name": "a12", "title": "A12: the worked exercise", "text": worked},
        {"name": "course", "title": "Assignment of attnlab course new", "text": course},
    ]


def read_sheet(text: str) -> Plain:
    """The tasks of a sheet, in its order."""
    from attnlab.course.sheets import Design

    with tempfile.TemporaryDirectory() as folder:
        asked, sheet = _sheet(text, Path(folder))
        answerable = iter(sheet.tasks if sheet else ())
        shown = []
        for place, own in enumerate(asked["task"], start=1):
            if own.get("ask") in _ELSEWHERE:
                shown.append(_not_here(place, own))
            else:
                task = next(answerable)
                assert isinstance(task, Design)
                shown.append(_shown(task.task))
        return {
            "title": str(asked.get("title", "Sheet")),
            "points": sum(task["points"] for task in shown if not task["why_not"]),
            "tasks": shown,
        }


def _not_here(place: int, own: Mapping[str, Any]) -> Plain:
    """A task that needs files or code: its text, and why it cannot be answered."""
    points = own.get("points", 1)
    numbers = points if isinstance(points, list) else [points]
    most = max((float(x) for x in numbers if isinstance(x, int | Decimal)), default=0.0)
    told = {"name": str(own.get("name", f"task {place}")), "ask": own["ask"], "text": str(own.get("text", ""))}
    return {**told, "points": most, "why_not": _ELSEWHERE[own["ask"]]}


def _sheet(text: str, folder: Path) -> tuple[Mapping[str, Any], Sheet | None]:
    """The content of a sheet, and the sheet of those tasks that need neither files nor code."""
    from attnlab.course.sheets import sheet_of
    from attnlab.design import check

    path = folder / "the sheet"
    asked = check.parse(text, path)
    given = asked.get("task")
    if not isinstance(given, list) or not given or not all(isinstance(own, dict) for own in given):
        sheet_of({**asked, "task": given}, path)  # says what is wrong
        raise DataError("the sheet has no tasks; write [[task]] and its settings below")
    _refuse_files("the sheet", {name: value for name, value in asked.items() if name != "task"})
    kept = []
    for place, own in enumerate(given, start=1):
        if own.get("ask") not in _ELSEWHERE:
            _refuse_files(f"task {own.get('name', place)}", own)
            kept.append({"name": f"task {place}", **own})
    return asked, sheet_of({**asked, "task": kept}, path) if kept else None


def _refuse_files(where: str, settings: Mapping[str, Any]) -> None:
    """Refuse a matrix that is the name of a file: the page reads none."""
    from attnlab.design.inputs import FILES, shown

    for name, value in settings.items():
        if name not in _WORDS and isinstance(value, str) and Path(value).suffix.lower() in FILES:
            raise UserError(
                f"{shown(where)}: {name} is the file {shown(value)}, and the page reads no files;"
                " write the numbers into the sheet, or mark it with attnlab check"
            )


def _shown(task: Task) -> Plain:
    """A task for the page: what it asks in words and, where a query is asked for, what the planes can show."""
    told: Plain = {"name": task.name, "ask": task.ask, "points": task.points, "why_not": ""}
    told |= {"text": str(task.own.get("text", "")) or _words(task), "tolerance": float(task.tolerance)}
    told |= {"scale": task.scale, "hint": _HINTS.get(task.ask, "numbers such as [1, 2], or an expression")}
    if task.ask in ("select", "average", "blend", "reach"):
        keys, values = task.rows("keys").floats, task.rows("values").floats
        if all(rows.shape[0] <= _SHOWN[0] and rows.shape[1] <= _SHOWN[1] for rows in (keys, values)):
            told |= {"keys": keys.tolist(), "values": values.tolist()}
        if task.ask == "reach":
            told["target"] = task.rows("target").floats.ravel().tolist()
    return told


_QUERY = "numbers such as [1, 2], an expression such as 10*K[0], or impossible"
_HINTS = {
    **dict.fromkeys(("select", "average", "blend", "reach"), _QUERY),
    "identity": "one row per key, such as 10*K or [[1, 0], [0, 1]], or impossible",
    "project": "a matrix such as [[1, 0], [0, 0]], an expression, or impossible",
    "edit-key": "a key such as [1, 2], an expression, or impossible",
    "layer": "{Q = ..., K = ..., V = ...}, each a matrix or an expression in quotes, or impossible",
    "noise": "one row per head, such as [[10, 0], [0, 10]]",
    "number": "a number such as 5.5",
    "condition": "{A = [[1, -1]], b = 3}, which says A q >= b, or impossible",
}


def _words(task: Task) -> str:
    """What a task without a text asks for."""
    own = task.own
    which = f"values {', '.join(map(str, own['indices']))}" if "indices" in own else "all values"
    mean = "mean with the weights given" if "weights" in own else "mean"
    said = {
        "select": f"A query whose output is value {own.get('index')}.",
        "average": f"A query whose output is the mean of {which}.",
        "blend": f"A query whose output is the {mean} of {which}.",
        "reach": "A query whose output is the target.",
        "identity": "One query for every key, whose output is the value of that key.",
        "project": "A matrix that keeps the vectors of `keep`, and maps those of `forget` to 0.",
        "edit-key": f"A new key {own.get('index')}, for which the query of the task gives the output wanted.",
        "layer": "Matrices Q, K and V of a head whose self-attention gives the outputs wanted.",
        "noise": f"A query for every head; the mean of the heads is to be the mean of {which} under noise.",
        "number": "A number.",
        "condition": f"Conditions on the query that are {own.get('kind')} for key {own.get('index')} to lead.",
    }
    return said[task.ask]


def mark(text: str, answers: Mapping[str, str]) -> Plain:
    """The marks of the tasks that can be answered here."""
    from attnlab.course.answers import Answers
    from attnlab.course.marking import mark_student

    with tempfile.TemporaryDirectory() as folder:
        _, sheet = _sheet(text, Path(folder))
        if sheet is None:
            raise UserError("no task of this sheet can be answered here; mark it with attnlab check")
        given = {name: read_answer(typed) for name, typed in answers.items() if typed.strip()}
        marked = mark_student(sheet, Answers("page", Path(folder), given))
    tasks = [
        {**{name: getattr(one, name) for name in ("name", "passed", "earned", "points", "message")}}
        | {"answered": one.name in given}
        for one in marked.outcomes
    ]
    return {"earned": marked.points, "points": marked.most, "notes": list(marked.notes), "tasks": tasks}


def read_answer(typed: str) -> Any:
    """An answer as typed: a TOML value, numbers with commas, or else an expression."""
    from attnlab.design import check

    for source in (typed, f"[{typed}]"):
        try:
            found = check.parse(f"answer = {source.strip()}", Path("the answer"))
        except DataError:
            continue
        if len(found) == 1:
            return found["answer"]
    return typed.strip()
