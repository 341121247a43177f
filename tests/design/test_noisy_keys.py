import io
import json

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import norm

from attnlab.design import noise
from attnlab.design.results import number
from attnlab.errors import UserError

FIELDS = ("mean", "sd", "near_one", "near_zero", "failures")


@pytest.fixture(scope="module")
def result():
    return noise(samples=200_000)


@pytest.mark.parametrize("strength", [10.0, 1000.0])
def test_simulation_agrees_with_the_closed_form(strength):
    for design in noise(samples=200_000, strength=strength, seed=2).designs:
        for name in FIELDS:
            apart = getattr(design.simulated, name) - getattr(design.closed_form, name)
            allowed = getattr(design.approximation, name) + 1e-5
            assert abs(apart) <= 3.5 * getattr(design.standard_error, name) + allowed, (design.name, name)


@pytest.mark.parametrize("alpha", [1e-6, 1e-4])
def test_small_noise_in_every_direction_has_its_closed_form(alpha):
    """Split heads see independent noise; a law along one direction of it only is off by hundreds of standard errors."""
    for design in noise(samples=100_000, varying=0.0, alpha=alpha).designs:
        assert design.approximation.sd < 0.1 * design.closed_form.sd, design.name
        assert design.distance < 4, design.name
    single, _, split = noise(samples=1000, varying=0.0, alpha=alpha).designs
    assert single.closed_form.sd == pytest.approx(10 * np.sqrt(alpha) / 2, rel=0.01)
    rest = 9 / (9 + np.exp(10))  # the slope of a head's own weight; the 9 others' noise adds a ninth to its variance
    assert split.closed_form.sd == pytest.approx(rest * (1 - rest) * 10 * np.sqrt(alpha * 10 / 9) / 2, rel=0.05)


def test_several_varying_keys_and_any_number_of_heads():
    result = noise(samples=100_000, n=6, indices=(0, 1, 2), varies=(0, 1, 4), heads=6, alpha=1e-5, seed=3)
    single, equal, split = result.designs
    assert result.varies == (0, 1, 4)
    assert equal.queries.shape == split.queries.shape == (6, 6)
    assert max(design.distance for design in result.designs) < 4
    assert equal.simulated == single.simulated
    assert split.simulated.sd < 0.3 * single.simulated.sd
    again = noise(samples=100_000, n=6, indices=(0, 1, 2), varies=(0, 1, 4), heads=3, alpha=1e-5, seed=3).designs[2]
    assert split.closed_form == again.closed_form  # copies of split heads change nothing


def test_two_keys_are_exact_whatever_the_noise():
    """For n = 2 the difference of the scores is Gaussian, so that nothing is left out."""
    for design in noise(samples=100_000, n=2, alpha=0.3, varies=(0, 1)).designs:
        assert design.approximation.mean == 0
        assert design.distance < 4


def test_the_known_numbers(result):
    single, equal, split = result.designs
    assert single.closed_form.sd == pytest.approx(0.442, abs=5e-4)
    assert equal.closed_form.sd == pytest.approx(single.closed_form.sd)
    assert split.closed_form.sd == pytest.approx(0.151, abs=5e-4)
    assert split.closed_form.failures == pytest.approx(norm.cdf(np.sqrt(2) * (np.log(9) / 10 - 1)), abs=2e-4)
    assert split.closed_form.failures == pytest.approx(0.135, abs=5e-4)


def test_limits_as_the_queries_grow():
    single, _, split = noise(samples=1000, strength=1e5).designs
    assert single.closed_form.sd == pytest.approx(0.5, abs=1e-3)
    assert split.closed_form.mean == pytest.approx(0.46, abs=2e-3)
    assert split.closed_form.sd == pytest.approx(0.135, abs=1e-3)
    assert split.closed_form.failures == pytest.approx(0.079, abs=1e-3)


def test_equal_heads_are_one_head(result):
    single, equal, _ = result.designs
    assert equal.simulated == single.simulated
    assert (equal.histogram == single.histogram).all()


def test_small_noise_alone_is_harmless():
    for design in noise(samples=50_000, varying=0.0, alpha=1e-6).designs:
        assert design.simulated.failures == 0
        assert design.simulated.mean == pytest.approx(0.5, abs=1e-3)


def test_the_robust_design_beats_the_naive_ones():
    *naive, robust = noise(samples=50_000, robust=1, n=5).designs
    assert robust.queries.shape == (1, 5)
    assert robust.squared_error < 0.1 * min(d.squared_error for d in naive)


def test_heads_see_the_same_keys():
    """Drawn apart, two equal heads would look better than one: 0.442 / sqrt 2."""
    _, equal, _ = noise(samples=100_000).designs
    assert equal.simulated.sd > 0.43


def test_histograms_are_shares(result):
    for design in result.designs:
        assert design.histogram.sum() == pytest.approx(1)
        assert design.law.sum() == pytest.approx(1)
    assert set(json.loads(result.to_json())) >= {"status", "designs", "samples"}
    assert "2 split heads" in result._repr_html_()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n": 1}, "choose from 2"),
        ({"indices": (0,)}, "at least two"),
        ({"indices": (0, 1, 2)}, "a multiple or a divisor of 3"),
        ({"varies": (0, 10)}, "choose from 0 to 9"),
        ({"alpha": -1.0}, "choose from 0"),
        ({"samples": 5}, "choose from 1000"),
        ({"heads": 1}, "heads 1 is out of range; choose from 2"),
    ],
)
def test_mistakes(settings, words):
    with pytest.raises(UserError, match=words):
        noise(**settings)


def test_the_table_says_when_the_closed_form_does_not_hold():
    def shown(alpha):
        result = noise(samples=100_000, alpha=alpha)
        console = Console(width=100, record=True, file=io.StringIO())
        console.print(result)
        return result, console.export_text()

    tiny, text = shown(1e-10)
    assert max(design.distance for design in tiny.designs) < 4
    assert "Simulation and closed form agree within" in text
    assert "alpha is too large" not in text
    rough, text = shown(0.1)
    assert max(design.distance for design in rough.designs) > 20
    assert "alpha is too large" in " ".join(text.split())
    assert rough.to_dict()["designs"][0]["standard_errors_apart"] > 20
    worst = max(rough.designs, key=lambda design: design.distance)
    assert f"allowing for an error of {number(worst.furthest[1])} from" in " ".join(text.split())


def test_what_a_share_leaves_out_is_a_share():
    for design in noise(samples=1000, alpha=1.0).designs:
        assert all(0 < getattr(design.approximation, name) <= 1 for name in FIELDS)
