"""Queries and keys of a trained model, as the meters see them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attnlab import ops
from attnlab.config import RunConfig, resolve
from attnlab.errors import UserError
from attnlab.inside.taps import capture
from attnlab.lm import stages
from attnlab.lm.model import load_model
from attnlab.lm.tokenizers import Tokenizer
from attnlab.measure.approximation import examine, run_source
from attnlab.measure.approximation.error import IN_RUN, relative
from attnlab.measure.approximation.samples import corpus_of, longest, windows
from attnlab.registry import find
from attnlab.store.runs import Run


def settings(mechanism: str) -> RunConfig:
    model = {"n_layer": 2, "n_head": 4, "n_embd": 32, "block_size": 64, "vocab_size": 300, "mechanism": mechanism}
    return resolve("small", given={"model": model, "train": {"epochs": 0.1, "tokens_per_batch": 512}})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return stages.pretrain(settings("gqa"), "people:60", None, tmp_path_factory.mktemp("runs") / "run")


def test_the_exact_pattern_of_a_runs_sample_is_the_pattern_of_the_model(trained: Run) -> None:
    source = run_source(trained.path)
    model, tokenizer = load_model(trained.model)
    ids = longest(corpus_of(trained), tokenizer, 64)
    with torch.no_grad(), capture(model, "hook_pattern") as seen:
        model(ids)
    assert source.names == ("layer 1", "layer 2", "random")
    for text in (0, 3):
        drawn = source.draw(text)
        assert drawn.q.shape == drawn.k.shape == drawn.v.shape == (3, 4, source.tokens, 8)
        exact = ops.attention_pattern(drawn.q, drawn.k, source.mask)
        for layer in range(2):
            assert torch.allclose(exact[layer], seen[f"blocks.{layer}.attn.hook_pattern"][text], atol=1e-5)


def test_errors_and_spectra_of_a_run(trained: Run) -> None:
    found = examine(find("mechanism", "linformer"), run_source(trained.path), draws=2)
    assert found.errors.causal
    assert found.errors.untrained == ("mix_keys", "mix_values")
    assert found.spectrum is not None
    assert found.spectrum.samples == ("layer 1", "layer 2", "random")
    for errors in found.spectrum.error:
        assert errors[0] == pytest.approx(1)
        assert errors == sorted(errors, reverse=True)


def test_a_run_of_the_mechanism_is_measured_with_what_it_learned(tmp_path: Path) -> None:
    run = stages.pretrain(settings("linformer"), "people:60", None, tmp_path / "run")
    source = run_source(run.path, mechanism="linformer", teaching=True)
    found = examine(find("mechanism", "linformer"), source, draws=2)
    model, _ = load_model(run.model)
    for layer, name in enumerate(source.names[:2]):
        (row,) = found.errors.find("output", name, IN_RUN)
        assert row.value == model.mechanisms[layer].mix_keys.shape[0]
        errors = []
        for number in range(2):
            q, k, v = (part[layer, None] for part in source.draw(number))
            exact = ops.attention_pattern(q, k, source.mask) @ v
            with torch.no_grad():
                errors.append(relative(model.mechanisms[layer].fast(q, k, v, None), exact).item())
        assert row.mean == pytest.approx(sum(errors) / 2, rel=1e-4)
    assert not found.errors.find("output", "random", IN_RUN)
    measured, taught = ([draw(number).q[:2] for number in range(24)] for draw in (source.draw, source.teach))
    assert not any(torch.equal(one, other) for one in measured for other in taught)
    with pytest.raises(UserError, match="attends by linformer.*name a run of mechanism dot or performer"):
        run_source(run.path, mechanism="performer")


def test_running_text_is_read_in_windows() -> None:
    tokenizer = Tokenizer.train("char", ["abc"], 10)
    ids = windows(("abc", "ab", "c" * 20), tokenizer, 4, count=3)
    assert [tokenizer.decode(row.tolist()) for row in ids] == ["□abc", "□ab□", "cccc"]
    assert windows(("ab",), tokenizer, 8).tolist() == [[tokenizer.pad, *tokenizer.encode("ab")]]


def test_a_fine_tuned_run_leads_to_the_corpus_of_its_base(trained: Run, tmp_path: Path) -> None:
    config = replace(settings("gqa"), task=resolve("small", "finetune").task)
    tuned = stages.finetune(config, trained, "people:60:train", None, tmp_path / "tuned")
    assert corpus_of(tuned) == corpus_of(trained)


def test_runs_without_exact_patterns_or_text_are_refused(tmp_path: Path) -> None:
    sliding = stages.pretrain(settings("dot,sliding"), "people:60", None, tmp_path / "sliding")
    with pytest.raises(UserError, match="attends by sliding"):
        run_source(sliding.path)
    config = replace(settings("dot"), task=resolve("small", "scratch").task)
    scratch = stages.finetune(config, None, "people:60:train", None, tmp_path / "scratch")
    with pytest.raises(UserError, match="has read no corpus"):
        run_source(scratch.path)
