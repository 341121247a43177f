"""Mistakes of the teacher in tasks that ask for a class."""

from pathlib import Path

import pytest

from attnlab.course import mark
from attnlab.errors import UserError

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
