"""Errors against exact attention: limits, bounds and laws that hold whatever is measured, and a run's queries and keys."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnlab import ops, registry
from attnlab.config import RunConfig, resolve
from attnlab.errors import UserError
from attnlab.inside.taps import capture
from attnlab.lm import stages
from attnlab.lm.model import load_model
from attnlab.measure.approximation import (
    MEAN,
    PROJECTED,
    Approximation,
    Source,
    chance,
    charts,
    document,
    examine,
    knob_settings,
    make,
    projected,
    random_source,
    relative,
    run_source,
    spectrum,
)
from attnlab.measure.cards import entries
from attnlab.report.charts import draw_chart
from attnlab.store import records
from attnlab.store.runs import Run

SPARSE, RANKED = (
    [entry for entry in entries() if entry.weights in kinds] for kinds in (("sparse",), ("low rank", "kernel"))
)
LINEAR, LINFORMER, PERFORMER = (registry.find("mechanism", name) for name in ("linear", "linformer", "performer"))


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
    (row,) = examine(LINEAR, source, draws=1).curve("std 1", MEAN)
    assert row.median == pytest.approx(expected, rel=1e-4)


def test_the_causal_mean_averages_what_may_be_seen() -> None:
    source = small(1e-3, causal=True)  # next to no scores: exact attention is the mean
    (row,) = examine(LINEAR, source, draws=1).curve("std 0.001", MEAN)
    assert row.median < 1e-4


@named(SPARSE)
@pytest.mark.parametrize("causal", [False, True])
def test_seeing_everything_is_exact_and_seeing_more_is_nearer(entry: registry.Entry, causal: bool) -> None:
    measured = examine(entry, small(causal=causal), draws=4)
    for knob in entry.knobs:
        for sample in measured.samples:
            errors = [row.pattern for row in measured.curve(sample, "", knob)]
            assert errors == sorted(errors, reverse=True)
            assert errors[-1] < 1e-5 < errors[0]
            assert measured.curve(sample, "", knob)[-1].median < 1e-5


@named([entry for entry in entries() if entry.weights == "exact"])
@pytest.mark.parametrize("causal", [False, True])
def test_mechanisms_declared_exact_are_exact(entry: registry.Entry, causal: bool) -> None:
    source = small(causal=causal)
    q, k, _ = source.draw(0)
    pattern = make(entry, source, {}).pattern(q, k, source.mask)
    assert torch.allclose(pattern, ops.attention_pattern(q, k, source.mask), atol=1e-6)


@named(RANKED)
def test_no_pattern_of_a_rank_is_nearer_than_the_singular_values_allow(entry: registry.Entry) -> None:
    source = small()
    measured = examine(entry, source, draws=1)
    for sample, singular in zip(measured.samples, spectrum(source, draws=1), strict=True):
        rows = [row for form in measured.forms for row in measured.curve(sample, form)]
        assert rows
        for row in rows:
            rank = min(row.value or source.width, source.tokens)
            assert row.pattern >= singular.error[rank] - 1e-5


def test_the_least_error_of_a_rank_is_the_tail_of_the_singular_values() -> None:
    source = small(1.0)
    q, k, _ = (part[0, 0].double().numpy() for part in source.draw(0))
    weights = np.exp(q @ k.T / np.sqrt(8))
    values = np.linalg.svd(weights / weights.sum(1, keepdims=True), compute_uv=False)
    (singular,) = spectrum(source, draws=1)
    assert singular.cumulative == pytest.approx(np.cumsum(values) / values.sum(), abs=1e-5)
    for rank in (0, 1, 4, 16):
        expected = math.sqrt((values[rank:] ** 2).sum() / (values**2).sum())
        assert singular.error[rank] == pytest.approx(expected, abs=1e-5)
    assert singular.error[singular.rank_for(0.2)] <= 0.2 < singular.error[singular.rank_for(0.2) - 1]


def test_a_random_projection_errs_by_the_root_of_length_over_rank() -> None:
    """E|P(RᵀR - I)|² = |P|² (n + 1) / k for k rows of entries with variance 1/k."""
    source = small(1.0)
    q, k, _ = source.draw(0)
    pattern = ops.attention_pattern(q, k, None)
    torch.manual_seed(0)
    for rank in (4, 16):
        squares = torch.stack([relative(projected(pattern, rank), pattern) for _ in range(400)]).square()
        expected = (source.tokens + 1) / rank
        assert abs(squares.mean().item() - expected) < 4 * squares.std().item() / 20


# Random features


def errors_of(kind: str, directions: str, features: int, source: Source, draws: int) -> torch.Tensor:
    """The errors of the output of random features, one row per draw, one column per sample."""
    errors = []
    for number in range(draws):
        torch.manual_seed(number)
        q, k, v = source.draw(number)
        module = make(PERFORMER, source, {"kind": kind, "directions": directions, "features": features})
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
    mean = examine(LINEAR, source, draws=4).curve("std 1", MEAN)[0].median
    positive, waves = (
        errors_of(kind, "orthogonal", 64, source, 8).median(0).values for kind in ("positive", "trigonometric")
    )
    assert waves[0] < positive[0]
    assert waves[1] > 5 * positive[1]
    assert positive[1] > 1.2 * mean


@pytest.mark.parametrize("kind", ["positive", "hyperbolic", "trigonometric"])
def test_orthogonal_directions_are_better_at_small_norms(kind: str) -> None:
    source = small(0.3)
    own, other = (errors_of(kind, directions, 16, source, 64).mean() for directions in ("orthogonal", "iid"))
    assert own < other


# What is varied, and the result


def test_a_sweep_goes_over_all_forms_takes_the_next_value_where_one_is_refused_and_ends_where_it_is_exact() -> None:
    forms = {setting.form for setting in knob_settings(PERFORMER, small())}
    assert len(forms) == 6
    bigbird = registry.find("mechanism", "bigbird")
    values = [setting.value for setting in knob_settings(bigbird, small()) if setting.knob == "window_blocks"]
    assert values == [3, 5]


def test_measuring_is_repeatable_and_leaves_torchs_random_numbers_alone() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first, second = (examine(PERFORMER, small(tokens=8), draws=1, seed=3) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert first == second
    assert first != examine(PERFORMER, small(tokens=8), draws=1, seed=4)


def test_samples_and_mechanisms_are_drawn_from_different_numbers() -> None:
    drawn = set()
    for purpose in ("sample", "mechanism"):
        for number in range(50):
            with chance(purpose, 0, number):
                drawn.add(torch.rand(1).item())
    assert len(drawn) == 100


@named([entry for entry in entries() if entry.weights in ("own", "exact")])
def test_mechanisms_that_are_no_approximation_are_refused(entry: registry.Entry) -> None:
    expected = "not an approximation" if entry.weights == "own" else "weighs as dot-product attention"
    with pytest.raises(UserError, match=expected):
        examine(entry, small())


@named(SPARSE + RANKED)
def test_results_are_complete_and_come_back_from_json(entry: registry.Entry) -> None:
    measured = examine(entry, small(tokens=8, causal=True), draws=2)
    assert {row.form for row in measured.rows} >= {MEAN, *measured.forms}
    assert all(math.isfinite(row.mean) and row.low <= row.median <= row.high for row in measured.rows)
    assert bool(measured.spectrum) == (entry in RANKED)
    assert any(row.form == PROJECTED for row in measured.rows) == (entry.weights == "low rank")
    assert records.decode(Approximation, records.encode(measured), Path("error.json")) == measured
    assert len(document(measured).tables()) == len(measured.samples) * max(len(entry.knobs), 1) + bool(
        measured.spectrum
    )
    drawn = charts(measured)
    assert len(drawn) == len(measured.samples) * bool(entry.knobs) + bool(measured.spectrum)
    for chart in drawn:
        assert "nothing to draw" not in draw_chart(chart)
        assert MEAN in [line.name for line in chart.series] or chart is drawn[-1]


# Queries and keys of a trained model


def settings(mechanism: str, task: str = "pretrain") -> RunConfig:
    model = {"n_layer": 2, "n_head": 4, "n_embd": 32, "block_size": 64, "vocab_size": 300, "mechanism": mechanism}
    return resolve("small", given={"model": model, "train": {"epochs": 0.1, "tokens_per_batch": 512}})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return stages.pretrain(settings("gqa"), "people:60", None, tmp_path_factory.mktemp("runs") / "run")


def test_the_exact_pattern_of_a_runs_sample_is_the_pattern_of_the_model(trained: Run) -> None:
    source = run_source(trained.path)
    model, tokenizer = load_model(trained.model)
    lines = sorted(stages.corpora.load_corpus("people:60").lines, key=len, reverse=True)
    texts = sorted((tokenizer.encode(line)[:64] for line in lines[:32]), key=len, reverse=True)[:8]
    with torch.no_grad(), capture(model, "hook_pattern") as seen:
        model(torch.tensor([text[: source.tokens] for text in texts]))
    assert source.names == ("layer 1", "layer 2", "random")
    for text in (0, 3):
        drawn = source.draw(text)
        assert drawn.q.shape == drawn.k.shape == drawn.v.shape == (3, 4, source.tokens, 8)
        exact = ops.attention_pattern(drawn.q, drawn.k, source.mask)
        for layer in range(2):
            assert torch.allclose(exact[layer], seen[f"blocks.{layer}.attn.hook_pattern"][text], atol=1e-5)


def test_errors_and_singular_values_of_a_run(trained: Run) -> None:
    measured = examine(LINFORMER, run_source(trained.path), draws=2)
    assert measured.untrained == ("mix_keys", "mix_values")
    assert [singular.sample for singular in measured.spectrum] == ["layer 1", "layer 2", "random"]
    for singular in measured.spectrum:
        assert singular.error[0] == pytest.approx(1)
        assert list(singular.error) == sorted(singular.error, reverse=True)


def test_a_run_of_another_mechanism_and_of_running_text(tmp_path: Path) -> None:
    config = settings("linformer")
    text = replace(config, task=replace(config.task, name="text", options={"documents": "blank"}))
    run = stages.pretrain(text, "prose:100", None, tmp_path / "text")
    source = run_source(run.path)
    assert source.tokens == 64
    assert source.draw(0).q.shape == (3, 4, 64, 8)


def test_a_fine_tuned_run_leads_to_the_corpus_of_its_base(trained: Run, tmp_path: Path) -> None:
    config = replace(settings("gqa"), task=resolve("small", "finetune").task)
    tuned = stages.finetune(config, trained, "people:60:train", None, tmp_path / "tuned")
    assert run_source(tuned.path).tokens == run_source(trained.path).tokens


def test_runs_without_queries_and_keys_or_text_are_refused(tmp_path: Path) -> None:
    own = stages.pretrain(settings("dot,synthesizer"), "people:60", None, tmp_path / "own")
    with pytest.raises(UserError, match="attends by synthesizer"):
        run_source(own.path)
    config = replace(settings("dot"), task=resolve("small", "scratch").task)
    scratch = stages.finetune(config, None, "people:60:train", None, tmp_path / "scratch")
    with pytest.raises(UserError, match="has read no corpus"):
        run_source(scratch.path)
