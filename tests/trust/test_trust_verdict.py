"""The verdict on an answer, by hand-made lines and rules: every one of them, and what must not count as support."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attnlab import stats
from attnlab.corpora.library import Evidence, Line, Near, named_in
from attnlab.trust import Calibrated, Row
from attnlab.trust.verdict import (
    CONTRADICTS,
    GUESS,
    INFERRED,
    SUPPORTED,
    UNCHECKED,
    UNSEEN,
    judge,
    percent,
)

PLACES = frozenset({"York", "New York", "Bath", "Leeds", "Warren"})
# 0.95 and above are always right, the rest is always wrong.
RULE = stats.selective_rule([0.95] * 80 + [0.3] * 40, [True] * 80 + [False] * 40, 0.1, lowest=0.95)
FEW = stats.selective_rule([0.95] * 6, [True] * 6, 0.1)


def about(*lines: str) -> Evidence:
    return Evidence("Where?", "", tuple(Line(number, line) for number, line in enumerate(lines)), None, ())


ANN = about("Ann Lee. Lee was born in York and moved to Bath .")
BO = about("Bo Ek. Ek was born nowhere in particular .")
NOBODY = Evidence("Where?", "", (), None, (Near("Ann Lee", 0.8),))


@pytest.mark.parametrize(
    ("answer", "probability", "found", "verdict", "abstains"),
    [
        ("York", 0.95, ANN, SUPPORTED, False),
        ("Bath", 0.95, ANN, SUPPORTED, False),
        ("Leeds", 0.95, ANN, CONTRADICTS, False),
        ("Yor", 0.95, ANN, CONTRADICTS, False),
        ("york", 0.95, ANN, CONTRADICTS, False),
        ("Leeds", 0.95, BO, INFERRED, False),
        ("York", 0.94, ANN, GUESS, True),
        ("York", 0.0, BO, GUESS, True),
        ("York", 0.99, NOBODY, UNSEEN, True),
        ("York", 0.01, NOBODY, UNSEEN, True),
        ("York", 0.99, None, UNCHECKED, False),
        ("York", 0.01, None, GUESS, True),
    ],
)
def test_the_verdict_with_a_certified_threshold(
    answer: str, probability: float, found: Evidence | None, verdict: str, abstains: bool
) -> None:
    assert RULE.threshold == 0.95
    judged = judge(answer, probability, RULE, found, PLACES)
    assert (judged.verdict, judged.abstains) == (verdict, abstains)
    assert judged.reasons[0]


def test_a_line_that_names_several_places_is_said_to() -> None:
    assert judge("York", 0.95, RULE, ANN, PLACES).reasons == ("The line about Ann Lee names it, but also Bath.",)
    assert judge("Bath", 0.95, RULE, about("Bo Ek. Born in Bath ."), PLACES).reasons[0].endswith("names it.")


def test_without_a_calibration_more_than_even_is_confident_and_only_the_unseen_are_held_back() -> None:
    assert judge("York", 0.5, None, ANN, PLACES).verdict == SUPPORTED
    guess = judge("York", 0.49, None, ANN, PLACES)
    assert (guess.verdict, guess.abstains) == (GUESS, False)
    assert judge("York", 0.99, None, NOBODY, PLACES).abstains


def test_where_nothing_is_certified_nothing_is_answered_and_it_says_what_it_would_take() -> None:
    assert not FEW.met
    judged = judge("York", 0.99, FEW, ANN, PLACES)
    assert (judged.verdict, judged.abstains) == (GUESS, True)
    assert "29 accepted answers" in " ".join(judged.reasons)


@pytest.mark.parametrize("seed", range(5))
def test_a_verdict_never_becomes_weaker_as_the_allowed_risk_grows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = (rng.random(225) ** 0.3).tolist()
    rows = [Row("", "", "", rng.random() < score, score, score) for score in scores]
    found = Calibrated("", stats.Platt(1.0, 0.0), (), (), tuple(rows), None)
    risks = [0.01, 0.02, 0.05, 0.1, *np.linspace(0.12, 0.5, 30).tolist()]
    assert found.strictest is not None
    assert not found.rule(risks[0]).met
    least = found.strictest.max_risk
    assert not found.rule(least - 1e-5).met
    for probability in (0.3, 0.6, 0.8, 0.9, 0.99):
        judged = [judge("York", probability, found.rule(one), ANN, PLACES) for one in risks]
        weak = [one.verdict == GUESS for one in judged]
        assert weak == sorted(weak, reverse=True)
        assert {one.verdict for one in judged} <= {GUESS, SUPPORTED}
        assert all(one.abstains == (one.verdict == GUESS) for one in judged)
        assert all(one.abstains for one, risk in zip(judged, risks, strict=True) if risk < least)


def test_a_guess_says_whether_it_is_what_it_says_of_anybody() -> None:
    assert "any name" in judge("York", 0.2, RULE, ANN, PLACES, distance=0.1).reasons[0]
    assert "any name" not in judge("York", 0.2, RULE, ANN, PLACES, distance=0.9).reasons[0]
    assert "any name" not in judge("York", 0.2, RULE, ANN, PLACES).reasons[0]


def test_a_name_that_is_also_a_place_supports_nothing() -> None:
    spahn = about("Warren Spahn. Known in full as Warren Edward Spahn, Warren came from Leeds .")
    judged = judge("Warren", 0.95, RULE, spahn, PLACES)
    assert judged.verdict == CONTRADICTS
    assert "Leeds" in judged.reasons[0]
    assert "Leeds" in judged.quote
    at_home = about("Warren Spahn. Warren was born in Warren and died in Leeds .")
    assert judge("Warren", 0.95, RULE, at_home, PLACES).verdict == SUPPORTED
    alone = about("Warren Spahn. Known in full as Warren Edward Spahn .")
    assert judge("Warren", 0.95, RULE, alone, PLACES).verdict == INFERRED


def test_a_place_inside_another_is_not_said() -> None:
    line = "Cy Fox. Fox was born in New York ."
    assert list(named_in(line, PLACES)) == ["New York"]
    assert judge("York", 0.95, RULE, about(line), PLACES).verdict == CONTRADICTS
    both = "Cy Fox. Fox was born in New York, not in York ."
    assert named_in(both, PLACES) == {"New York": (24, 32), "York": (41, 45)}
    judged = judge("York", 0.95, RULE, about(both), PLACES)
    assert judged.verdict == SUPPORTED


def test_of_several_lines_the_one_that_says_so_is_quoted() -> None:
    two = about("Ann Lee. Lee was born in Bath .", "Ann Lee. The other Ann was born in Leeds .")
    judged = judge("Leeds", 0.95, RULE, two, PLACES)
    assert judged.verdict == SUPPORTED
    assert "The other Ann" in judged.quote
    neither = judge("York", 0.95, RULE, two, PLACES)
    assert neither.verdict == CONTRADICTS
    assert {"Bath", "Leeds"} <= set(neither.reasons[0].replace(".", "").split())


def test_accents_are_compared_as_one_form() -> None:
    line = about("Jo Peña. Peña was born in Alcalá .")
    assert judge("Alcala\u0301", 0.95, RULE, line, frozenset()).verdict == SUPPORTED


def test_a_threshold_just_reached_is_enough() -> None:
    assert RULE.threshold is not None
    assert judge("York", RULE.threshold, RULE, ANN, PLACES).verdict == SUPPORTED
    stricter = replace(RULE, threshold=0.96)
    assert judge("York", 0.95, stricter, ANN, PLACES).verdict == GUESS


@pytest.mark.parametrize(("share", "said"), [(1, "100.0 %"), (0.99999, "99.9 %"), (0.123, "12.3 %"), (0, "0.0 %")])
def test_what_is_not_certain_is_not_called_so(share: float, said: str) -> None:
    assert percent(share) == said
