"""Tasks that ask for a class: mistakes of the teacher, and classes that are not trusted."""

from dataclasses import replace
from pathlib import Path

import pytest

from attnlab import sandbox
from attnlab.course import mark
from attnlab.course.classes import Job, measure
from attnlab.errors import UserError
from attnlab.report.text import as_markdown

SHEET = """
[[task]]
name = "attention"
ask = "mechanism"
n_embd = 16
n_head = 2
length = 17
tokens = 32
time_ratio = [1000, 1000]
loss = [1000, 0.1]
points = [1, 4]
corpus = "people:20"
settings = {train = {epochs = 1, tokens_per_batch = 4096}, model = {n_layer = 1, n_embd = 32, vocab_size = 300}}
seconds = 20
memory = 0.5
"""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("n_head = 3", "multiple of n_head"),
        ("points = [1, 2, 3]", "as many points as thresholds"),
        ('corpus = "none.txt"', "none.txt"),
        ('preset = "quik"', "quick"),
        ("time_ratoi = 2", "did you mean time_ratio"),
        ("loss = -1", "not negative"),
        ("loss = [0.1, 1000]", "attention: loss must fall: write the easiest level first"),
    ],
)
def test_mistakes_of_the_teacher_end_the_marking(tmp_path: Path, line: str, words: str) -> None:
    name = line.split(" =")[0]
    kept = [old for old in SHEET.splitlines() if not old.startswith(f"{name} =")]
    kept.insert(kept.index('ask = "mechanism"') + 1, line)
    (tmp_path / "sheet.toml").write_text("\n".join(kept), "utf-8")
    (tmp_path / "ann.toml").write_text("", "utf-8")
    with pytest.raises(UserError, match=words):
        mark(tmp_path / "sheet.toml", tmp_path / "ann.toml")


def test_without_trust_no_class_runs_and_the_rest_is_marked(tmp_path: Path) -> None:
    number = '[[task]]\nname = "parameters"\nask = "number"\nvalue = 3\n'
    (tmp_path / "sheet.toml").write_text(SHEET + number, "utf-8")
    (tmp_path / "ann.toml").write_text('attention = "attention.py:Mine"\nparameters = 3\n', "utf-8")
    (tmp_path / "attention.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Mine: pass\n", "utf-8")
    marks = mark(tmp_path / "sheet.toml", tmp_path / "ann.toml")
    attention, parameters = marks.students[0].outcomes
    assert parameters.passed
    assert (attention.earned, attention.marked) == (0, False)
    assert attention.message.startswith("the code was not run: add --trust-code")
    assert not (tmp_path / "ran").exists()
    assert "1 of 5 points, 1 task not marked" in as_markdown(marks.document())
    assert [cell.text for cell in marks.table().rows[0].cells[:4]] == ["1", "5", "not marked", "1"]
    assert [task.mean for task in marks.tasks()] == [None, 1]
    both = as_markdown(replace(marks, students=marks.students * 2).document())
    assert both.count("not marked") == 2 * 2 + 1  # totals, mistakes and the mean
    assert "0 of 4" not in both


def test_without_a_sandbox_classes_are_refused_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "missing", lambda: "this kernel has no Landlock")
    (tmp_path / "sheet.toml").write_text(SHEET, "utf-8")
    (tmp_path / "ann.toml").write_text("", "utf-8")
    with pytest.raises(UserError, match="no Landlock.*--no-sandbox .*with all your permissions"):
        mark(tmp_path / "sheet.toml", tmp_path / "ann.toml", trust_code=True)
    marks = mark(tmp_path / "sheet.toml", tmp_path / "ann.toml", trust_code=True, sandbox=False)
    assert marks.students[0].outcomes[0].message == "there is no answer"


@pytest.mark.processes
def test_what_a_class_declares_excuses_nothing() -> None:
    """A class decides neither which checks it must pass nor whether a fault counts."""
    code = """
from attnlab.registry import mechanism
from torch import nn

@mechanism("mine", DECLARED)
class Mine(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()

    def forward(self, x):
        return x + x.mean(1, keepdim=True)
"""
    for declared in ("causal=False", "defect='sees the future'"):
        job = Job(n_embd=16, n_head=2, length=17)
        measured = measure(job, code.replace("DECLARED", declared).encode(), "mine.py", "Mine", not sandbox.missing())
        assert measured.report is not None, measured.ended
        assert measured.report.verdict == "fail"
        assert "future" in measured.report.faults


def test_a_file_in_the_folder_of_a_classmate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sheet.toml").write_text(SHEET, "utf-8")
    (tmp_path / "students/bob").mkdir(parents=True)
    (tmp_path / "students/bob/mine.py").write_text("class Mine: pass", "utf-8")
    (tmp_path / "students/ann.toml").write_text('attention = "bob/mine.py:Mine"', "utf-8")
    outcome = mark(tmp_path / "sheet.toml", tmp_path / "students/ann.toml").students[0].outcomes[0]
    assert outcome.message == "bob/mine.py is outside the folder of the answers; put it beside them"


@pytest.mark.processes
@pytest.mark.skipif(bool(sandbox.missing()), reason="no sandbox here")
def test_everything_else_is_marked_before_any_class_runs(tmp_path: Path) -> None:
    """With --no-sandbox a class could change what a classmate hands in."""
    number = '[[task]]\nname = "parameters"\nask = "number"\nvalue = 3\n'
    (tmp_path / "sheet.toml").write_text(SHEET + number, "utf-8")
    students = tmp_path / "students"
    for name in ("ann", "zoe"):
        (students / name).mkdir(parents=True)
        (students / name / "answers.toml").write_text('attention = "mine.py:Mine"\nparameters = 3\n', "utf-8")
    other = students / "zoe/answers.toml"
    (students / "ann/mine.py").write_text(f"open({str(other)!r}, 'w').write('parameters = 4')\nMine = None\n", "utf-8")
    marks = mark(tmp_path / "sheet.toml", students, trust_code=True, sandbox=False)
    assert other.read_text("utf-8") == "parameters = 4"
    assert [student.outcomes[1].passed for student in marks.students] == [True, True]
    other.write_text("parameters = 3", "utf-8")
    mark(tmp_path / "sheet.toml", students, trust_code=True)
    assert other.read_text("utf-8") == "parameters = 3"
