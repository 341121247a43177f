"""Verdicts come from the numbers: other numbers, other words."""

from __future__ import annotations

from typing import Any

import pytest

from attnlab.comparing import explain


def specimen(name: str, whole: float, word_by_word: float, leaks: bool = False) -> dict[str, Any]:
    quality = {"unknown_share": 0.1 if leaks else 0.05, "punctuation_share": 0.3, "mean_length": 7.0}
    audit = {"leak_by_position": [0.0, 0.25] if leaks else [0.0, 0.0], "causal_leak": 0.25, "defect": "it leaks"}
    readings = {"sentences": 200, "whole": whole, "word_by_word": word_by_word}
    return {"name": name, "leaks": leaks, "audit": audit, "sample_quality": quality, "word_by_word": readings}


def explained(leaking: tuple[float, float], reference: tuple[float, float] = (400.0, 400.0)) -> dict[str, Any]:
    specimens = [specimen("dot", *reference), specimen("bad", *leaking, leaks=True)]
    text = {"unknown_share": 0.04, "punctuation_share": 0.12, "mean_length": 25.0}
    return explain.explained({"specimens": specimens, "comparisons": [], "text_quality": text})


@pytest.mark.parametrize(
    ("leaking", "says"),
    [
        (
            (200.0, 800.0),
            "The gain is the leak: bad looks better than dot, its token perplexity lower by 50.0 %; word by word",
        ),
        ((200.0, 390.0), "The gain is the leak: .* of which 2.5 % remain"),
        ((200.0, 300.0), "58 % of the gain is the leak"),
        ((401.0, 500.0), "gains nothing by it"),
    ],
)
def test_the_verdict_follows_from_both_readings(leaking: tuple[float, float], says: str) -> None:
    found = explained(leaking)
    assert len(found["verdict"]) == 1
    import re

    assert re.match(f".*{says}", found["verdict"][0])


def test_the_explanation_shows_leak_readings_and_samples() -> None:
    said = " ".join(explained((200.0, 800.0))["explanation"][0]["paragraphs"])
    for part in (
        "1 of 2 positions",
        "25 %",
        "(position 1)",
        "200.0 whole, 800.0 word by word",
        "10.0 % <UNK>",
        "7 words",
    ):
        assert part in said


def test_sound_specimens_need_no_explanation() -> None:
    specimens = [specimen("dot", 400.0, 400.0), specimen("other", 390.0, 390.0)]
    comparison = {"a": "other", "b": "dot", "words": "no difference shown: ...", "believed": True}
    found = explain.explained({"specimens": specimens, "comparisons": [comparison]})
    assert found["explanation"] == []
    assert found["verdict"] == ["other against dot: no difference shown: ...."]


def test_an_untrue_gain_is_said_to_be_one() -> None:
    comparison = {"a": "bad", "b": "dot", "words": "bad better", "believed": False}
    assert "not to be believed" in explain.sentence(comparison)


def test_a_leak_that_only_training_shows_is_explained_as_one() -> None:
    late = specimen("late", 300.0, 500.0, leaks=True)
    late["audit"]["leak_by_position"] = [0.0, 0.0]
    text = {"unknown_share": 0.04, "punctuation_share": 0.12, "mean_length": 25.0}
    found = explain.explained(
        {"specimens": [specimen("dot", 400.0, 400.0), late], "comparisons": [], "text_quality": text}
    )
    assert "found no leak before training" in found["explanation"][0]["paragraphs"][0]


def test_a_leaking_reference_is_no_reference() -> None:
    text = {"unknown_share": 0.04, "punctuation_share": 0.12, "mean_length": 25.0}
    specimens = [specimen("bad", 200.0, 800.0, leaks=True), specimen("dot", 400.0, 400.0)]
    assert (
        "name a sound specimen first"
        in explain.explained({"specimens": specimens, "comparisons": [], "text_quality": text})["verdict"][0]
    )
