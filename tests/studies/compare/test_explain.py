"""Verdicts come from the numbers: other numbers, other words."""

from __future__ import annotations

import re
from typing import Any

import pytest

from attnlab.studies.compare import explain


def ratio(value: float, p: float = 0.001) -> dict[str, float]:
    return {"ratio": value, "ratio_low": value * 0.9, "ratio_high": value * 1.1, "p": p}


def specimen(name: str, whole: float, word_by_word: float, leaks: bool = False) -> dict[str, Any]:
    quality = {"unknown_share": 0.1 if leaks else 0.05, "punctuation_share": 0.3, "mean_length": 7.0}
    audit = {
        "leak_by_position": [0.0, 0.25] if leaks else [0.0, 0.0],
        "causal_leak": 0.25,
        "defect": "it leaks",
        "faults": {"future": "it does"},
    }
    readings = {"sentences": 200, "whole": whole, "word_by_word": word_by_word}
    return {
        "name": name,
        "leaks": leaks,
        "audit": audit,
        "sample_quality": quality,
        "samples": [],
        "word_by_word": readings,
    }


TEXT = {"unknown_share": 0.04, "punctuation_share": 0.12, "mean_length": 25.0}


def explained(whole: dict[str, float], honest: dict[str, float]) -> dict[str, Any]:
    specimens = [specimen("dot", 400.0, 400.0), specimen("bad", 200.0, 800.0, leaks=True)]
    specimens[1]["gain"] = {"whole": whole, "word_by_word": honest}
    return explain.explained({"specimens": specimens, "comparisons": [], "text_quality": TEXT})


@pytest.mark.parametrize(
    ("whole", "honest", "says"),
    [
        (ratio(0.5), ratio(2.0), "The gain is the leak: .* 0.5 times \\(0.45 to 0.55\\) that of dot; .* it is 2 times"),
        (ratio(0.5), ratio(0.98, p=0.4), "The gain is the leak: "),
        (ratio(0.5), ratio(0.75), "58 % of the gain is the leak: "),
        (ratio(0.75), ratio(0.7), "The gain is not the leak: "),
        (ratio(0.999, p=0.7), ratio(1.01), "bad sees the future, and no gain by it is shown"),
        (ratio(1.2), ratio(2.0), "bad sees the future, and no gain by it is shown"),
    ],
)
def test_the_verdict_follows_from_both_readings(whole: dict[str, float], honest: dict[str, float], says: str) -> None:
    (verdict,) = explained(whole, honest)["verdict"]
    assert re.match(says, verdict)


def test_the_explanation_shows_leak_readings_and_samples() -> None:
    said = " ".join(explained(ratio(0.5), ratio(2.0))["explanation"][0]["paragraphs"])
    for part in (
        "1 of 2 positions",
        "25 %",
        "(position 2)",
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
    late["audit"] |= {"leak_by_position": [0.0, 0.0], "faults": {}}
    late["gain"] = {"whole": ratio(0.7), "word_by_word": ratio(1.2)}
    result = {"specimens": [specimen("dot", 400.0, 400.0), late], "comparisons": [], "text_quality": TEXT}
    assert "shows in the trained model only" in explain.explained(result)["explanation"][0]["paragraphs"][0]


def test_faults_without_positions_are_said_as_they_are() -> None:
    broken = specimen("broken", 300.0, 300.0, leaks=True)
    broken["audit"] |= {"leak_by_position": [], "faults": {"prefix": "raises ValueError"}}
    assert "raises ValueError" in explain.found_by_audit("broken", broken["audit"])


def test_a_leaking_reference_is_no_reference() -> None:
    specimens = [specimen("bad", 200.0, 800.0, leaks=True), specimen("dot", 400.0, 400.0)]
    found = explain.explained({"specimens": specimens, "comparisons": [], "text_quality": TEXT})
    assert "name a sound specimen first" in found["verdict"][0]


def test_answers_of_who_sees_the_future_are_its_own() -> None:
    bad = specimen("bad", 200.0, 800.0, leaks=True)
    del bad["samples"]
    comparison = {"a": "bad", "b": "dot", "words": "bad better", "believed": True}
    specimens = [specimen("dot", 400.0, 400.0), bad]
    found = explain.explained({"specimens": specimens, "comparisons": [comparison]})
    assert "training loss is not to be believed" in found["verdict"][0]
    assert found["verdict"][1] == "bad against dot: bad better."
