"""Classes of students: what is measured, and that nothing they do harms the marking of the others."""

from pathlib import Path

import pytest

from attnlab.course import mark
from attnlab.errors import UntrustedCode, UserError

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

[[task]]
name = "soon"
ask = "mechanism"
seconds = 1

[[task]]
name = "two"
ask = "number"
value = 2
"""
CLASS = """
import os, sys, time
import torch
from torch import nn

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
LINES = {
    "good": ('print(\'{"verdict": "pass"}\'); sys.stdin.read()', MEAN),  # neither is seen by the marking
    "leaks": ("pass", "return v.mean(1, keepdim=True).expand_as(v)"),
    "exits": ("os._exit(0)", MEAN),
    "leaves": ("sys.exit('x')", MEAN),
    "eats": ("torch.zeros(10**9)", MEAN),
    "raises": ("raise RuntimeError('two\\nlines')", MEAN),
}
BESIDE = {
    "hangs": 'soon = "attention.py:Mine"',
    "syntax": 'attention = "attention.py:Mine"',
    "missing": 'attention = "other.py:Mine"',
    "outside": 'attention = "../good/attention.py:Mine"',
    "nameless": 'attention = "dot"',
}


def students(folder: Path) -> Path:
    (folder / "sheet.toml").write_text(SHEET, "utf-8")
    for name in (*LINES, *BESIDE):
        place = folder / "students" / name
        place.mkdir(parents=True)
        (place / "answers.toml").write_text(
            BESIDE.get(name, 'attention = "attention.py:Mine"') + "\ntwo = 2\n", "utf-8"
        )
        line, mean = LINES.get(name, ("os.fork() or time.sleep(600)", MEAN if name == "hangs" else "return ("))
        (place / "attention.py").write_text(CLASS.replace("{line}", line).replace("{mean}", mean), "utf-8")
    return folder / "students"


def test_classes_are_judged_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = students(tmp_path)
    with pytest.raises(UntrustedCode, match="--trust-code"):
        mark(tmp_path / "sheet.toml", folder)
    marks = mark(tmp_path / "sheet.toml", folder, trust_code=True)
    earned = {one.name: [outcome.earned for outcome in one.outcomes] for one in marks.students}
    said = {one.name: one.outcomes[one.name == "hangs"].message for one in marks.students}
    assert earned == {name: [1.0 if name == "good" else 0.0, 0.0, 1.0] for name in earned}, said
    expected = {
        "good": "times the time of dot; loss",
        "leaks": "future: ",
        "exits": "exit code 0 before",
        "leaves": "SystemExit: x",
        "eats": "memory",
        "raises": "two lines",
        "hangs": "it takes more than 1 s",
        "syntax": "SyntaxError",
        "missing": "no file other.py",
        "outside": "outside of the folder",
        "nameless": "give a class in a file",
    }
    for name, words in expected.items():
        assert words in said[name], (name, said[name])
    assert "wanted: at most 0.1" in said["good"]
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("n_head = 3", "multiple of n_head"),
        ("points = [1, 2, 3]", "as many points as thresholds"),
        ('corpus = "none.txt"', "none.txt"),
        ('preset = "quik"', "quick"),
        ("time_ratoi = 2", "did you mean time_ratio"),
        ("loss = -1", "not negative"),
    ],
)
def test_mistakes_of_the_teacher_end_the_marking(tmp_path: Path, line: str, words: str) -> None:
    name = line.split(" =")[0]
    kept = [old for old in SHEET.splitlines() if not old.startswith(f"{name} =")]
    kept.insert(kept.index('ask = "mechanism"') + 1, line)
    (tmp_path / "sheet.toml").write_text("\n".join(kept), "utf-8")
    (tmp_path / "ann.toml").write_text("two = 2", "utf-8")
    with pytest.raises(UserError, match=words):
        mark(tmp_path / "sheet.toml", tmp_path / "ann.toml")
