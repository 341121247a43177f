"""What is said before training of data that cannot show a difference."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from plans import data, make_plan

from attnlab.studies.compare.cautions import Cautions, cautions

WORDS: dict[str, Any] = {"task": "words", "data": data("prose:100:train", "prose:300:dev")}


def lines_of(words: int, folder: Path) -> dict[str, Any]:
    for part in ("train", "dev"):
        sentences = [" ".join(f"{part}{row}x{at}" for at in range(words)) + " ." for row in range(30)]
        (folder / f"{part}.txt").write_text("\n\n".join(sentences) + "\n", encoding="utf-8")
    return {"task": "words", "data": data(str(folder / "train.txt"), str(folder / "dev.txt"))}


def test_a_window_that_covers_every_text_makes_equal_computations(tmp_path: Path) -> None:
    short = lines_of(10, tmp_path)
    told = cautions(make_plan(["dot", "sliding"], **short))
    found = told.notes
    assert told.equal == (("sliding", "dot"),)
    assert found[0].startswith(
        "sliding and dot compute the same on texts of 12 tokens, the longest here: use longer texts"
    )
    assert "a smaller window" in found[0]
    assert len(found) == 1  # that the texts are short for a window is no second note
    model = {"model": {"options": {"sliding": {"window": 4}}}}
    assert cautions(make_plan(["dot", "sliding"], given=model, **short)) == Cautions(())


def test_values_of_an_option_may_be_equal_too(tmp_path: Path) -> None:
    given = {"model": {"mechanism": "sliding"}}
    plan = make_plan([], vary="model.options.sliding.window=20,40", given=given, **lines_of(10, tmp_path))
    assert "compute the same on texts of 12 tokens" in cautions(plan).notes[0]


def test_mechanisms_that_differ_and_settings_of_training_need_no_caution(tmp_path: Path) -> None:
    plain = lines_of(10, tmp_path)
    assert cautions(make_plan(["dot", "additive", "alibi"], **plain)) == Cautions(())
    given = {"model": {"mechanism": "dot"}}
    assert cautions(make_plan([], vary="train.lr=0.001,0.002", given=given, **plain)) == Cautions(())


@pytest.mark.parametrize(
    ("name", "bound"), [("linear", "its head size is"), ("linformer", "its rank is"), ("perceiver", "its latents is")]
)
def test_texts_shorter_than_what_a_mechanism_is_made_for_are_said(name: str, bound: str, tmp_path: Path) -> None:
    (found,) = cautions(make_plan(["dot", name], **lines_of(3, tmp_path))).notes
    assert found.startswith(f"{name} is made for texts of more than ")
    assert bound in found


def test_two_that_are_one_function_get_no_advice_that_cannot_help(tmp_path: Path) -> None:
    told = cautions(make_plan(["dot", "zero_mask_control", "sliding"], **lines_of(10, tmp_path)))
    assert told.equal == (("zero_mask_control", "dot"), ("sliding", "dot"))
    assert told.notes[0] == "zero_mask_control and dot compute the same on texts of 12 tokens, the longest here."
    assert told.notes[1].endswith("use longer texts or a smaller window.")


def test_weights_that_begin_at_zero_do_not_make_two_mechanisms_equal(tmp_path: Path) -> None:
    (tmp_path / "gated.py").write_text(
        "import torch\nfrom attnlab.mechanisms.dot import Dot\n\n\n"
        "class Plain(Dot):\n"
        '    """Dot."""\n'
        "    def __init__(self, n_embd, n_head, block_size):\n"
        "        super().__init__(n_embd, n_head, block_size)\n"
        "        self.gate = torch.nn.Parameter(torch.zeros(n_embd))\n\n"
        "class Gated(Plain):\n"
        '    """Dot times a gate."""\n'
        "    def forward(self, x, *args, **kwargs):\n"
        "        return super().forward(x, *args, **kwargs) * (1 + self.gate * x)\n"
    )
    names = [f"{tmp_path / 'gated.py'}:{name}" for name in ("Plain", "Gated")]
    assert cautions(make_plan(names, **lines_of(10, tmp_path))).equal == ()


def test_what_an_option_covers_is_no_value_of_the_option(tmp_path: Path) -> None:
    (note,) = cautions(make_plan(["additive", "bigbird"], **lines_of(10, tmp_path))).notes
    assert re.search(r"its window_blocks cover 192\)", note)


def test_sentences_without_documents_are_said_to_count_as_independent(tmp_path: Path) -> None:
    given = lines_of(10, tmp_path)
    dev = tmp_path / "dev.txt"
    dev.write_text(dev.read_text(encoding="utf-8").replace("\n\n", "\n"), encoding="utf-8")
    (note,) = cautions(make_plan(["dot", "additive"], **given)).notes
    assert note.endswith("p is far too small: separate documents by blank lines.")
