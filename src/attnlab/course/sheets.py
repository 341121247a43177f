"""Sheets: a TOML file of tasks, and the registry of what a task may ask for.

A kind of task is a class made from the settings of one task, which raises UserError if the teacher made a mistake, and whose
`mark` judges one student's answer, which fails it with a reason whatever the student wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from attnlab.course.answers import Answers
from attnlab.course.kinds import Mechanism, Predictions
from attnlab.design import check, inputs
from attnlab.design.check import Outcome, TomlTable
from attnlab.design.expressions import Exact
from attnlab.errors import DataError, UserError, named, unknown


class Task(Protocol):
    """One task of a sheet."""

    name: str
    points: float

    def mark(self, answer: Any, answers: Answers) -> Outcome:
        """Judge one student's answer."""


@dataclass(frozen=True)
class Context:
    """What a task may use of its sheet: settings, names, and the folder of its files."""

    settings: TomlTable
    names: Mapping[str, Exact]
    folder: Path


class Design:
    """A task about attention, judged in exact arithmetic; or about numbers."""

    def __init__(self, name: str, own: TomlTable, context: Context) -> None:
        self.task = check.Task(name, context.settings, own, context.names, context.folder)
        self.name, self.points = name, self.task.points

    def mark(self, answer: Any, answers: Answers) -> Outcome:
        """Judge numbers, an expression, or "impossible"."""
        return self.task.mark(answer, answers.let)


KINDS: dict[str, Callable[[str, TomlTable, Context], Task]] = {
    **dict.fromkeys(check.ASKS, Design),
    "predictions": lambda name, own, context: Predictions(name, own, context.folder),
    "mechanism": lambda name, own, context: Mechanism(name, own, context.folder),
}


@dataclass(frozen=True)
class Sheet:
    """A sheet that has been read."""

    title: str
    tasks: tuple[Task, ...]

    @property
    def points(self) -> float:
        """The points of all tasks."""
        return sum(task.points for task in self.tasks)


def read_sheet(path: Path) -> Sheet:
    """Read a sheet; a mistake in it is an error, before anything is marked."""
    return sheet_of(check.read_toml(path), path)


def sheet_of(asked: TomlTable, path: Path) -> Sheet:
    """The sheet with this content; `path` is where its files are, and gives it a name."""
    with named(path.name):
        check.check_settings(asked)
    if not isinstance(asked.get("task"), list) or not asked["task"]:
        raise DataError(f"{path.name} has no tasks; add [[task]] with a name and what to ask: {', '.join(KINDS)}")
    context = Context(asked, check.read_names(asked, path), path.parent)
    tasks = tuple(_task(place, own, context) for place, own in enumerate(asked["task"], start=1))
    known = [task.name for task in tasks]
    if twice := sorted({name for name in known if known.count(name) > 1}):
        raise UserError(f"{path.name}: two tasks are called '{twice[0]}'; give every task its own name")
    return Sheet(str(asked.get("title", path.stem)), tasks)


def _task(place: int, own: Any, context: Context) -> Task:
    name = f"task {place}"
    if not isinstance(own, dict):
        raise UserError(f"{name} must be a table; write [[task]] and its settings below")
    with named(name):
        check.check_settings({key: own[key] for key in ("name", "ask", "text") if key in own})
    name, ask = str(own.get("name", name)), str(own.get("ask", ""))
    with named(name):
        if ask not in KINDS:
            raise UserError(unknown("ask", inputs.shown(ask), KINDS))
        return KINDS[ask](name, own, context)
