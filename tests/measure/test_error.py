"""What must hold of the errors whatever is measured: limits, bounds and laws, over the registry where it can be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from attnlab import ops, registry
from attnlab.errors import UserError
from attnlab.measure.approximation import examine, measure, random_source, to_csv
from attnlab.measure.approximation.error import (
    BEST,
    FITTED,
    MEAN,
    PROJECTED,
    make,
    projected,
    relative,
    settings_of,
    spectrum,
    work,
)
from attnlab.measure.approximation.samples import Source, seed_of, seeded
from attnlab.measure.cards import entries

SPARSE, RANKED = (
    [entry for entry in entries() if entry.weights in kinds] for kinds in (("sparse",), ("low rank", "kernel"))
)


def small(*spreads: float, tokens: int = 32, width: int = 8, causal: bool = False) -> Source:
    return random_source(spreads or (0.5, 2.0), tokens, width, causal)


def named(entries: list[registry.Entry]) -> Any:
    return pytest.mark.parametrize("entry", entries, ids=lambda entry: entry.name)


def test_the_mean_is_what_averaging_all_values_gives() -> None:
    source = small(1.0)
    q, k, v = (part[0, 0].double().numpy() for part in source.draw(0))
    weights = np.exp(q @ k.T / np.sqrt(8))
    exact = weights / weights.sum(1, keepdims=True) @ v
    expected = np.linalg.norm(v.mean(0) - exact) / np.linalg.norm(exact)
    (row,) = measure(registry.find("mechanism", "linear"), source, draws=1).find("output", "std 1", MEAN)
    assert row.median == pytest.approx(expected, rel=1e-4)


def test_the_causal_mean_averages_what_may_be_seen() -> None:
    source = small(1e-3, causal=True)  # next to no scores: exact attention is the mean
    (row,) = measure(registry.find("mechanism", "linear"), source, draws=1).find("output", "std 0.001", MEAN)
    assert row.median < 1e-4


@named(SPARSE)
@pytest.mark.parametrize("causal", [False, True])
def test_seeing_everything_is_exact_and_seeing_more_is_nearer(entry: registry.Entry, causal: bool) -> None:
    found = measure(entry, small(causal=causal), draws=4)
    for knob in entry.knobs:
        for sample in found.samples:
            errors = [row.median for row in found.find("pattern", sample, "", knob)]
            assert errors == sorted(errors, reverse=True)
            assert errors[-1] < 1e-5 < errors[0]
        works = [row.work for row in found.find("pattern", found.samples[0], "", knob)]
        assert works == sorted(works, key=lambda one: one or 0.0)
        assert works[-1] == 1.0


@named([entry for entry in entries() if entry.weights == "exact"])
@pytest.mark.parametrize("causal", [False, True])
def test_mechanisms_declared_exact_are_exact(entry: registry.Entry, causal: bool) -> None:
    source = small(causal=causal)
    q, k, _ = source.draw(0)
    pattern = make(entry, source, {}).pattern(q, k, source.mask)
    assert torch.allclose(pattern, ops.attention_pattern(q, k, source.mask), atol=1e-6)


@named(RANKED)
def test_nothing_of_a_rank_is_nearer_than_the_singular_values_allow(entry: registry.Entry) -> None:
    found = measure(entry, small(), draws=1)
    for sample in found.samples:
        best = {row.value: row.median for row in found.find("pattern", sample, BEST)}
        for form in found.forms:
            for row in found.find("pattern", sample, form):
                assert row.median >= best.get(row.value or 8, 0.0) - 1e-5


def test_the_nearest_of_a_rank_is_the_tail_of_the_singular_values() -> None:
    source = small(1.0)
    found = measure(registry.find("mechanism", "linformer"), source, draws=1)
    q, k, _ = (part[0, 0].double().numpy() for part in source.draw(0))
    weights = np.exp(q @ k.T / np.sqrt(8))
    values = np.linalg.svd(weights / weights.sum(1, keepdims=True), compute_uv=False)
    tail = spectrum(source, draws=1).error[0]
    for row in found.find("pattern", "std 1", BEST):
        expected = math.sqrt((values[row.value :] ** 2).sum() / (values**2).sum())
        assert row.median == pytest.approx(expected, abs=1e-5)
        assert tail[row.value] == pytest.approx(expected, abs=1e-5)


def test_a_random_projection_errs_by_the_root_of_length_over_rank() -> None:
    """E|P(RᵀR - I)|² = |P|² (n + 1) / k for k rows of entries with variance 1/k."""
    source = small(1.0)
    q, k, _ = source.draw(0)
    pattern = ops.attention_pattern(q, k, None)
    generator = seeded("test", 0, 0)
    for rank in (4, 16):
        errors = torch.stack([relative(projected(pattern, rank, generator), pattern) for _ in range(400)])
        expected = (source.tokens + 1) / rank
        squares = errors.square()
        assert abs(squares.mean().item() - expected) < 4 * squares.std().item() / 20


def errors_of(kind: str, directions: str, features: int, source: Source, draws: int) -> torch.Tensor:
    """The errors of the output of random features, one row per draw, one column per sample."""
    entry, errors = registry.find("mechanism", "performer"), []
    for number in range(draws):
        torch.manual_seed(number)
        q, k, v = source.draw(number)
        module = make(entry, source, {"kind": kind, "directions": directions, "features": features})
        errors.append(relative(module.dispatch(q, k, v, None), ops.attention_pattern(q, k, None) @ v))
    return torch.stack(errors)


@pytest.mark.parametrize("kind", ["positive", "hyperbolic", "trigonometric"])
@pytest.mark.parametrize("directions", ["iid", "orthogonal"])
def test_the_error_of_random_features_falls_with_their_root(kind: str, directions: str) -> None:
    """Also of positive orthogonal ones: directions that prefer a side would leave an error that no number mends."""
    source = small(0.3, tokens=64)
    few, many = (errors_of(kind, directions, features, source, 24).square().mean().sqrt() for features in (64, 1024))
    assert math.log(few / many) / math.log(16) == pytest.approx(0.5, abs=0.12)


def test_trigonometric_features_win_at_small_norms_and_positive_ones_at_large() -> None:
    source = small(0.4, 1.0, tokens=64, width=32)
    mean = measure(registry.find("mechanism", "linear"), source, draws=4).find("output", "std 1", MEAN)[0].median
    positive, waves = (
        errors_of(kind, "orthogonal", 64, source, 8).median(0).values for kind in ("positive", "trigonometric")
    )
    assert waves[0] < positive[0]
    assert waves[1] > 5 * positive[1]
    assert positive[1] > 1.2 * mean


def test_the_work_of_few_rows_is_counted() -> None:
    source = small(tokens=64, width=8)
    entry = registry.find("mechanism", "linformer")
    # Mixing keys and values to r rows takes 2·r·n·d multiplications, and so does attending to them.
    assert work(entry, source, make(entry, source, {"rank": 16})) == pytest.approx(4 * 16 * 64 * 8 / (2 * 64 * 64 * 8))


def test_a_sweep_goes_over_all_forms_and_takes_the_next_value_where_one_is_refused() -> None:
    forms = {setting.form for setting in settings_of(registry.find("mechanism", "performer"), small())}
    assert len(forms) == 6
    values = [s.value for s in settings_of(registry.find("mechanism", "bigbird"), small()) if s.knob == "window_blocks"]
    assert values == [3, 5, 9, 17, 33]


def test_measuring_is_repeatable_and_leaves_torchs_random_numbers_alone() -> None:
    entry = registry.find("mechanism", "performer")
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first, second = (measure(entry, small(tokens=8), draws=1, seed=3) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert first == second
    assert first != measure(entry, small(tokens=8), draws=1, seed=4)


def test_samples_and_mechanisms_are_drawn_from_different_numbers() -> None:
    assert len({seed_of(purpose, 0, number) for purpose in ("sample", "mechanism") for number in range(100)}) == 200


@named([entry for entry in entries() if entry.weights in ("own", "exact")])
def test_mechanisms_that_are_no_approximation_are_refused(entry: registry.Entry) -> None:
    expected = "not an approximation" if entry.weights == "own" else "weighs as dot-product attention"
    with pytest.raises(UserError, match=expected):
        examine(entry, small())


@named(SPARSE + RANKED)
def test_findings_are_complete_plain_values(entry: registry.Entry) -> None:
    found = examine(entry, small(tokens=8, causal=True), draws=2)
    plain = found.to_dict()
    assert {row["form"] for row in plain["rows"]} >= {MEAN, *plain["forms"]}
    assert all(math.isfinite(row[key]) for row in plain["rows"] for key in ("median", "low", "high", "mean", "std"))
    assert (plain["spectrum"] is not None) == (entry in RANKED)
    assert any(row["form"] == PROJECTED for row in plain["rows"]) == (entry.weights == "low rank")
    table = to_csv(found.errors.rows).decode().splitlines()
    assert table[0].startswith("sample,knob,value,form,what,median")
    assert len(table) == 1 + len(plain["rows"])


# Learned parts that are trained


@pytest.mark.parametrize("name", ["linformer", "perceiver"])
def test_fitted_parts_are_nearer_on_draws_that_they_never_saw(name: str) -> None:
    """Fitted, they are nearer than untrained ones and than the mean."""
    source = small(1.5, tokens=24, causal=True)
    found = measure(registry.find("mechanism", name), source, draws=4, fit_steps=60)
    mean = found.find("output", "std 1.5", MEAN)[0].median
    for value in (4, 8):
        plain, trained = (
            next(row for row in found.find("output", "std 1.5", form) if row.value == value) for form in ("", FITTED)
        )
        assert trained.median < 0.95 * mean
        assert trained.median < 0.95 * plain.median
        assert trained.work == plain.work
    assert found.label("") == f"{name}, untrained"
    assert measure(registry.find("mechanism", name), source, draws=1).label("") == name


def test_without_learned_parts_nothing_is_trained() -> None:
    found = measure(registry.find("mechanism", "linear"), small(1.0, tokens=8), draws=1, fit_steps=5)
    assert FITTED not in found.forms
