import csv
import json
import os
from pathlib import Path

import pytest

from attnlab import cli
from attnlab.course import mark, marking
from attnlab.errors import UserError
from verbs import call

SHEET = """
title = "Two tasks"
keys = [[1, 0], [0, 1], [-1, -1]]
values = [[1, 0], [0, 1], [1, 1]]

[[task]]
name = "copy"
ask = "select"
index = 0

[[task]]
name = "average two"
ask = "average"
indices = [0, 1]
points = 2
"""
RIGHT = 'copy = [9, -9]\n"average two" = "10*(K[0] + K[1])"\n'
STUDENTS = {
    "right": RIGHT,
    "unscaled": 'copy = [9, -9]\n"average two" = "(K[0] + K[1])/4"\n',
    "unscaled-too": '"average two" = [0.250, 0.25]\ncopy = "9*(K[0] - K[1])"\n',
    "unquoted": 'copy = [9, -9]\n\n"average two" = 10*(K[0] + K[1])\n',
    "twice": 'copy = [9, -9]\n"average two" = [10, 10]\ncopy = [1, 2]\n',
    "misspelt": 'cpoy = [9, -9]\n"average two" = [\n  10,\n  10,\n]\n',
    "no-table": "copy = [9, -9]\nlet = 3\n",
    "other-name": 'copy = [9, -9]\n"average two" = "D*(K[0] + K[1])"\n[let]\nC = "Q[0]"\nD = 10\n',
    "empty": "",
}


@pytest.fixture
def course(tmp_path: Path) -> Path:
    (tmp_path / "students").mkdir()
    (tmp_path / "sheet.toml").write_text(SHEET, "utf-8")
    for name, answers in STUDENTS.items():
        (tmp_path / f"students/{name}.toml").write_text(answers, "utf-8")
    (tmp_path / "students/binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "students/=cmd()").mkdir()
    return tmp_path


def test_every_student_is_marked_whatever_the_others_wrote(course: Path) -> None:
    marks = mark(course / "sheet.toml", course / "students")
    points = {student.name: student.points for student in marks.students}
    expected = {"right": 3, "unscaled": 1, "unscaled-too": 1, "unquoted": 0, "twice": 0, "misspelt": 2}
    assert points == expected | {"no-table": 0, "other-name": 3, "empty": 0, "binary": 0, "=cmd()": 0}
    messages = {student.name: dict(student.mistakes) for student in marks.students}
    assert "unquoted.toml is not TOML: " in messages["unquoted"][""]
    assert "at line 3" in messages["unquoted"][""]
    assert "at line 3" in messages["twice"][""]
    assert "did you mean copy" in messages["misspelt"][""]
    assert messages["misspelt"]["copy"] == messages["empty"]["copy"] == "there is no answer"
    assert "UTF-8" in messages["binary"][""]
    assert "0 TOML files" in messages["=cmd()"][""]
    assert "let must be a table" in messages["no-table"][""]
    assert list(messages["binary"]) == [""]


def test_a_dotted_folder_is_named_in_full_and_links_to_nothing_stop_nobody(course: Path) -> None:
    (course / "students/j.doe").mkdir()
    (course / "students/j.doe/answers.toml").write_text(RIGHT, "utf-8")
    (course / "students/gone.toml").symlink_to("nowhere.toml")
    (course / "students/g.one").symlink_to("nowhere")
    (course / "students/loop.toml").symlink_to("loop.toml")
    students = {student.name: student for student in mark(course / "sheet.toml", course / "students").students}
    assert (students["j.doe"].points, students["right"].points) == (3, 3)
    for name in ("gone.toml", "g.one", "loop.toml"):
        assert f"{name} is a link; hand in the file itself" in students[name.removesuffix(".toml")].notes[0]


def test_links_to_the_work_of_others_score_nothing(course: Path) -> None:
    students = course / "students"
    (students / "thief.toml").symlink_to("right.toml")
    for name in ("ann", "bob", "eve"):
        (students / name).mkdir()
    (students / "ann/answers.toml").write_text(RIGHT, "utf-8")
    (students / "bob/answers.toml").symlink_to("../ann/answers.toml")
    (students / "eve").rmdir()
    (students / "eve").symlink_to("ann")
    marks = {student.name: student for student in mark(course / "sheet.toml", students).students}
    assert [marks[name].points for name in ("ann", "thief", "bob", "eve")] == [3, 0, 0, 0]
    assert all("is a link" in marks[name].notes[0] for name in ("thief", "bob", "eve"))


@pytest.mark.processes
def test_no_file_keeps_the_others_from_being_marked(
    course: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(marking, "_SECONDS", 3.0)
    students = course / "students"
    names = "\n".join(f'm{step + 1} = "m{step}^m{step}"' for step in range(9))
    large = ", ".join(["1.0"] * 1000)
    bomb = "\n".join(f'm{number} = "v^v"' for number in range(12))
    (students / "bomb.toml").write_text(f'copy = "m1[0]"\n[let]\nv = [{large}]\n{bomb}\n', "utf-8")
    (students / "tower.toml").write_text(f'copy = "m9"\n[let]\nm0 = [1, 2]\n{names}\n', "utf-8")
    (students / "long.toml").write_text("\n".join(f"task{number} = 1" for number in range(20_000)), "utf-8")
    os.mkfifo(students / "pipe.toml")
    (students / os.fsdecode(b"caf\xe9.toml")).write_text(RIGHT, "utf-8")
    (students / "colour\x1b[31m.toml").write_text(f'copy = "{"x" * 60_000}\\u001b[31m"\n', "utf-8")
    (students / "z-last.toml").write_text(RIGHT, "utf-8")
    marks = {student.name: student for student in mark(course / "sheet.toml", students).students}
    assert (marks["z-last"].points, marks["caf\\udce9"].points) == (3, 3)
    assert marks["bomb"].unmarked == "marking ended early: it takes more than 3 s"
    assert "more unknown tasks" in marks["long"].notes[-1]
    assert "not a file" in marks["pipe"].notes[0]
    table = course / "marks.csv"
    assert call("check", course / "sheet.toml", students, "--csv", table) == 1  # one could not be marked
    assert "marking ended early" in capsys.readouterr().out
    content = table.read_text("utf-8")
    assert "\x1b" not in content
    assert max(map(len, content.splitlines())) < 3000
    (students / "bomb.toml").unlink()
    assert call("check", course / "sheet.toml", students) == 0


def test_mistakes_are_counted_by_value(course: Path) -> None:
    task = mark(course / "sheet.toml", course / "students").tasks()[1]
    assert (task.passed, task.students, task.points) == (3, 11, 2)
    by_value = {mistake.value: mistake for mistake in task.mistakes}
    assert by_value["[0.25, 0.25]"].students == 2
    assert "off by" in by_value["[0.25, 0.25]"].message
    by_message = {mistake.message: mistake.students for mistake in task.mistakes}
    assert by_message["the answers cannot be read"] == 5


def test_no_message_tells_where_the_students_files_are(course: Path) -> None:
    (course / "students/loop.toml").symlink_to("loop.toml")
    assert str(course) not in json.dumps(mark(course / "sheet.toml", course / "students").to_dict())


def test_marks_for_a_spreadsheet(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["check", str(course / "sheet.toml"), str(course / "students"), "--csv", str(course / "new/marks.csv")]
    cli.main(command)
    out = capsys.readouterr().out
    assert "1 of 3 points" in out
    assert "3 of 11" in out
    rows = list(csv.DictReader((course / "new/marks.csv").read_text("utf-8").splitlines()))
    by_name = {row["student"]: row for row in rows}
    assert list(rows[0]) == ["student", "points", "of", "copy", "average two", "mistakes"]
    assert [by_name["unscaled"][name] for name in ("points", "of", "copy", "average two")] == [
        "1.0",
        "3.0",
        "1.0",
        "0.0",
    ]
    assert "average two: the output is" in by_name["unscaled"]["mistakes"]
    assert "'=cmd()" in by_name
    with pytest.raises(SystemExit) as caught:
        cli.main(command)
    assert caught.value.code == 2


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_marks_are_shown_even_if_they_cannot_be_written(
    course: Path, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    place = course / "sheet.toml/marks.csv"  # below a file
    assert call("check", course / "sheet.toml", course / "students", "--csv", place, *more) == 1
    captured = capsys.readouterr()
    assert "average two" in captured.out
    assert "cannot write" in captured.err


def test_the_exit_code_is_1_where_a_named_file_fails(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheet, right, wrong = course / "sheet.toml", course / "students/right.toml", course / "students/empty.toml"
    calls = ((right,), (wrong,), (right, wrong), (course / "students",))
    assert [call("check", sheet, *answers) for answers in calls] == [0, 1, 1, 0]
    for twice in ((right, right), (course / "students", right)):
        assert call("check", sheet, *twice) == 2
        assert f"{right} is given twice: name it once" in capsys.readouterr().err


def test_the_sheet_may_lie_among_the_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sheet.toml").write_text(SHEET, "utf-8")
    with pytest.raises(UserError, match="has no answers"):
        mark(tmp_path / "sheet.toml", tmp_path)
    (tmp_path / "ann").mkdir()
    (tmp_path / "ann/my answers.toml").write_text(RIGHT, "utf-8")
    (tmp_path / "ann.toml").write_text(RIGHT, "utf-8")
    cli.main(["check", str(tmp_path / "sheet.toml"), str(tmp_path), "--json"])
    summary = json.loads(capsys.readouterr().out)
    assert sorted(row["name"] for row in summary["students"]) == [str(tmp_path / "ann"), str(tmp_path / "ann.toml")]
    assert all(row["points"] == row["of"] == 3 for row in summary["students"])


def test_a_sheet_alone_is_checked_and_solved(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheet = course / "sheet.toml"
    text = SHEET.replace("keys = [[1, 0], [0, 1], [-1, -1]]", "keys = [[-1], [0], [1]]").replace(
        "index = 0", "index = 1"
    )
    sheet.write_text(text + '[[task]]\nname = "two"\nask = "number"\nvalue = 2\n', "utf-8")
    assert call("check", sheet) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "The sheet is valid: 3 tasks, 4 points. 2 tasks without a solution" in out  # nor the average of 0 and 1
    assert "copy 1 cannot be solved Key 1 is 0.5·k_0 + 0.5·k_2" in out
    assert "two 1 not tried" in out
    sheet.write_text(SHEET, "utf-8")
    assert call("check", sheet) == 0
    out = capsys.readouterr().out
    assert "without a solution" not in out
    assert out.count("solved") == 2
    sheet.write_text(SHEET.replace("index = 0", "index = 9"), "utf-8")
    assert call("check", sheet) == 2
    assert call("check", sheet, "--csv", course / "marks.csv") == 2
    assert "there are no answers to mark" in capsys.readouterr().err


def test_a_summary_is_shown_and_the_reasons_are_files(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheet, out = course / "sheet.toml", course / "marked"
    assert call("check", sheet, course / "students", "--out", out) == 0
    shown = capsys.readouterr().out
    assert "misspelt" in shown
    assert "there is no answer" not in shown  # the reasons are in the files
    page = (out / "class.html").read_text("utf-8")
    assert "there is no answer" in page
    assert all(name in page for name in STUDENTS)
    assert (out / "marks.csv").read_text("utf-8").count("\n") == 12
    feedback = {path.name: path.read_text("utf-8") for path in (out / "feedback").iterdir()}
    assert len(feedback) == 11
    assert "there is no answer" in feedback["misspelt.md"]
    assert "unscaled" not in feedback["misspelt.md"]  # nobody else's
    assert "cmd().md" in feedback  # a name without what a program could run
    assert call("check", sheet, course / "students", "--out", out) == 2
    assert "exists already" in capsys.readouterr().err


def test_students_are_named_by_their_folder_where_the_file_does_not_tell(course: Path) -> None:
    for name in ("ann", "bob"):
        (course / name).mkdir()
        (course / name / "answers.toml").write_text(RIGHT, "utf-8")
        (course / name / "week1.toml").write_text(RIGHT, "utf-8")
    paths = [course / name / "answers.toml" for name in ("ann", "bob")]
    assert [student.name for student in mark(course / "sheet.toml", *paths).students] == ["ann", "bob"]
    assert [student.name for student in mark(course / "sheet.toml", paths[0]).students] == ["ann"]
    weeks = [path.with_name("week1.toml") for path in paths]
    assert [student.name for student in mark(course / "sheet.toml", *weeks).students] == ["ann", "bob"]
    assert mark(course / "sheet.toml", weeks[0]).students[0].name == "week1"
