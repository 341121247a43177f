"""Mark the answers of one student or of a whole course: points, all mistakes, and a summary per task."""

from __future__ import annotations

import os
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from attnlab import sandbox as confinement
from attnlab.course.answers import Answers, Code, find_answers, read_answers
from attnlab.course.sheets import CLASSES, Design, Module, Sheet, Task, expected, fail, sheet_of
from attnlab.design import inputs
from attnlab.design.check import Outcome, read_toml
from attnlab.errors import AttnlabError, UntrustedCode, UserError, cut, one_line, unknown
from attnlab.machine import cores
from attnlab.report.document import Cell, Column, Document, Row, Section, Table, Text, section
from attnlab.report.html import as_html
from attnlab.report.text import as_csv, as_markdown
from attnlab.report.words import plural
from attnlab.store import records
from attnlab.supervisor import Limits, call_each
from attnlab.terminal import printable

_COMMONEST = 3  # mistakes shown per task
_UNREADABLE = "the answers cannot be read"  # for a reason that is a note
_SHORT, _LONG = 200, 1000  # letters of a mistake, in the summary and elsewhere
_NOTES = 5  # per student
_SECONDS = 20.0  # to mark a student's answers, but for classes
_START = 60.0  # seconds to start the processes of a class
_MEMORY = 2 * 10**9  # bytes to mark a student's answers
_NO_SANDBOX = "read the classes, then add --no-sandbox (Python: sandbox=False); they then run with all your permissions"


@dataclass(frozen=True)
class Student:
    """One student's marks; `notes` are about the file as a whole, and `unmarked` says why marking ended early."""

    name: str
    outcomes: tuple[Outcome, ...]
    notes: tuple[str, ...] = ()
    unmarked: str = ""

    @property
    def passed(self) -> bool:
        """Whether every task passed."""
        return all(outcome.passed for outcome in self.outcomes)

    @property
    def points(self) -> float:
        """The points earned."""
        return sum(outcome.earned for outcome in self.outcomes)

    @property
    def most(self) -> float:
        """The points of all tasks."""
        return sum(outcome.points for outcome in self.outcomes)

    @property
    def total(self) -> Cell:
        """All points, and how many tasks were not marked."""
        total, left = _points(self.points, self.most), sum(not outcome.marked for outcome in self.outcomes)
        return replace(total, text=f"{total.text}, {plural(left, 'task')} not marked") if left else total

    @property
    def mistakes(self) -> list[tuple[str, str]]:
        """The tasks that did not pass, each with the reason; notes have no task."""
        failed = [outcome for outcome in self.outcomes if not outcome.passed and outcome.message != _UNREADABLE]
        return [*(("", note) for note in self.notes), *((outcome.name, outcome.message) for outcome in failed)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        tasks = [{key: value for key, value in asdict(task).items() if key != "alike"} for task in self.outcomes]
        notes = list(self.notes)
        total = {"name": self.name, "passed": self.passed, "points": self.points, "of": self.most}
        return {**total, "tasks": tasks, "notes": notes, "unmarked": self.unmarked}


@dataclass(frozen=True)
class Mistake:
    """A wrong answer, by its value, with the number of students who gave it."""

    value: str
    message: str
    students: int

    def __str__(self) -> str:
        message = f"{self.value}: {self.message}" if self.value else self.message
        return cut(f"{self.students}x {message}", _SHORT)


@dataclass(frozen=True)
class TaskSummary:
    """One task over all students."""

    name: str
    passed: int
    students: int
    mean: float | None  # of those that were marked
    points: float
    mistakes: tuple[Mistake, ...]


@dataclass(frozen=True)
class Marks:
    """The marks of all students."""

    title: str
    students: tuple[Student, ...]

    @property
    def passed(self) -> bool:
        """Whether every task of every student passed."""
        return all(student.passed for student in self.students)

    @property
    def complete(self) -> bool:
        """Whether all students could be marked."""
        return not any(student.unmarked for student in self.students)

    def tasks(self) -> list[TaskSummary]:
        """How many students passed each task, and the commonest mistakes."""
        return [_summary(outcomes) for outcomes in zip(*(student.outcomes for student in self.students), strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        students = [student.to_dict() for student in self.students]
        return {"title": self.title, "students": students, "tasks": [asdict(task) for task in self.tasks()]}

    def table(self) -> Table:
        """One row per student: all points, those of every task, and the mistakes in words; for spreadsheets."""
        names = [outcome.name for outcome in self.students[0].outcomes]
        columns = [Column("student", number=False), Column("points"), Column("of"), *map(Column, names)]
        rows = []
        for student in self.students:
            numbers = [Cell(f"{x:g}", x) for x in (student.points, student.most)]
            numbers += [_earned(outcome, Cell(f"{outcome.earned:g}", outcome.earned)) for outcome in student.outcomes]
            mistakes = " | ".join(f"{task}: {why}" if task else why for task, why in student.mistakes)
            rows.append(Row(Cell(student.name), [*numbers, Cell(mistakes)]))
        return Table("Marks", "", [*columns, Column("mistakes", number=False)], rows)

    def document(self) -> Document:
        """The report: one student's tasks, or all students, their mistakes and a summary per task."""
        if len(self.students) == 1:
            return self.of_one(self.students[0])
        points = [student.points for student in self.students]
        mean, median = statistics.mean(points), statistics.median(points)
        lead = f"{len(points)} students: mean {mean:.3g} and median {_points(median, self.students[0].most).text}."
        sections = [Section("Students", [self._students()])]
        if any(student.mistakes for student in self.students):
            sections.append(Section("Mistakes", [self._mistakes()]))
        return Document("marks", self.title, [lead], [*sections, Section("Tasks", [self._summaries()])])

    def summary(self) -> Document:
        """The report without reasons: points of all students, and how many passed each task."""
        whole = self.document()
        if len(self.students) == 1:
            return whole
        tasks = self._summaries(reasons=False)
        return replace(whole, sections=[Section("Students", [self._students()]), Section("Tasks", [tasks])])

    def files(self) -> dict[str, bytes]:
        """A page and a table for the teacher, and the feedback for every student by itself."""
        files = {"class.html": as_html(self.document()), "marks.csv": as_csv(self.table())}
        for student in self.students:
            name = stem = re.sub(r"[^\w.()+-]+", "-", student.name).strip("-.") or "student"
            number = 1
            while f"feedback/{name}.md" in files:
                name, number = f"{stem}-{number + 1}", number + 1
            files[f"feedback/{name}.md"] = as_markdown(self.of_one(student))
        return {name: text.encode("utf-8", errors="replace") for name, text in files.items()}

    def of_one(self, student: Student) -> Document:
        """The report for one student: the verdict on every task, and why."""
        rows = []
        for task in student.outcomes:
            verdict = Cell("passed", tone="good") if task.passed else _earned(task, Cell("failed", tone="bad"))
            message = Cell(task.message, tone="quiet" if task.passed else "")
            rows.append([Cell(task.name), verdict, _earned(task, _points(task.earned, task.points)), message])
        readings = sorted({outcome.reading for outcome in student.outcomes if outcome.reading})
        notes = [*student.notes, *(f"This reads the {reading}." for reading in readings)]
        total = student.total
        tasks = section(
            "Tasks", _table("Tasks", ("task", "verdict", "points", ""), rows), Text(notes) if notes else None
        )
        return Document("marks", self.title, [f"{student.name}: {total.text}"], tasks)

    def _students(self) -> Table:
        rows = []
        for student in self.students:
            failed = [outcome.name for outcome in student.outcomes if outcome.marked and not outcome.passed]
            passed = f"{sum(outcome.passed for outcome in student.outcomes)} of {len(student.outcomes)} tasks"
            rows.append([Cell(student.name), student.total, Cell(passed), Cell(student.unmarked or ", ".join(failed))])
        return _table("Students", ("student", "points", "passed", "failed"), rows)

    def _mistakes(self) -> Table:
        rows = []
        for student in self.students:
            points = {task.name: _earned(task, _points(task.earned, task.points)) for task in student.outcomes}
            for name, why in student.mistakes:
                rows.append([Cell(student.name), Cell(name), points.get(name, Cell("")), Cell(why)])
        return _table("Mistakes", ("student", "task", "points", "reason"), rows)

    def _summaries(self, reasons: bool = True) -> Table:
        rows = []
        for task in self.tasks():
            passed = Cell(f"{task.passed} of {task.students}", task.passed)
            commonest = "\n".join(map(str, task.mistakes[:_COMMONEST]))
            mean = Cell("not marked", tone="quiet") if task.mean is None else _points(task.mean, task.points, digits=3)
            rows.append([Cell(task.name), passed, mean, *([Cell(commonest)] if reasons else [])])
        return _table("Tasks", ("task", "passed", "mean", "commonest mistakes")[: 3 + reasons], rows)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    header = [Column(column, number=False) for column in columns]
    return Table(title, "", header, [Row(cells[0], cells[1:]) for cells in rows])


def _earned(outcome: Outcome, cell: Cell) -> Cell:
    """A cell about a task, if it was marked."""
    return cell if outcome.marked else Cell("not marked", tone="quiet")


def _points(earned: float, most: float, digits: int = 6) -> Cell:
    """Points such as "0.5 of 2 points"."""
    return Cell(f"{earned:.{digits}g} of {most:g} point{'s' * (most != 1)}", earned)


def _summary(outcomes: Sequence[Outcome]) -> TaskSummary:
    first = outcomes[0]
    failed = [outcome for outcome in outcomes if not outcome.passed]
    counted = Counter(outcome.value or outcome.alike for outcome in failed)
    examples = {outcome.value or outcome.alike: outcome for outcome in reversed(failed)}
    mistakes = sorted((Mistake(case.value, case.message, counted[key]) for key, case in examples.items()), key=_rank)
    earned = [outcome.earned for outcome in outcomes if outcome.marked]
    mean = statistics.mean(earned) if earned else None
    return TaskSummary(first.name, len(outcomes) - len(failed), len(outcomes), mean, first.points, tuple(mistakes))


def _rank(mistake: Mistake) -> tuple[int, bool, str]:
    """The commonest first, values before reasons."""
    return -mistake.students, not mistake.value, mistake.value or mistake.message


def review(sheet: Path | str) -> Document:
    """Check a sheet, and let the solver answer its tasks about attention."""
    asked = sheet_of(read_toml(Path(sheet)), Path(sheet))
    rows, unsolved = [], 0
    for task in asked.tasks:
        status, why = task.task.solvable() if isinstance(task, Design) else (None, "")
        verdict = Cell("not tried", tone="quiet")
        if status == "solved":
            verdict, why = Cell("solved", tone="good"), ""
        elif status is not None:
            verdict, unsolved = Cell("cannot be solved" if status == "impossible" else status, tone="bad"), unsolved + 1
        rows.append([Cell(task.name), Cell(f"{task.points:g}", task.points), verdict, Cell(why)])
    total = sum(task.points for task in asked.tasks)
    lead = f"The sheet is valid: {plural(len(rows), 'task')}, {total:g} point{'s' * (total != 1)}."
    if unsolved:
        lead += f' {plural(unsolved, "task")} without a solution: where that is proved, "impossible" passes.'
    table = _table("Tasks", ("task", "points", "solver", ""), rows)
    return Document("sheet", asked.title, [lead], section("Tasks", table))


def mark(
    sheet: Path | str,
    *answers: Path | str,
    trust_code: bool = False,
    sandbox: bool = True,
    tell: Callable[[str], None] = lambda _: None,
) -> Marks:
    """Mark the answers to a sheet: files, or folders with a file or a folder per student.

    Every student is marked in another process with limits of time and memory, so that no file can stop the marking.
    Students' classes run only with `trust_code`, in a sandbox, after everything else is marked; without it, the tasks that
    ask for them are not marked.
    """
    asked, path = sheet_of(read_toml(Path(sheet)), Path(sheet)), Path(sheet).resolve()
    classes = [task for task in asked.tasks if isinstance(task, CLASSES)]
    if classes and trust_code and sandbox and (reason := confinement.missing()):
        raise UserError(f"students' classes need a sandbox, and there is none ({reason}): {_NO_SANDBOX}")
    code: Code = "refused" if not trust_code else "sandboxed" if sandbox else "trusted"
    for task in classes if trust_code else ():
        if isinstance(task, Module):
            expected(task, sandbox)
    found = find_answers([Path(answer) for answer in answers], Path(sheet))
    calls = [(os.fsencode(path), printable(name), os.fsencode(place.absolute()), code) for name, place in found.items()]
    seconds = {
        False: _SECONDS,
        True: sum(_START + task.job.seconds * (1 + isinstance(task, Module)) for task in classes),
    }
    imports = ["attnlab.course.classes"] if classes else [__name__]
    values, errors = [list[Any]() for _ in calls], dict[int, AttnlabError]()
    for with_classes in (False, True) if classes else (False,):
        limits, workers = Limits(seconds[with_classes], _MEMORY), cores() if with_classes and trust_code else 1
        each = [(*call, with_classes) for call in calls]
        for done, (number, outcomes, error) in enumerate(call_each(judge, each, limits, workers, imports), 1):
            values[number] += outcomes
            if error is not None:
                errors.setdefault(number, error)
            tell(f"{done} of {len(calls)} students{', classes' * with_classes}")
    students = (_student(asked, call[1], values[n], errors.get(n)) for n, call in enumerate(calls))
    return Marks(asked.title, tuple(students))


def judge(sheet: bytes, student: str, path: bytes, code: Code, classes: bool) -> Iterator[Outcome | str]:
    """Mark the tasks of one student in this process, those that ask for classes or all others; notes come with the others."""
    place = Path(os.fsdecode(sheet))
    asked, answers = _sheet_at(place), read_answers(student, Path(os.fsdecode(path)), code, place.name)
    if not classes:
        yield from _notes(asked, answers)
    yield from (_mark_task(task, answers) for task in asked.tasks if isinstance(task, CLASSES) == classes)


@cache
def _sheet_at(path: Path) -> Sheet:
    return sheet_of(read_toml(path), path)


def _notes(sheet: Sheet, answers: Answers) -> list[str]:
    """What is wrong with a file as a whole."""
    if answers.unreadable:
        return [answers.unreadable]
    known = [task.name for task in sheet.tasks]
    strange = [name for name in answers.values if name not in {*known, "let"}]
    notes = [unknown("task", inputs.shown(name), known) for name in strange[:_NOTES]]
    return notes + [f"{len(strange) - _NOTES} more unknown tasks"] * (len(strange) > _NOTES)


def mark_student(sheet: Sheet, answers: Answers) -> Student:
    """Mark the answers of one student in this process."""
    outcomes = [_mark_task(task, answers) for task in sheet.tasks]
    return _student(sheet, answers.student, [*_notes(sheet, answers), *outcomes])


def _student(sheet: Sheet, name: str, values: Sequence[Any], error: AttnlabError | None = None) -> Student:
    """The marks of a student; tasks that were not reached before an error fail with it."""
    notes = tuple(cut(printable(value), _LONG) for value in values if isinstance(value, str))
    outcomes = [records.convert(Outcome, records.plain(value)) for value in values if not isinstance(value, str)]
    reached = {outcome.name: outcome for outcome in outcomes}
    unmarked = "" if error is None else f"marking ended early: {error}"
    every = tuple(reached.get(task.name) or fail(task, unmarked) for task in sheet.tasks)
    return Student(name, every, notes, unmarked)


def _mark_task(task: Task, answers: Answers) -> Outcome:
    """The outcome of a task; its message is the same, but for numbers and own words, for all who made the mistake."""
    answer = answers.values.get(task.name)
    outcome = fail(task, _UNREADABLE) if answers.unreadable else _judge(task, answer, answers)
    message = cut(printable(outcome.message.replace(f"{answers.folder.resolve()}{os.sep}", "")), _LONG)
    alike = message.replace(answer.partition(":")[0], "") if isinstance(answer, str) else message  # file.py:Class
    return replace(outcome, message=message, alike=re.sub(r"\d+", "", alike))


def _judge(task: Task, answer: Any, answers: Answers) -> Outcome:
    if answer is None:
        return fail(task, "there is no answer")
    try:
        return task.mark(answer, answers)
    except UntrustedCode as error:
        return fail(task, str(error), marked=False)
    except UserError as error:
        return fail(task, str(error))
    except Exception as error:  # no answer may keep the others from being marked
        return fail(task, f"the answer cannot be judged ({one_line(error)})")
