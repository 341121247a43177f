"""Ablations and running text: changes one at a time or in a row, tested with the statistics of comparisons."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from plans import make_plan
from rich.console import Console

from attnlab.config import diff
from attnlab.corpora import load_corpus
from attnlab.errors import ConfigError, UserError
from attnlab.lm.model import load_model
from attnlab.report.text import as_markdown
from attnlab.store.runs import Run
from attnlab.studies.ablations import Ablations
from attnlab.studies.compare import Compare
from attnlab.studies.compare.cautions import cautions
from attnlab.studies.compare.runs import read_measured, read_twice
from attnlab.studies.study import load

SMALL: dict[str, Any] = {
    "model": {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 64, "vocab_size": 300},
    "train": {"steps": 6, "tokens_per_batch": 512},
}
CHANGES = ("model.norm=layer", "model.mechanism=dot,sliding", "train.optimizer=adamw")


def planned(*changes: str, **more: Any) -> Ablations:
    return Ablations(changes=changes, given=SMALL, seeds=(0, 1), **more).completed()


def test_each_change_is_made_alone_and_tested_against_the_baseline() -> None:
    plan = planned(*CHANGES)
    base, *variants = (variant.settings(0) for variant in plan.variants)
    assert [set(diff(base, other)) - {"preset"} for other in variants] == [{text.split("=")[0]} for text in CHANGES]
    assert variants[1].model.mechanism == "dot,sliding"
    assert plan.compared() == [(text, "baseline") for text in CHANGES]
    assert plan.varied_settings == ("model.norm", "model.mechanism", "train.optimizer")
    assert (plan.corpus, plan.dev, base.task.name, base.train.steps) == ("stories:train", "stories:dev", "text", 6)


def test_changes_in_a_row_are_tested_against_the_variant_before() -> None:
    plan = planned(*CHANGES, cumulative=True)
    names = ["baseline", *(f"+ {text}" for text in CHANGES)]
    assert [variant.name for variant in plan.variants] == names
    assert plan.compared() == [(b, a) for a, b in itertools.pairwise(names)]
    last = plan.variants[-1].settings(0)
    assert (last.model.norm, last.model.mechanism, last.train.optimizer) == ("layer", "dot,sliding", "adamw")
    assert len({variant.folder for variant in plan.variants}) == 4


def test_of_mixed_changes_those_of_the_mechanism_may_compute_the_same(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(
        "\n\n".join(f"A cat {word} ." for word in ["sat", "ran", "ate", "hid", "saw"] * 8), encoding="utf-8"
    )
    data: dict[str, Any] = {"corpus": str(text), "dev": str(text), "exam": None}
    changes = ("model.norm=layer", "model.mechanism=sliding", "train.lr=0.01")
    for cumulative in (False, True):
        told = cautions(planned(*changes, cumulative=cumulative, **data))
        assert told.equal == (
            ("+ model.mechanism=sliding", "+ model.norm=layer") if cumulative else (changes[1], "baseline"),
        )
        assert any("compute the same on texts of" in note and "a smaller window" in note for note in told.notes)
    assert not cautions(planned("model.norm=layer", "train.lr=0.01", **data)).equal


@pytest.mark.parametrize("cumulative", [False, True])
def test_the_usual_changes_are_changes(cumulative: bool) -> None:
    plan = Ablations(cumulative=cumulative, quick=True).completed()
    assert len(plan.variants) == 7
    assert plan.seeds == (0, 1, 2)
    assert (plan.preset, plan.corpus) == ("stories", "stories:1000:train")
    assert plan.variants[0].settings(0).train.steps == 300


@pytest.mark.parametrize(
    ("changes", "more", "says"),
    [
        (("model.norm",), {}, "--changes takes SETTING=VALUE such as model.norm=layer, not 'model.norm'"),
        (("model.norm=rms",), {}, "model.norm=rms changes nothing: it is so in baseline already"),
        (("model.norm=layer", "model.norm=layer"), {}, "model.norm=layer is given twice"),
        (("train.lr=0.1", "train.lr=0.2"), {"cumulative": True}, "train.lr is given twice"),
        (("model.norm=layr",), {}, "model.norm must be one of"),
        (("model.nrom=layer",), {}, "unknown setting 'model.nrom'"),
        (("tokenizer.kind=char",), {}, "tokenizer.kind changes what is predicted"),
        (("train.lr=0.1",), {"tune": ("train.lr=0.1,0.2",)}, "train.lr is what is compared: tune another setting"),
    ],
)
def test_mistakes_are_named(changes: tuple[str, ...], more: dict[str, Any], says: str) -> None:
    with pytest.raises((UserError, ConfigError), match=says.replace("(", r"\(")):
        _ = planned(*changes, **more).tuned


@pytest.mark.usefixtures("in_process")
def test_ablations_measure_whole_stories_and_the_gradient(tmp_path: Path) -> None:
    text = {"corpus": "stories:60:train", "dev": "stories:60:dev"}
    study = Ablations(changes=CHANGES[::2], cumulative=True, given=SMALL, seeds=(1,), **text)  # type: ignore[arg-type]
    outcome = study.begin(tmp_path / "study", Console(quiet=True))
    result, plan = outcome.result, load(tmp_path / "study")
    assert isinstance(plan, Ablations)
    assert [(pair.a, pair.b) for pair in result.comparisons] == plan.compared()
    assert [variant.value for variant in result.variants] == ["rms, muon", "layer, muon", "layer, adamw"]
    folder = plan.path(tmp_path / "study", "baseline", 1)
    norms = [step.norm for step in Run.open(folder).metrics()]
    assert result.variants[0].values["gradient_norm"].each[0] == pytest.approx(fmean(norm for norm in norms if norm))
    # A story is read from the symbol that begins a document in training, and predicted to its end, or that of the block.
    model, tokenizer = load_model(Run.open(folder).model)
    measured = (plan.measured(tmp_path / "study", "baseline", 1) / "dev.csv").read_text(encoding="utf-8")
    for line, row in zip(load_corpus("stories:60:dev").lines, measured.splitlines()[1:], strict=True):
        ids = torch.tensor([[tokenizer.pad, *tokenizer.encode(line), tokenizer.pad][:64]])
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(model(ids)[0, :-1], ids[0, 1:])
        assert float(row.split(",")[0]) == pytest.approx(float(loss), abs=1e-5)
    readings = read_measured(plan.measured(tmp_path / "study", "baseline", 1)).word_by_word
    assert readings.whole == pytest.approx(readings.word_by_word, rel=1e-4)
    # The finished runs can be compared again, on the held-out part of what they read.
    names = tuple(str(plan.path(tmp_path / "study", variant.name, 1)) for variant in plan.variants[:2])
    again = Compare(names=names).completed()
    assert (again.varied, again.corpus, again.dev) == ("model.norm", "stories:60:train", "stories:60:dev")
    report = as_markdown(outcome.document)
    assert "+ train.optimizer=adamw" in report
    assert "| Varied | model.norm, train.optimizer |" in report
    assert "gradient" in report


def test_fewer_long_texts_are_read_word_by_word() -> None:
    assert read_twice(["x" * 100] * 5) == 200
    assert read_twice(["x" * 500] * 5) == 40
    assert read_twice(["x" * 5000] * 5) == 20


def test_running_text_is_compared_if_every_line_is_a_document() -> None:
    plan = make_plan(["dot", "linear"], task="text", quick=True)
    assert (plan.corpus, plan.dev) == ("stories:1000:train", "stories:1000:dev")
    assert {variant.settings(0).task.options["documents"] for variant in plan.variants} == {"lines"}
    assert plan.stages(plan.variants[0]) == ("pretrain",)
    with pytest.raises(UserError, match=r"each must be a document: set --task\.options\.documents lines"):
        make_plan(["dot", "linear"], task="text", given={"task": {"options": {"documents": "file"}}})


def test_sums_are_compared_on_problems_that_were_not_trained_on() -> None:
    plan = make_plan(["dot", "linear"], task="addition")
    assert (plan.corpus, plan.facts, plan.exam) == ("addition:train", "addition:train", "addition:dev")
    assert plan.stages(plan.variants[0]) == ("pretrain",)
    assert plan.variants[0].settings(0).preset == "addition"
    assert plan.seen_before == 0
    own = replace(plan, variants=(), names=("dot", "linear"), corpus="a", facts="b", exam=None)
    with pytest.raises(UserError, match="go together"):
        own.completed()
