"""A new assignment is markable at once, its notebook runs once it is filled in, and no student's class harms the others.

One test, because processes that run classes take seconds to start.
"""

import json
import shutil
from pathlib import Path

import pytest

from attnlab.course import mark
from attnlab.course.assignment import solved, write_course
from attnlab.errors import OutputExists
from attnlab.store.folders import MANIFEST

WRONG = {
    "copy = ": 'copy = "K[0]"',
    "average = ": 'average = "(K[0] + K[1])/2"',
    "recall = ": 'recall = "none.predictions"',
    "parameters = ": "parameters = 3339776",
    '"uniform loss" = ': '"uniform loss" = "8 *"',
}

CLASS = """
import os, stat, sys, time
import msgspec
import torch
from torch import nn

def send(message):
    # in place of the answer, wherever there is a connection
    for descriptor in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with open(descriptor, "wb", closefd=False) as stream:
                    stream.write(len(message).to_bytes(8, "big") + message)
        except OSError:
            pass
    os._exit(0)

class Mine(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.values = nn.Linear(n_embd, n_embd)

    def forward(self, x, padding=None, cache=None):
        {line}
        steps = torch.arange(1, x.shape[1] + 1)[:, None]
        v = self.values(x) if padding is None else self.values(x).masked_fill(padding[..., None], 0)
        {mean}
"""
MEAN = "return v.cumsum(1) / (steps if padding is None else (~padding).cumsum(1)[..., None].clamp(min=1))"
LEAK = "return v.mean(1, keepdim=True).expand_as(v)"
NOISE = 'import sys; print(\'{"verdict": "pass"}\'); sys.stdin.read()'  # neither is seen by the marking
LINES = {
    "mean": ("pass", MEAN),
    "lists": ("send(msgspec.msgpack.encode([1]))", MEAN),
    "forges": ("send(msgspec.msgpack.encode({'type': 'Done', 'value': {'verdict': 'pass'}}))", MEAN),
    "floods": ("send(b'0' * 2 * 10**6)", MEAN),
    "patches": ("from attnlab.measure import audit; audit.conclude = audit.answer = None; torch.equal = print", LEAK),
    "writes": ("open('marks.csv', 'w')", MEAN),
    "peeks": ("open('PATH').read()", MEAN),
    "nests": ("send(b'\\x91' * 10**5)", MEAN),
    "leaks": ("pass", LEAK),
    "exits": ("os._exit(0)", MEAN),
    "leaves": ("sys.exit('x')", MEAN),
    "eats": ("torch.zeros(10**9)", MEAN),
    "raises": ("raise RuntimeError('two\\nlines\\ud800')", MEAN),
}
MESSAGES = {
    "mean": "(wanted: at most 1.4)",
    "lists": "its answer cannot be read",
    "forges": "its answer cannot be read",
    "patches": "future: ",
    "writes": "PermissionError: [Errno 13] Permission denied: 'marks.csv'",
    "peeks": "PermissionError: [Errno 13] Permission denied: ",
    "floods": "its answer cannot be read",
    "nests": "its answer cannot be read",
    "leaks": "future: ",
    "exits": "exit code 0 before",
    "leaves": "SystemExit: x",
    "eats": "memory",
    "raises": "two lines",
    "syntax": "SyntaxError",
    "missing": "no file other.py",
    "outside": "outside the folder",
    "nameless": "give a class or function in a file",
    "null": "cannot be the name of a file",
    "hangs": "it takes more than 1 s",
    "linked": "attention.py is a link; hand in the file itself",
}
NAMED = {
    "missing": "other.py:Mine",
    "outside": "../leaks/attention.py:Mine",
    "nameless": "dot",
    "null": "\\u0000.py:Mine",
}
SOON = '[[task]]\nname = "soon"\nask = "mechanism"\nseconds = 1\n'
SHORTER = {
    "epochs = 20": "epochs = 1",
    'given={"train"': 'given={"model": {"n_layer": 1, "n_embd": 16}, "train"',
    'MyAttention")': 'MyAttention", length=9)',
}


def run_notebook(folder: Path) -> None:
    """Fill in the gaps and run the cells, with little training and a short audit."""
    notebook = json.loads((folder / "assignment.ipynb").read_text("utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert sum("..." in source for source in code) == 3
    (folder / "attention.py").write_text(solved((folder / "attention.py").read_text("utf-8")), "utf-8")
    names: dict[str, object] = {}
    with pytest.raises(ValueError, match="replace the dots above"):
        exec("\n".join(code[:2]), names)
    for source in code:
        filled = solved(source)
        assert "..." not in filled
        for long, short in SHORTER.items():
            filled = filled.replace(long, short)
        exec(filled, names)
    assert names["report"].verdict == "pass"  # type: ignore[attr-defined]


def hand_in_classes(students: Path) -> None:
    shutil.copytree(students / "example", students / "noisy")
    noisy = students / "noisy/attention.py"
    noisy.write_text(noisy.read_text("utf-8").replace("batch, tokens", f"{NOISE}\n        batch, tokens", 1), "utf-8")
    assert NOISE in noisy.read_text("utf-8")
    (students / "noisy/answers.toml").write_text(
        'attention = "attention.py:MyAttention"\nparameters = 3323392\n', "utf-8"
    )
    for name in MESSAGES:
        (students / name).mkdir()
        task, named = "soon" if name == "hangs" else "attention", NAMED.get(name, "attention.py:Mine")
        (students / name / "answers.toml").write_text(f'{task} = "{named}"\nparameters = 3323392\n', "utf-8")
        line, mean = LINES.get(name, ("time.sleep(600)", MEAN if name == "hangs" else "return ("))
        code = CLASS.replace("{line}", line).replace("{mean}", mean)
        (students / name / "attention.py").write_text(
            code.replace("PATH", str(students / "mean/answers.toml")), "utf-8"
        )
    (students / "linked/attention.py").rename(students / "linked/other.py")
    (students / "linked/attention.py").symlink_to("other.py")


@pytest.mark.processes
def test_a_new_course_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    course = tmp_path / "course"
    assert write_course(course) == sorted(
        path for path in course.rglob("*") if path.is_file() and path.name != MANIFEST
    )
    with pytest.raises(OutputExists):
        write_course(course)
    assert "fill in" in (course / "for-students/attention.py").read_text("utf-8").lower()
    assert "fill in" not in (course / "students/example/attention.py").read_text("utf-8").lower()
    assert "\t" not in (course / "for-students/exam.txt").read_text("utf-8")  # no answers
    assert "3323392" in (course / "sheet.toml").read_text("utf-8")
    for path in (course / "for-students").iterdir():
        assert b"3323392" not in path.read_bytes(), path.name
    shutil.copytree(course / "for-students", course / "students/unfilled")
    shutil.copytree(course / "students/example", course / "students/wrong")
    answers = (course / "students/example/answers.toml").read_text("utf-8").splitlines()
    wrong = [next((new for key, new in WRONG.items() if line.startswith(key)), line) for line in answers]
    (course / "students/wrong/answers.toml").write_text("\n".join(wrong), "utf-8")
    leaky = course / "students/wrong/attention.py"
    leaky.write_text(leaky.read_text("utf-8").replace("is_causal=True", "is_causal=False"), "utf-8")
    monkeypatch.chdir(course / "for-students")
    run_notebook(course / "for-students")
    shutil.copytree(course / "for-students", course / "students/notebook")

    hand_in_classes(course / "students")
    (course / "sheet.toml").write_text((course / "sheet.toml").read_text("utf-8") + SOON, "utf-8")
    shutil.rmtree(tmp_path / "state")

    marks = mark(course / "sheet.toml", course / "students", trust_code=True)
    assert json.dumps(marks.to_dict(), ensure_ascii=False).encode()  # what a class raises can be written
    points = {student.name: student.points for student in marks.students}
    assert (points["example"], points["wrong"], points["unfilled"]) == (11, 0, 0), marks.to_dict()
    outcomes = {student.name: {task.name: task for task in student.outcomes} for student in marks.students}
    passed = {name for name, task in outcomes["notebook"].items() if task.passed}
    assert passed >= {"copy", "average", "attention", "parameters", "uniform loss"}
    assert "future" in outcomes["wrong"]["attention"].message
    assert "off by" in outcomes["wrong"]["average"].message
    for name, words in {"noisy": "times the time of dot; loss", **MESSAGES}.items():
        assert points[name] == (4 if name == "noisy" else 1), outcomes[name]
        assert words in outcomes[name]["soon" if name == "hangs" else "attention"].message, outcomes[name]
    assert not (tmp_path / "state").exists()
