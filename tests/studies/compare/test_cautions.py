"""What is said before training of data that cannot show a difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plans import data, make_plan

from attnlab.studies.compare.cautions import cautions

WORDS: dict[str, Any] = {"task": "words", "data": data("prose:100:train", "prose:300:dev")}


def lines_of(words: int, folder: Path) -> dict[str, Any]:
    for part in ("train", "dev"):
        sentences = [" ".join(f"{part}{row}x{at}" for at in range(words)) + " ." for row in range(30)]
        (folder / f"{part}.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return {"task": "words", "data": data(str(folder / "train.txt"), str(folder / "dev.txt"))}


def test_a_window_that_covers_every_text_makes_equal_computations(tmp_path: Path) -> None:
    short = lines_of(10, tmp_path)
    found = cautions(make_plan(["dot", "sliding"], **short))
    assert found[0].startswith(
        "sliding and dot compute the same on texts of 12 tokens, the longest here: use longer texts"
    )
    assert "a smaller window" in found[0]
    assert found[1].startswith("sliding is made for texts of more than ")
    model = {"model": {"options": {"sliding": {"window": 4}}}}
    assert not cautions(make_plan(["dot", "sliding"], given=model, **short))


def test_values_of_an_option_may_be_equal_too(tmp_path: Path) -> None:
    given = {"model": {"mechanism": "sliding"}}
    plan = make_plan([], vary="model.options.sliding.window=20,40", given=given, **lines_of(10, tmp_path))
    assert "compute the same on texts of 12 tokens" in cautions(plan)[0]


def test_mechanisms_that_differ_and_settings_of_training_need_no_caution(tmp_path: Path) -> None:
    plain = lines_of(10, tmp_path)
    assert not cautions(make_plan(["dot", "additive", "alibi"], **plain))
    given = {"model": {"mechanism": "dot"}}
    assert not cautions(make_plan([], vary="train.lr=0.001,0.002", given=given, **plain))


@pytest.mark.parametrize(
    ("name", "bound"), [("linear", "its head size is"), ("linformer", "its rank is"), ("perceiver", "its latents is")]
)
def test_texts_shorter_than_what_a_mechanism_is_made_for_are_said(name: str, bound: str, tmp_path: Path) -> None:
    (found,) = cautions(make_plan(["dot", name], **lines_of(3, tmp_path)))
    assert found.startswith(f"{name} is made for texts of more than ")
    assert bound in found
