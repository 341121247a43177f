"""A new kind of task needs one file: it trains, validates, resumes exactly, writes samples and is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.verbs import call

from attnlab.config import TaskConfig, TaskTraits, resolve
from attnlab.corpora import Corpus
from attnlab.errors import ConfigError
from attnlab.lm import progress, stages, train
from attnlab.lm.tokenizers import Tokenizer
from attnlab.store.runs import Run
from attnlab.tasks import TaskData, make_task

BACKWARDS = '''
"""Lines read from right to left; the last line is held out."""
from attnlab.tasks import Example, Task

class Backwards(Task):
    """Each line once per epoch, from its end to its beginning."""

    reads = "sentences"
    tested = "sentences"

    def __init__(self, data, *, kept: int = 1):
        lines = [data.tokenizer.sentence(line[::-1], data.block_size) for line in data.lines("backwards")]
        self.rows, self.kept, self.longest = [Example(ids, 1) for ids in lines], kept, 30

    def examples(self, rng):
        return [self.rows[number] for number in rng.permutation(len(self.rows) - self.kept)]

    def held_out(self):
        return self.rows[len(self.rows) - self.kept:]

    def prompt(self, example, tokenizer, length):
        return "tac ehT"
'''
LINES = tuple(f"The cat number {number} sees a dog." for number in range(40))
SETTINGS = {
    "model": {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 48, "vocab_size": 0},
    "tokenizer": {"kind": "char"},
    "train": {"epochs": 3.0, "tokens_per_batch": 300, "checkpoint_every": 4, "validate_every": 5, "sample_every": 1},
}


class Killed(Exception):
    """Ends a training as kill -9 would, since nothing catches it."""


@pytest.fixture
def reference(tmp_path: Path) -> str:
    (tmp_path / "backwards.py").write_text(BACKWARDS)
    (tmp_path / "lines.txt").write_text("\n".join(LINES))
    return f"{tmp_path / 'backwards.py'}:Backwards"


def test_one_file_adds_a_task(reference: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = resolve("small", given={**SETTINGS, "task": {"name": reference}})
    corpus = str(tmp_path / "lines.txt")
    whole = stages.pretrain(config, corpus, None, tmp_path / "whole")

    def stop(now: train.Step) -> None:
        if now.step == 7:
            raise Killed

    with pytest.raises(Killed):
        stages.pretrain(config, corpus, None, tmp_path / "resumed", progress.Show(step=stop))
    resumed = stages.resume(Run.open(tmp_path / "resumed"))
    weights = [(run.model / "model.safetensors").read_bytes() for run in (whole, resumed)]
    assert weights[0] == weights[1]

    validated = [row for row in whole.metrics() if row.dev_loss is not None]
    assert len(validated) > 1
    assert all((row.sample or "").startswith("tac ehT") for row in validated)

    assert whole.record.task == TaskTraits("sentences", "sentences", 30)
    assert call("evaluate", whole.path, "--corpus", corpus, "--out", tmp_path / "measured", "--json") == 0
    measured = json.loads(capsys.readouterr().out)
    assert (measured["sentences"], measured["longest"], measured["seen"]) == (len(LINES), 30, len(LINES))
    assert call("corpus", "show", "--task", reference, "--corpus", corpus, "--n", "1", "--tokenizer.kind", "char") == 0
    assert "39 examples" in capsys.readouterr().out


def test_a_task_is_a_subclass_of_task(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Mine:\n    def __init__(self, data): ...\n    def examples(self, rng): ...\n"
    )
    tokenizer = Tokenizer.train("char", LINES, 0)
    with pytest.raises(ConfigError, match="derive it from Task"):
        make_task(TaskConfig(f"{tmp_path / 'mine.py'}:Mine"), TaskData(tokenizer, 48, Corpus("test", LINES)))
