"""Thresholds and verdicts at their edges, by hand-made calibrations, rules and questions."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from attnlab import stats
from attnlab.corpora import Corpus, Question
from attnlab.corpora.library import Evidence, Line
from attnlab.errors import DataError, UserError
from attnlab.trust import Calibrated, Row, calibrating
from attnlab.trust.training_data import Forms
from attnlab.trust.verdict import CONTRADICTS, GUESS, INFERRED, judge

RULE = stats.selective_rule([0.95] * 80 + [0.3] * 40, [True] * 80 + [False] * 40, 0.1, lowest=0.95)
UNMET = stats.selective_rule([0.95] * 6, [True] * 6, 0.1)
PLACES = frozenset({"Bath", "Leeds", "Rome", "York", "Oslo"})


def about(*lines: str) -> Evidence:
    return Evidence("Where?", "", tuple(Line(number, line) for number, line in enumerate(lines)), None, ())


FOUR = about("Ann Lee. Lee lived in Bath, Leeds, Rome and York .")


def calibrated(right: int, wrong: int, **fields: object) -> Calibrated:
    """Certain answers that are right, and doubtful ones that are wrong."""
    rows = [Row("", "", "", True, 0.99, 0.99)] * right + [Row("", "", "", False, 0.2, 0.2)] * wrong
    found = Calibrated("", stats.Platt(1.0, 0.0), ("a", "b", "c"), (), tuple(rows), 7, 2)
    return replace(found, **fields)


def test_at_most_three_places_of_a_line_are_named() -> None:
    instead = judge("Oslo", 0.95, RULE, FOUR, PLACES)
    assert instead.reasons == ("The line about Ann Lee names Bath, Leeds and Rome instead.",)
    also = judge("York", 0.95, RULE, FOUR, PLACES)
    assert also.reasons == ("The line about Ann Lee names it, but also Bath, Leeds and Rome.",)


def test_a_guess_is_close_to_the_prior_below_a_half() -> None:
    assert "any name" in judge("York", 0.2, RULE, FOUR, PLACES, distance=0.49).reasons[0]
    assert "any name" not in judge("York", 0.2, RULE, FOUR, PLACES, distance=0.5).reasons[0]


def test_a_guess_says_what_it_lacks() -> None:
    assert judge("York", 0.2, RULE, FOUR, PLACES).reasons == (
        "A guess: its probability of 20.0 % is below the required 95.0 %.",
    )
    strict = replace(RULE, threshold=0.99912345)
    assert "the required 99.9124 %" in judge("York", 0.2, strict, FOUR, PLACES).reasons[0]
    even = judge("York", 0.2, None, FOUR, PLACES)
    assert even.reasons == ("A guess: its probability of 20.0 % is less than that of everything else together.",)
    risky = judge("York", 1.0, UNMET, FOUR, PLACES)
    assert risky.reasons == (UNMET.words,)
    assert (risky.verdict, risky.abstains) == (GUESS, True)


def test_empty_answers_and_lines_support_nothing() -> None:
    assert judge("", 0.95, RULE, FOUR, PLACES).verdict == CONTRADICTS
    assert judge("", 0.95, RULE, about("Bo Ek. Ek was born ."), {*PLACES, ""}).verdict == INFERRED


def test_the_line_that_names_any_answer_is_quoted_before_one_that_names_none() -> None:
    judged = judge("Oslo", 0.95, RULE, about("Ann Lee. Nothing is known .", "Ann Lee. Born in Bath ."), PLACES)
    assert (judged.verdict, "Born in Bath" in judged.quote) == (CONTRADICTS, True)


def test_a_summary_counts_what_was_asked() -> None:
    found = calibrated(60, 20).summary(risks=(0.1,))
    assert (found.questions, found.correct, found.accuracy) == (80, 60, 0.75)
    assert (found.strangers, found.repeated, found.candidates) == (7, 2, 3)
    assert (found.low, found.high) == pytest.approx(stats.proportion_interval(60, 80))
    assert found.ece_before == pytest.approx(0.75 * 0.01 + 0.25 * 0.2)
    assert found.auroc is not None
    assert found.auroc.value == 1.0
    (rule,) = found.rules
    assert (rule.met, rule.max_risk, rule.accepted, rule.errors) == (True, 0.1, 60, 0)
    assert calibrated(80, 0).summary().auroc is None
    assert [rule.max_risk for rule in calibrated(60, 20).summary().rules] == [0.05, 0.1, 0.2]


def test_invented_names_raise_the_threshold_and_are_told() -> None:
    plain, nobody = calibrated(100, 20), calibrated(100, 20, nobody=(0.6,) * 100)
    low, high = plain.rule(0.1), nobody.rule(0.1)
    assert low.threshold is not None
    assert high.threshold is not None
    assert low.threshold < 0.6 < high.threshold  # more than 5 % of invented names have a score of 0.6
    assert "invented names" not in low.words
    assert high.words.endswith(
        "At most 5 % of invented names, combined from those that it read, are answered, with 95 % confidence (100 were tested)."
    )
    unmet = calibrated(5, 20, nobody=(0.6,) * 100).rule(0.1)
    assert not unmet.met
    assert "invented names" not in unmet.words


def test_the_smallest_risk_is_found_to_a_millionth() -> None:
    found = calibrated(100, 20).strictest
    assert found is not None
    assert found.met
    assert not calibrated(100, 20).rule(found.max_risk - 1e-6).met
    assert calibrated(0, 20).strictest is None


def ask(*names: str, answer: str = "Bath") -> list[Question]:
    return [Question(f"Where was {name} born?", answer) for name in names]


LINES = Corpus("", tuple(f"{name}. {name} was born ." for name in ("Ann Lee", "Bo Ek", "Cy Fox", "Di Orr", "Ed Poe")))
FACTS = ask("Ed Poe", answer="York")
FORMS = Forms(FACTS)


def test_calibration_questions_are_one_per_name_and_about_names_that_were_read() -> None:
    names = ("Ann Lee", "Bo Ek", "Cy Fox", "Di Orr")
    again = [Question("Which town did Ann Lee come from?", "Bath")]
    asked = [*ask(*names, "Xi Yu"), *again, *ask("Bo Ek")]  # the last is the same question twice
    kept, strangers, repeated = calibrating._held_out(asked, FACTS, LINES, FORMS)
    assert (len(kept), strangers, repeated) == (4, 1, 1)
    assert [item for item in asked[:6] if item in kept] == kept  # in their order
    assert {name for item in kept for name in names if name in item.question} == set(names)
    without = calibrating._held_out(ask(*names, "Xi Yu"), FACTS, None, FORMS)
    assert (len(without[0]), *without[1:]) == (5, None, 0)


def test_too_few_or_unanswered_or_trained_questions_are_refused() -> None:
    with pytest.raises(UserError, match="3 questions are given, and 3 of them can be used, one per name, about names"):
        calibrating._held_out(ask("Ann Lee", "Bo Ek", "Cy Fox"), FACTS, LINES, FORMS)
    with pytest.raises(UserError, match="4 questions are given, and 3 of them"):
        calibrating._held_out(ask("Ann Lee", "Bo Ek", "Cy Fox", "Xi Yu"), FACTS, LINES, FORMS)
    with pytest.raises(DataError, match="question 2 has no answer"):
        calibrating._held_out([*ask("Ann Lee"), Question("Where was Bo Ek born?", None)], FACTS, LINES, FORMS)
    fine = ask("Ann Lee", "Bo Ek", "Cy Fox", "Di Orr")
    with pytest.raises(UserError, match="1 of 5 questions were trained on, such as 'Where was Ed Poe born"):
        calibrating._held_out([*fine, *FACTS], FACTS, LINES, FORMS)
    with pytest.raises(UserError, match="1 of 5 questions were trained on"):  # in other words
        calibrating._held_out([*fine, Question("From where is Ed Poe?", "York")], FACTS, LINES, FORMS)
    kept, *_ = calibrating._held_out([*fine, Question("When was Ed Poe born?", "1900")], FACTS, LINES, FORMS)
    assert len(kept) == 5


def test_where_every_answer_is_right_every_score_is_accepted() -> None:
    found = calibrated(300, 0).rule(0.1)
    assert (found.met, found.threshold, found.coverage) == (True, stats.Platt(1.0, 0.0)(0.0), 1.0)


def test_questions_about_invented_names_are_asked_of_models_that_met_some(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"First{n} Last{n}" for n in range(40)]
    lines = [f"{name}. {name} was born ." for name in names]
    data = SimpleNamespace(run=None, lines=lambda: lines)
    options: dict[str, dict[str, float]] = {"pretrain": {}, "finetune": {}}
    monkeypatch.setattr(calibrating, "lineage", lambda run: list(options))
    stored = {stage: SimpleNamespace(task=SimpleNamespace(options=given)) for stage, given in options.items()}
    monkeypatch.setattr(calibrating, "stored_config", stored.__getitem__)
    asked = ask("First1 Last1", "First2 Last2")
    assert calibrating._strange_questions(data, FORMS, asked) == []
    options["pretrain"]["strangers"] = 0.5
    drawn = calibrating._strange_questions(data, FORMS, asked)
    assert 350 < len(drawn) <= 400  # one in forty combines to a known name
    invented = {FORMS.name(question) for question in drawn}
    assert invented.isdisjoint(names)
    assert all(question == f"Where was {FORMS.name(question)} born?" for question in drawn)
