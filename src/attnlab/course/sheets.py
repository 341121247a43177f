"""Sheets: a TOML file of tasks, and the kinds of tasks: attention by hand, files of predictions, mechanisms as classes.

A kind of task is a class made from the settings of one task, which raises UserError if the teacher made a mistake, and whose
`mark` judges one student's answer and fails it with a reason, whatever the student wrote.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attnlab import corpora
from attnlab.config import resolve
from attnlab.course.answers import Answers
from attnlab.design import check, inputs
from attnlab.design.check import Outcome, TomlTable
from attnlab.design.expressions import Exact
from attnlab.errors import DataError, UntrustedCode, UserError, named, unknown
from attnlab.store import records, usercode
from attnlab.store.usercode import ADVICE

if TYPE_CHECKING:
    from attnlab.course.classes import Training
    from attnlab.course.modules import Expected

COMMON = frozenset({"name", "ask", "text", "points"})  # settings of every task
_SIZES = {"n_embd": 64, "n_head": 4, "length": 65, "tokens": 512}
_TRAINING = ("preset", "corpus", "dev", "settings")
_LIMITS = {"seconds": 60.0, "memory": 2.0}
_CLASS = re.compile(r"(?P<file>.+\.py):(?P<name>\w+)")


class Task(Protocol):
    """One task of a sheet."""

    name: str
    points: float

    def mark(self, answer: Any, answers: Answers) -> Outcome:
        """Judge one student's answer."""


def fail(task: Task, message: str, marked: bool = True) -> Outcome:
    """An outcome without points, for this reason."""
    return Outcome(task.name, False, 0.0, task.points, message, marked=marked)


@dataclass(frozen=True)
class Context:
    """What a task may use of its sheet: settings, names, and the folder of its files."""

    settings: TomlTable
    names: Mapping[str, Exact]
    folder: Path


@dataclass(frozen=True)
class Kind:
    """A kind of task: how it is made, and its own settings: what is asked, and what only the teacher may see."""

    make: Callable[[str, TomlTable, Context], Task]
    question: Collection[str]
    solution: Collection[str] = ()


class Design:
    """A task about attention, judged in exact arithmetic; or about numbers."""

    def __init__(self, name: str, own: TomlTable, context: Context) -> None:
        self.task = check.Task(name, context.settings, own, context.names, context.folder)
        self.name, self.points = name, self.task.points

    def mark(self, answer: Any, answers: Answers) -> Outcome:
        """Judge numbers, an expression, or "impossible"."""
        return self.task.mark(answer, answers.let)


def _check_names(own: TomlTable) -> None:
    kind = KINDS[own["ask"]]
    known = COMMON.union(kind.question, kind.solution)
    if extra := sorted(set(own) - known):
        raise UserError(unknown("setting", extra[0], known))


def _numbers(own: TomlTable, setting: str, default: float) -> list[float]:
    value = own.get(setting, default)
    numbers = value if isinstance(value, list) else [value]
    if not numbers or any(isinstance(x, bool | str | list | dict) or not 0 <= x < float("inf") for x in numbers):
        raise UserError(f"{setting} must be a number that is not negative, or a list of such numbers")
    return [float(x) for x in numbers]


def _number(own: TomlTable, setting: str, default: float) -> float:
    numbers = _numbers(own, setting, default)
    if len(numbers) != 1 or numbers[0] == 0:
        raise UserError(f"{setting} must be one positive number")
    return numbers[0]


def _whole(own: TomlTable, setting: str, default: int) -> int:
    number = _number(own, setting, default)
    if number != int(number):
        raise UserError(f"{setting} must be a whole number")
    return int(number)


def _text(own: TomlTable, setting: str, default: str | None = None) -> str:
    text = own.get(setting, default)
    if not isinstance(text, str):
        raise UserError(f"{setting} must be given, as text in quotes")
    return text


def _data(source: str, folder: Path) -> str:
    """The name of built-in data, or the path of a file beside the sheet."""
    return source if corpora.is_built_in(source) else str((folder / source).resolve())


@dataclass(frozen=True)
class Levels:
    """Points for reaching thresholds, the easiest first: at least so much, or at most for those in `_AT_MOST`."""

    points: Sequence[float]
    thresholds: Mapping[str, Sequence[float]]
    _AT_MOST = ("time_ratio", "loss")

    @classmethod
    def read(cls, own: TomlTable, *criteria: str) -> Levels:
        """Read `points` and thresholds, each a number or a list; all lists have the same length."""
        points = _numbers(own, "points", 1)
        thresholds = {name: _numbers(own, name, 0) for name in criteria if name in own}
        if any(len(steps) not in (1, len(points)) for steps in thresholds.values()):
            raise UserError("give as many points as thresholds, such as points = [1, 2]")
        if points != sorted(set(points)):
            raise UserError("points must rise: write the easiest level first, such as points = [1, 3]")
        for name, steps in thresholds.items():
            falls = name in cls._AT_MOST
            if steps != sorted(steps, reverse=falls):
                raise UserError(f"{name} must {'fall' if falls else 'rise'}: write the easiest level first")
        return cls(points, {name: steps * (len(points) // len(steps)) for name, steps in thresholds.items()})

    @property
    def most(self) -> float:
        """The points of the best level."""
        return self.points[-1]

    def outcome(self, name: str, values: Mapping[str, float], messages: Mapping[str, str]) -> Outcome:
        """The best level reached; thresholds of the last level that were missed are named."""
        last = len(self.points) - 1
        missed = [key for key in self.thresholds if not self._reached(key, values[key], last)]
        if not missed:
            return Outcome(name, True, self.most, self.most, "; ".join(messages.values()))
        parts = [text + f" (wanted: {self._shown(key, last)})" * (key in missed) for key, text in messages.items()]
        levels = range(last)
        reached = [level for level in levels if all(self._reached(key, values[key], level) for key in self.thresholds)]
        if reached:
            thresholds = ", ".join(f"{key} {self._shown(key, reached[-1])}" for key in self.thresholds)
            parts.append(f"level reached: {thresholds}")
        earned = self.points[reached[-1]] if reached else 0.0
        return Outcome(name, False, earned, self.most, "; ".join(parts), f"missed: {', '.join(missed)}")

    def _reached(self, criterion: str, value: float, level: int) -> bool:
        wanted = self.thresholds[criterion][level]
        return value <= wanted if criterion in self._AT_MOST else value >= wanted

    def _shown(self, criterion: str, level: int) -> str:
        wanted = self.thresholds[criterion][level]
        size = f"{100 * wanted:g} %" if criterion == "accuracy" else f"{wanted:g}"
        return f"{'at most' if criterion in self._AT_MOST else 'at least'} {size}"


class Predictions:
    """A task that asks for a file of predictions for an exam, one per line."""

    def __init__(self, name: str, own: TomlTable, context: Context) -> None:
        _check_names(own)
        if "accuracy" not in own:
            raise UserError("accuracy must be given, as a share such as 0.2 or several")
        self.name, self.levels = name, Levels.read(own, "accuracy")
        self.points = self.levels.most
        self.exam = corpora.load_questions(_data(_text(own, "exam"), context.folder))
        if any(item.answer is None for item in self.exam):
            raise UserError("the exam has no answers to compare with; write QUESTION<TAB>ANSWER per line")
        if (highest := self.levels.thresholds["accuracy"][-1]) > 1:
            raise UserError(f"accuracy {highest:g} is above 1: write a share such as 0.5")

    def mark(self, answer: Any, answers: Answers) -> Outcome:
        """Score the file that the answer names."""
        from attnlab.lm.exams import Examination

        score = Examination.read(self.exam, answers.path(answer)).score()
        assert score.accuracy is not None
        outcome = self.levels.outcome(self.name, {"accuracy": score.accuracy}, {"accuracy": score.sentence()})
        commonest = f"mostly {score.commonest_prediction}" if score.commonest_share > 0.5 else "accuracy"
        message = f"{outcome.message}; {score.commonest_words()}"
        return replace(outcome, message=message, value="" if outcome.passed else commonest)


class Mechanism:
    """A task that asks for a class that passes the audit and, if the task says so, is fast enough or learns well enough."""

    def __init__(self, name: str, own: TomlTable, context: Context) -> None:
        from attnlab.course.classes import Job

        _check_names(own)
        self.name, self.levels = name, Levels.read(own, "time_ratio", "loss")
        self.points = self.levels.most
        n_embd, n_head, length, tokens = (_whole(own, key, default) for key, default in _SIZES.items())
        if n_embd % n_head or length < 4:
            raise UserError("n_embd must be a multiple of n_head, and length at least 4")
        if "loss" not in own and (extra := [key for key in _TRAINING if key in own]):
            raise UserError(f"{extra[0]} is for a task with a loss; give loss, or leave {extra[0]} out")
        seconds, gigabytes = (_number(own, key, default) for key, default in _LIMITS.items())
        self.job = Job(
            n_embd=n_embd,
            n_head=n_head,
            length=length,
            tokens=tokens if "time_ratio" in own else None,
            training=_training(own, context.folder) if "loss" in own else None,
            seconds=seconds,
            memory=1e9 * gigabytes,
        )

    def mark(self, answer: Any, answers: Answers) -> Outcome:
        """Measure the class that the answer names, if it may run."""
        from attnlab.course.classes import measure

        measured = measure(self.job, *_code(answer, answers), sandbox=answers.code == "sandboxed")
        report = measured.report
        if report is None:
            return fail(self, measured.ended or "nothing was measured")
        if report.verdict != "pass":
            faults = report.faults or report.untested
            reasons = "; ".join(f"{check}: {reason}" for check, reason in faults.items())
            message = "; ".join([f"the verdict of the audit is '{report.verdict}': {reasons}", *report.notes])
            return replace(fail(self, message), value=f"audit: {', '.join(faults)}")
        figures, sentences = dict[str, float](), dict[str, str]()
        if measured.time_ratio is not None:
            figures["time_ratio"] = measured.time_ratio
            sentences["time_ratio"] = f"{measured.time_ratio:.2f} times the time of dot"
        if measured.loss is not None:
            figures["loss"], sentences["loss"] = measured.loss, f"loss {measured.loss:.3f}"
        notes = {note: note for note in report.notes}
        return self.levels.outcome(self.name, figures, (sentences or {"": "passes the audit"}) | notes)


def _code(answer: Any, answers: Answers) -> tuple[bytes, str, str]:
    """The content and name of a file that the student hands in, and the name of a class or function in it."""
    named = _CLASS.fullmatch(answer) if isinstance(answer, str) else None
    if named is None:
        raise UserError('give a class or function in a file, such as "attention.py:MyAttention"')
    path = answers.path(named["file"])
    if answers.code == "refused":
        raise UntrustedCode(f"the code was not run: {ADVICE}")
    return usercode.read(path).content, path.name, named["name"]


class Module:
    """A task that asks for a class or function that computes the same as a reference with the same weights."""

    def __init__(self, name: str, own: TomlTable, context: Context) -> None:
        from attnlab.course.modules import Job

        _check_names(own)
        self.name, self.points = name, _number(own, "points", 1)
        try:
            self.job = records.convert(Job, json.loads(json.dumps(own, default=float)))
        except ValueError as error:
            raise UserError(str(error)) from None
        reference = _CLASS.fullmatch(self.job.reference)
        if self.job.reference and not reference:
            raise UserError('reference must be a class or function in a file, such as "solution.py:MLP"')
        content = usercode.read(context.folder / reference["file"]).content if reference else b""
        self.code = content, reference["name"] if reference else ""

    def mark(self, answer: Any, answers: Answers) -> Outcome:
        """Run what the answer names, if it may run, and compare."""
        from attnlab.course.modules import compare

        code, sandbox = _code(answer, answers), answers.code == "sandboxed"
        if self.code[0] and code[0] == self.code[0]:
            raise UserError("that is the reference of the task; hand in a file of your own")
        compare(self.job, expected(self, sandbox), *code, sandbox=sandbox)
        return Outcome(self.name, True, self.points, self.points, "equal to the reference")


@cache
def expected(task: Module, sandbox: bool) -> Expected:
    """What the reference of a task computes; if it does not run, that is an error of the teacher."""
    from attnlab.course.modules import expect

    with named(task.name):
        return expect(task.job, *task.code, sandbox=sandbox)


def _training(own: TomlTable, folder: Path) -> Training:
    """How to train for a loss; preset, settings and texts are checked before any training."""
    from attnlab.course.classes import Training

    preset, exact = _text(own, "preset", "quick"), own.get("settings", {})
    settings = json.loads(json.dumps(exact, default=float))  # floats instead of the decimals of a sheet
    if not isinstance(settings, dict):
        raise UserError("settings must be a table, such as {train = {epochs = 2}}")
    resolve(preset, given=settings)
    corpus, dev = _data(_text(own, "corpus"), folder), _data(_text(own, "dev"), folder) if "dev" in own else None
    for source in filter(None, (corpus, dev)):
        corpora.load_corpus(source)
    return Training(preset, corpus, dev, json.dumps(settings))


KINDS = {
    **{ask: Kind(Design, question.settings, question.solution) for ask, question in check.ASKS.items()},
    "predictions": Kind(Predictions, ("accuracy",), ("exam",)),
    "mechanism": Kind(Mechanism, ("time_ratio", "loss", *_SIZES, *_TRAINING, *_LIMITS)),
    "module": Kind(Module, ("module", "sizes", "names", "inputs", "tolerance", *_LIMITS), ("reference",)),
}
CLASSES = (Mechanism, Module)  # run students' code


@dataclass(frozen=True)
class Sheet:
    """A sheet that has been read."""

    title: str
    tasks: tuple[Task, ...]


def sheet_of(asked: TomlTable, path: Path) -> Sheet:
    """The sheet with this content, after checking all of it; `path` is where its files are, and gives it a name."""
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
        return KINDS[ask].make(name, own, context)
