"""Time to mark a course: 30 made-up students of the assignment that `attnlab course new` writes.

    python benchmarks/marking.py [--students 30]

Every student has an answer file, predictions and a class of their own, so that every class is audited, timed beside `dot`
and trained. A third of the answer files are right; the others have wrong queries and numbers and malformed answers, and one
is unreadable. Predictions are right to different shares, and two of five classes leak or raise.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path

from attnlab.course import Marks, mark
from attnlab.course.assignment import write_course
from attnlab.machine import cores

TARGET = 20.0  # seconds for 30 students

ANSWERS = [
    ('"10*K[0]"', '"5*(K[0] + K[1])"'),
    ('"K[0]"', '"(K[0] + K[1])/2"'),
    ("[4.7, 6.5, 6.0]", "10*(K[0] + K[1])"),  # the second is not TOML
]
CLASSES = [
    ("is_causal=True)", "is_causal=True)"),
    ("is_causal=True)", "is_causal=True)"),
    ("is_causal=True)", "is_causal=False)"),
    ("is_causal=True)", "is_causal=True).cumsum(2)"),
    ("batch, tokens, width = x.shape", "batch, width = x.shape"),
]


def hand_in(folder: Path, example: Path, number: int) -> None:
    """Write the files of one student."""
    folder.mkdir(parents=True)
    code = (example / "attention.py").read_text(encoding="utf-8").replace(*CLASSES[number % len(CLASSES)])
    (folder / "attention.py").write_text(f"{code}\n# student {number}\n", encoding="utf-8")
    lines = (example / "birth.predictions").read_text(encoding="utf-8").splitlines()
    kept = len(lines) * (number % 4) // 3
    predictions = [line if place < kept else "Detroit" for place, line in enumerate(lines)]
    (folder / "birth.predictions").write_text("".join(f"{line}\n" for line in predictions), encoding="utf-8")
    copy, average = ANSWERS[number % len(ANSWERS)]
    parameters = 3323392 if number % 5 else 3339776
    answers = f"copy = {copy}\naverage = {average}\nrecall = 'birth.predictions'\nparameters = {parameters}\n"
    answers += "attention = 'attention.py:MyAttention'\n'uniform loss' = 'impossible'\n"
    if number % 3 == 0:
        answers = (example / "answers.toml").read_text(encoding="utf-8")
    (folder / "answers.toml").write_bytes(b"\xff\xfe\x00" if number == 29 else answers.encode())


def timed(course: Path, students: Path) -> tuple[Marks, float]:
    """Mark all students, and how long it took."""
    began = time.perf_counter()
    marks = mark(course / "sheet.toml", students, trust_code=True)
    return marks, time.perf_counter() - began


def main() -> None:
    """Print the time, the points and the commonest mistakes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--students", type=int, default=30)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        course = Path(made) / "course"
        write_course(course)
        students = Path(made) / "students"
        for number in range(asked.students):
            hand_in(students / f"student-{number:02}", course / "students/example", number)
        marks, seconds = timed(course, students)
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    busy = sum(one.ru_utime + one.ru_stime for one in spent)
    print(
        f"{asked.students} students in {seconds:.1f} s (target for 30: {TARGET:g} s),"
        f" {busy:.1f} s of processor time on {cores()} cores"
    )
    print(
        "points:",
        ", ".join(f"{n} students {p:g}" for p, n in sorted(Counter(s.points for s in marks.students).items())),
    )
    for task in marks.tasks():
        print(f"{task.name}: {task.passed} of {task.students} passed; " + "; ".join(map(str, task.mistakes[:2]))[:200])


if __name__ == "__main__":
    main()
