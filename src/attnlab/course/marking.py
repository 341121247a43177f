"""Mark the answers of one student or of a whole course: points, all mistakes, and a summary per task."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from attnlab.course.answers import Answers, find_answers, read_answers
from attnlab.course.sheets import Mechanism, Sheet, Task, fail, sheet_of
from attnlab.design import inputs
from attnlab.design.check import Outcome, read_toml
from attnlab.errors import UserError, cut, one_line, unknown
from attnlab.machine import cores
from attnlab.report.document import Cell, Column, Document, Row, Section, Table, Text, section
from attnlab.store.usercode import ADVICE

_COMMONEST = 3  # mistakes shown per task
_UNREADABLE = "the answers cannot be read"  # for a reason that is a note
_LONGEST = 200  # letters of a mistake in the summary


@dataclass(frozen=True)
class Student:
    """One student's marks; `notes` are about the file as a whole."""

    name: str
    outcomes: tuple[Outcome, ...]
    notes: tuple[str, ...] = ()

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
    def mistakes(self) -> list[tuple[str, str]]:
        """The tasks that did not pass, each with the reason; notes have no task."""
        failed = [outcome for outcome in self.outcomes if not outcome.passed and outcome.message != _UNREADABLE]
        return [*(("", note) for note in self.notes), *((outcome.name, outcome.message) for outcome in failed)]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        tasks = [{key: value for key, value in asdict(task).items() if key != "alike"} for task in self.outcomes]
        notes = list(self.notes)
        total = {"name": self.name, "passed": self.passed, "points": self.points, "of": self.most}
        return {**total, "tasks": tasks, "notes": notes}


@dataclass(frozen=True)
class Mistake:
    """A wrong answer, by its value, with the number of students who gave it."""

    value: str
    message: str
    students: int

    def __str__(self) -> str:
        message = f"{self.value}: {self.message}" if self.value else self.message
        return cut(f"{self.students}x {message}", _LONGEST)


@dataclass(frozen=True)
class TaskSummary:
    """One task over all students."""

    name: str
    passed: int
    students: int
    mean: float
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
            numbers = (student.points, student.most, *(outcome.earned for outcome in student.outcomes))
            mistakes = " | ".join(f"{task}: {why}" if task else why for task, why in student.mistakes)
            rows.append(Row(Cell(student.name), [*(Cell(f"{x:g}", x) for x in numbers), Cell(mistakes)]))
        return Table("Marks", "", [*columns, Column("mistakes", number=False)], rows)

    def document(self) -> Document:
        """The report: one student's tasks, or all students, their mistakes and a summary per task."""
        if len(self.students) == 1:
            return self._of_one(self.students[0])
        points = [student.points for student in self.students]
        mean, median = statistics.mean(points), statistics.median(points)
        lead = f"{len(points)} students: mean {mean:.3g} and median {_points(median, self.students[0].most).text}."
        sections = [Section("Students", [self._students()])]
        if any(student.mistakes for student in self.students):
            sections.append(Section("Mistakes", [self._mistakes()]))
        return Document("marks", self.title, [lead], [*sections, Section("Tasks", [self._summaries()])])

    def _of_one(self, student: Student) -> Document:
        rows = []
        for task in student.outcomes:
            verdict = Cell("passed", tone="good") if task.passed else Cell("failed", tone="bad")
            message = Cell(task.message, tone="quiet" if task.passed else "")
            rows.append([Cell(task.name), verdict, _points(task.earned, task.points), message])
        readings = sorted({outcome.reading for outcome in student.outcomes if outcome.reading})
        notes = [*student.notes, *(f"This reads the {reading}." for reading in readings)]
        total = _points(student.points, student.most)
        tasks = section(
            "Tasks", _table("Tasks", ("task", "verdict", "points", ""), rows), Text(notes) if notes else None
        )
        return Document("marks", self.title, [f"{student.name}: {total.text}"], tasks)

    def _students(self) -> Table:
        rows = []
        for student in self.students:
            failed = [outcome.name for outcome in student.outcomes if not outcome.passed]
            passed = f"{len(student.outcomes) - len(failed)} of {len(student.outcomes)} tasks"
            total = _points(student.points, student.most)
            rows.append([Cell(student.name), total, Cell(passed), Cell(", ".join(failed))])
        return _table("Students", ("student", "points", "passed", "failed"), rows)

    def _mistakes(self) -> Table:
        rows = []
        for student in self.students:
            points = {outcome.name: _points(outcome.earned, outcome.points) for outcome in student.outcomes}
            for task, why in student.mistakes:
                rows.append([Cell(student.name), Cell(task), points.get(task, Cell("")), Cell(why)])
        return _table("Mistakes", ("student", "task", "points", "reason"), rows)

    def _summaries(self) -> Table:
        rows = []
        for task in self.tasks():
            passed = Cell(f"{task.passed} of {task.students}", task.passed)
            commonest = "\n".join(map(str, task.mistakes[:_COMMONEST]))
            rows.append([Cell(task.name), passed, _points(task.mean, task.points, digits=3), Cell(commonest)])
        return _table("Tasks", ("task", "passed", "mean", "commonest mistakes"), rows)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    header = [Column(column, number=False) for column in columns]
    return Table(title, "", header, [Row(cells[0], cells[1:]) for cells in rows])


def _points(earned: float, most: float, digits: int = 6) -> Cell:
    """Points such as "0.5 of 2 points"."""
    return Cell(f"{earned:.{digits}g} of {most:g} point{'s' * (most != 1)}", earned)


def _summary(outcomes: Sequence[Outcome]) -> TaskSummary:
    first = outcomes[0]
    failed = [outcome for outcome in outcomes if not outcome.passed]
    counted = Counter(outcome.value or outcome.alike for outcome in failed)
    examples = {outcome.value or outcome.alike: outcome for outcome in reversed(failed)}
    mistakes = sorted((Mistake(case.value, case.message, counted[key]) for key, case in examples.items()), key=_rank)
    mean = statistics.mean(outcome.earned for outcome in outcomes)
    return TaskSummary(first.name, len(outcomes) - len(failed), len(outcomes), mean, first.points, tuple(mistakes))


def _rank(mistake: Mistake) -> tuple[int, bool, str]:
    """The commonest first, values before reasons."""
    return -mistake.students, not mistake.value, mistake.value or mistake.message


def mark(
    sheet: Path | str,
    *answers: Path | str,
    trust_code: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Marks:
    """Mark the answers to a sheet: files, or folders with a file or a folder per student.

    Students' classes run only with `trust_code`, in processes with limits of time and memory; without it, the tasks that
    ask for them fail and the rest is marked.
    """
    asked = sheet_of(read_toml(Path(sheet)), Path(sheet))
    paths = find_answers([Path(path) for path in answers], Path(sheet))
    handed_in = [read_answers(name, path) for name, path in paths.items()]
    _run_classes([task for task in asked.tasks if isinstance(task, Mechanism)], handed_in, trust_code, tell)
    return Marks(asked.title, tuple(mark_student(asked, student) for student in handed_in))


def _run_classes(
    tasks: Sequence[Mechanism], students: Sequence[Answers], trust_code: bool, tell: Callable[[str], None]
) -> None:
    """Run the classes of all students at once, if they are trusted."""
    if not tasks:
        return
    from attnlab.course import classes  # needs torch

    jobs: dict[classes.Job, None] = {}
    for task in tasks:
        for answers in students:
            with suppress(UserError):  # reported when the task is marked
                jobs[task.job_of(answers.values.get(task.name), answers)] = None
    not_run = classes.Measured(ended=f"the class was not run: read it, then {ADVICE}")
    measured = classes.run(list(jobs), cores(), tell) if trust_code else dict.fromkeys(jobs, not_run)
    for task in tasks:
        task.measured = measured


def mark_student(sheet: Sheet, answers: Answers) -> Student:
    """Mark the answers of one student; tasks that ask for classes need those to have run."""
    if answers.unreadable:
        nothing = tuple(fail(task, _UNREADABLE) for task in sheet.tasks)
        return Student(answers.student, nothing, (answers.unreadable,))
    known = [task.name for task in sheet.tasks]
    notes = [unknown("task", inputs.shown(name), known) for name in answers.values if name not in {*known, "let"}]
    outcomes = tuple(_comparable(_mark_task(task, answers), answers) for task in sheet.tasks)
    return Student(answers.student, outcomes, tuple(notes))


def _comparable(outcome: Outcome, answers: Answers) -> Outcome:
    """An outcome whose message is the same, but for numbers and the student's own words, for all who made the mistake."""
    message, answer = answers.without_folder(outcome.message), answers.values.get(outcome.name)
    alike = message.replace(answer.partition(":")[0], "") if isinstance(answer, str) else message  # file.py:Class
    return replace(outcome, message=message, alike=re.sub(r"\d+", "", alike))


def _mark_task(task: Task, answers: Answers) -> Outcome:
    answer = answers.values.get(task.name)
    if answer is None:
        return fail(task, "there is no answer")
    try:
        return task.mark(answer, answers)
    except UserError as error:
        return fail(task, str(error))
    except Exception as error:  # no answer may keep the others from being marked
        return fail(task, f"the answer cannot be judged ({one_line(error)})")
