"""Verdicts come from the numbers: other numbers, other words."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from plans import audit as made_audit

from attnlab import stats
from attnlab.studies.compare.judge import audit_in_words, explain
from attnlab.studies.compare.records import (
    Comparison,
    Effect,
    Gain,
    Quality,
    Readings,
    TextsOverSeeds,
    VariantResult,
)

TEXT = Quality(100, 0.04, 0.12, 0.5, 25.0)


def ratio(value: float, p: float = 0.001) -> Effect:
    return Effect("ratio", value, value * 0.9, value * 1.1, p, "new sentences")


def variant(
    name: str,
    whole: float,
    word_by_word: float,
    leaks: bool = False,
    *,
    gain: Gain | None = None,
    written: bool = True,
    **audit: Any,
) -> VariantResult:
    found = made_audit(name, "fail", (0.0, 0.25) if leaks else (0.0, 0.0), "it leaks", future="it does")
    texts = TextsOverSeeds((), (), Quality(10, 0.1 if leaks else 0.05, 0.3, 0.5, 7.0), TEXT) if written else None
    readings = Readings(200, whole, word_by_word)
    return VariantResult(name, None, {}, (), leaks, replace(found, **audit), readings, texts, gain)


DOT = variant("dot", 400.0, 400.0)


def paragraphs(
    whole: Effect, honest: Effect, kept: tuple[float | None, float | None] = (None, None)
) -> tuple[str, ...]:
    """What is said of a gain of which the share in the interval `kept` is left word by word."""
    share = math.log(honest.value) / math.log(whole.value)
    gain = Gain(whole, honest, stats.RatioOfMeans(share, *kept, 0.05))
    return explain([DOT, variant("bad", 200.0, 800.0, leaks=True, gain=gain)])["bad"]


def compared(words: str, valid: bool) -> str:
    return Comparison("bad", "dot", words, None, valid=valid).sentence  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("whole", "honest", "kept", "says"),
    [
        (
            ratio(0.5),
            ratio(2.0),
            (-1.2, -0.8),
            "The gain is the leak: .* 0.5 times \\(0.45 to 0.55\\) that of dot; .* it is 2 times .*"
            " Word by word 200 % of the gain is gone \\(95 % interval 180 % to 220 %\\)",
        ),
        # Not shown to differ from dot word by word is not enough: a third of the gain may be left.
        (ratio(0.5), ratio(0.98, p=0.4), (-0.3, 0.33), "At least 67 % of the gain is the leak: "),
        (ratio(0.5), ratio(0.98, p=0.4), (-0.05, 0.09), "The gain is the leak: "),
        (ratio(0.5), ratio(0.75), (0.3, 0.6), "At least 40 % of the gain is the leak: "),
        (ratio(0.75), ratio(0.7), (0.9, 1.6), "Whether the gain is the leak is not shown: "),
        (ratio(0.75), ratio(0.9), (None, None), "How much of the gain is the leak is not shown: "),
        (ratio(0.999, p=0.7), ratio(1.01), (None, None), "bad sees the future, and no gain from it is shown"),
        (ratio(1.2), ratio(2.0), (None, None), "bad sees the future, and no gain from it is shown"),
    ],
)
def test_the_verdict_follows_from_the_share_that_is_left(
    whole: Effect, honest: Effect, kept: tuple[float | None, float | None], says: str
) -> None:
    assert re.match(says, paragraphs(whole, honest, kept)[-1])


def test_the_explanation_shows_leak_readings_and_samples() -> None:
    said = " ".join(paragraphs(ratio(0.5), ratio(2.0)))
    for part in (
        "1 of 2 positions",
        "25 %",
        "(position 2)",
        "200.0 whole, 800.0 word by word",
        "10.0 % <UNK>",
        "7 words",
    ):
        assert part in said


def test_sound_variants_need_no_explanation() -> None:
    assert explain([DOT, variant("other", 390.0, 390.0)]) == {}
    assert compared("no difference shown: ...", valid=True) == "bad against dot: no difference shown: ...."


def test_a_gain_from_the_future_is_called_invalid() -> None:
    assert "This is invalid" in compared("bad better", valid=False)


def test_a_leak_that_only_training_shows_is_explained_as_one() -> None:
    gain = Gain(ratio(0.7), ratio(1.2))
    late = variant("late", 300.0, 500.0, leaks=True, gain=gain, leak_by_position=(0.0, 0.0), faults={})
    assert "shows in the trained model only" in explain([DOT, late])["late"][0]


def test_faults_without_positions_are_reported_as_they_are() -> None:
    broken = variant("broken", 300.0, 300.0, leaks=True, leak_by_position=(), faults={"prefix": "raises ValueError"})
    assert "raises ValueError" in audit_in_words("broken", broken.audit)


def test_a_leaking_reference_is_no_reference() -> None:
    bad = variant("bad", 200.0, 800.0, leaks=True)
    assert "name a sound variant first" in explain([bad, variant("dot", 400.0, 400.0)])["bad"][-1]


def test_answers_of_a_model_that_sees_the_future_are_valid() -> None:
    bad = variant("bad", 200.0, 800.0, leaks=True, written=False)
    assert "training loss is invalid" in explain([DOT, bad])["bad"][-1]
    assert compared("bad better", valid=True) == "bad against dot: bad better."
