"""The closed forms of the variance of random features, against simulation; and signs that get lost."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnlab import registry
from attnlab.measure.approximation import examine, random_source
from attnlab.measure.approximation.error import KINDS, Featured, estimates, feature_variance, kernel_rows, make
from attnlab.measure.approximation.samples import chance

PERFORMER = registry.find("mechanism", "performer")
WIDTH = 8


def deviation(values: Tensor, expected: float) -> float:
    """How many standard errors a mean lies from what is expected."""
    return abs(values.mean().item() - expected) / (values.std().item() / len(values) ** 0.5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pair", [0, 1, 2])
def test_mean_and_variance_agree_with_the_closed_form(kind: str, pair: int) -> None:
    source = random_source((0.4,), 4, WIDTH)
    q, k = (part[0, 0, pair].double()[None] for part in source.draw(5)[:2])
    count = 200_000
    with chance("test", 0, pair):
        module = make(PERFORMER, source, {"kind": kind, "directions": "iid", "features": count}).double()
    assert isinstance(module, Featured)
    each = estimates(module, q, k)[0]
    if kind != "positive":  # the features of one direction belong together
        each = each.view(2, -1).mean(0)
    law = feature_variance(kind, q * WIDTH**-0.25, k * WIDTH**-0.25).item() * len(each) / count
    assert deviation(each, 1.0) < 4
    assert deviation((each - 1).square(), law) < 4


def test_hyperbolic_features_are_never_worse_than_positive_ones() -> None:
    x, y = torch.randn(2, 100, WIDTH)
    positive, hyperbolic = (feature_variance(kind, x, y) for kind in ("positive", "hyperbolic"))
    assert (hyperbolic <= positive * 1.0001).all()


def test_only_trigonometric_features_lose_signs_and_only_at_large_norms() -> None:
    rows = kernel_rows(PERFORMER, random_source((0.2, 2.0), 32, WIDTH), draws=4)
    for row in rows:
        lost = row.form.startswith("trigonometric") and row.sample == "std 2"
        assert (row.negative_weights > 0.2) == lost
        assert (row.negative_sums > 0.05) == lost
    assert len(rows) == 12


def test_orthogonal_directions_are_better_at_small_norms() -> None:
    rows = {row.form: row for row in kernel_rows(PERFORMER, random_source((0.3,), 32, WIDTH), draws=32)}
    for kind in KINDS:
        assert rows[f"{kind} orthogonal"].measured < rows[f"{kind} iid"].measured
    assert rows["trigonometric iid"].measured == pytest.approx(rows["trigonometric iid"].predicted, rel=0.25)


def test_there_is_no_infinity_in_json_and_no_kernel_elsewhere() -> None:
    found = examine(PERFORMER, random_source((30.0,), 16, WIDTH), draws=1)
    assert found.to_dict()["kernel"][0]["needed"] is None
    for entry in (registry.find("mechanism", name) for name in registry.names("mechanism")):
        assert entry is PERFORMER or kernel_rows(entry, random_source((1.0,), 16, WIDTH), draws=1) == []
