"""Task addition: what follows the sign is learned, once per problem, and a small model learns its sums."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.verbs import call

from attnlab.config import TaskConfig, resolve
from attnlab.corpora import Corpus, Question, load_questions
from attnlab.errors import DataError
from attnlab.lm import stages
from attnlab.lm.evaluate import examine
from attnlab.lm.model import load_model
from attnlab.lm.tokenizers import Tokenizer
from attnlab.tasks import TaskData, make_task, show_example

DIGITS = Tokenizer.train("char", ["0123456789+="], 0)


def data(*lines: str, questions: tuple[Question, ...] = ()) -> TaskData:
    return TaskData(DIGITS, 32, Corpus("sums", lines), questions)


def test_the_sum_and_its_end_are_learned_once_per_problem() -> None:
    asked = (Question("1+2=", "03"), Question("4+4=", "08"))
    examples = make_task(TaskConfig("addition"), data("1+2=03", "9+9=18", questions=asked)).examples(
        np.random.default_rng(0)
    )
    assert [show_example(example, DIGITS) for example in examples] == [
        ("1+2=⁇", "03⁇"),
        ("9+9=⁇", "18⁇"),
        ("4+4=⁇", "08⁇"),
    ]


@pytest.mark.parametrize("line", ["1+2", "1+2="])
def test_a_line_without_a_sum_is_refused(line: str) -> None:
    with pytest.raises(DataError, match="reads lines such as 012\\+345=0357: give --corpus addition:3:train"):
        make_task(TaskConfig("addition"), data("1+2=03", line))


def test_a_small_model_learns_its_sums(tmp_path: Path) -> None:
    given = {"model": {"n_layer": 1, "n_head": 2, "n_embd": 32}, "train": {"epochs": 80.0, "threads": 1}}
    run = stages.pretrain(resolve("addition", given=given), "addition:1:train", None, tmp_path / "run")
    accuracy = examine(*load_model(run.model), load_questions("addition:1:train")).score().accuracy
    assert accuracy is not None
    assert accuracy > 0.9  # by chance: about 0.05


def test_the_commands_know_the_built_in_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = ("--model.n_layer", "1", "--model.n_embd", "16", "--model.n_head", "2", "--train.steps", "2")
    assert call("pretrain", "--preset", "addition", "--out", "run", *small) == 0
    assert '"source":"addition:train"' in Path("run/config.json").read_text(encoding="utf-8").replace(" ", "")
    assert call("evaluate", "run", "--exam", "addition:1:test", "--out", "exam") == 0
    assert call("look", "run", "12+34=", "--question", "--out", "look") == 0
