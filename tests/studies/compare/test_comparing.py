"""Whole comparisons, really trained: what is in the result, going on after a stop, and runs that do not belong together."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from plans import data, make_plan
from rich.console import Console

from attnlab import corpora, stats
from attnlab.config import ModelConfig, RunConfig, Stage, resolve
from attnlab.errors import AttnlabError, Interrupted, UserError
from attnlab.lm import perplexity, stages
from attnlab.lm.model import LanguageModel, load_model
from attnlab.lm.perplexity import SentenceLosses
from attnlab.lm.tokenizers import Tokenizer
from attnlab.report.text import as_markdown
from attnlab.store.folders import locked, unlist
from attnlab.store.runs import Run
from attnlab.studies.compare import Compare, compare
from attnlab.studies.compare.runs import quality, read_records, some, stored_plan
from attnlab.studies.study import load
from verbs import reseal

Compared = tuple[Path, Any]
TEXT: dict[str, Any] = {"corpus": "prose:100:train", "dev": "prose:300:dev"}


def copied(compared: Compared, tmp_path: Path) -> tuple[Path, Any]:
    folder = tmp_path / "study"
    shutil.copytree(compared[0], folder)
    return folder, load(folder)


def resumed(folder: Path, plan: Any) -> Any:
    return plan.resume(folder, Console(quiet=True)).result


def test_the_leaking_one_is_found_and_its_gain_not_believed(compared: Compared) -> None:
    _, result = compared
    assert {one.name: one.leaks for one in result.variants} == {
        "dot": False,
        "zero_mask": True,
        "shared_qk": False,
    }
    valid = {one.a: one.valid for one in result.comparisons}
    assert valid == {"zero_mask": False, "shared_qk": True}
    gain = next(one for one in result.variants if one.name == "zero_mask").gain
    assert gain.word_by_word.value > gain.whole.value


def test_figures_are_those_of_the_runs(compared: Compared) -> None:
    folder, result = compared
    for variant in result.variants:
        for at, run in enumerate(variant.runs):
            there = Run.open(folder / variant.name / f"seed-{run.seed}")
            assert run.values["final_loss"] == there.result.final_loss
            losses = SentenceLosses.from_csv(
                (folder / "measured" / variant.name / f"seed-{run.seed}" / "dev.csv").read_text()
            )
            assert run.values["dev_token_perplexity"] == pytest.approx(losses.token_perplexity)
            assert variant.values["dev_token_perplexity"].each[at] == run.values["dev_token_perplexity"]
            assert run.curve.losses == [step.loss for step in there.metrics()]
            lines = corpora.load_corpus("prose:300:dev").lines
            again = perplexity.sentence_losses(*load_model(there.model), lines, longest=100)
            assert again.losses == pytest.approx(losses.losses, abs=1e-5)
        assert variant.values["peak_memory"].mean > 1e8
        assert variant.values["flops_per_token"].mean > 6 * 16 * 100  # three products with the head at least


def test_tests_are_those_of_stats_with_holm(compared: Compared) -> None:
    folder, result = compared
    plan = load(folder)
    records = read_records(plan, folder)
    losses = {
        name: [SentenceLosses.from_csv((row.folder / "dev.csv").read_text()) for row in rows]
        for name, rows in records.items()
    }
    p_values = []
    for one in result.comparisons:
        sides = [[each.losses for each in losses[name]] for name in (one.a, one.b)]
        both = stats.compare_perplexities(
            *sides,
            losses["dot"][0].tokens,
            clusters=plan.clusters,  # type: ignore[attr-defined]
        ).both
        assert one.effect.p == both.p
        assert one.effect.low == pytest.approx(math.exp(both.low or 0))
        p_values.append(one.effect.p)
    # The leaking one is not valid, and takes no part in the correction.
    assert [one.adjusted for one in result.comparisons] == [None, None]


def test_the_report_is_written(compared: Compared) -> None:
    folder, result = compared
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "zero_mask" in page
    assert result.verdict[0].split(":")[0] in page
    assert (folder / "report.md").is_file()


def test_a_comparison_is_not_taken_for_a_run(compared: Compared) -> None:
    with pytest.raises(UserError, match=r"has no model of its own \(name one of its runs, such as .*/seed-0\)"):
        Run.open(compared[0])


@pytest.mark.usefixtures("in_process")
def test_nothing_is_done_twice(compared: Compared, tmp_path: Path) -> None:
    """What is complete is left alone, what was measured is not trained again, and the numbers are the same."""
    folder, plan = copied(compared, tmp_path)
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "measured" / "dot" / "seed-1")
    shutil.rmtree(folder / "dot" / "seed-0" / "checkpoints", ignore_errors=True)
    before = (folder / "dot" / "seed-1" / "result.json").stat().st_mtime_ns
    again = resumed(folder, plan)
    assert (folder / "dot" / "seed-1" / "result.json").stat().st_mtime_ns == before
    values = [[one.values["dev_token_perplexity"] for one in r.variants] for r in (again, compared[1])]
    assert values[0] == values[1]


@pytest.mark.processes
def test_a_stopped_comparison_goes_on(small: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Ctrl-C reaches this process, which asks those of the runs to stop."""
    folder = tmp_path / "study"
    slow = {**small, "train": {**small["train"], "epochs": 400.0}}
    metrics = folder / "dot" / "seed-0" / "metrics.jsonl"

    def stop() -> None:
        for _ in range(1200):
            if metrics.is_file() and metrics.read_text().count("\n") > 3:
                os.kill(os.getpid(), signal.SIGINT)
                return
            time.sleep(0.1)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(Interrupted, match=f"Resume with: attnlab resume {folder}"):
        compare("dot", "linear", seeds=1, workers=1, out=folder, task="words", given=slow, **TEXT)
    thread.join()
    stopped = Run.open(folder / "dot" / "seed-0")
    assert not stopped.complete
    assert stopped.checkpoints()
    # A shorter way to the end than the 400 epochs that were asked for.
    shorten(folder)
    request.getfixturevalue("in_process")
    result = resumed(folder, stored_plan(folder))
    assert [one.name for one in result.variants] == ["dot", "linear"]
    assert result.comparisons[0].effect.scope == "new sentences, with this one seed"


def shorten(folder: Path) -> None:
    """Let a comparison end after an epoch or so, wherever its runs are."""
    for path in [folder / "study.json", *folder.glob("*/seed-0/config.json")]:
        path.write_text(path.read_text().replace('"epochs": 400.0', '"epochs": 2.0'), encoding="utf-8")
    reseal(folder)


@pytest.mark.usefixtures("in_process")
def test_a_run_that_is_removed_is_trained_again(compared: Compared, tmp_path: Path) -> None:
    folder, plan = copied(compared, tmp_path)
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "dot" / "seed-1")
    again = resumed(folder, plan)
    assert Run.open(folder / "dot" / "seed-1").complete
    # The same seed gives the same numbers.
    assert again.comparisons[0].effect.p == compared[1].comparisons[0].effect.p


def test_what_changed_since_the_beginning_is_refused(compared: Compared, tmp_path: Path) -> None:
    folder, plan = copied(compared, tmp_path)
    (folder / "result.json").unlink()
    stored = json.loads((folder / "study.json").read_text())
    stored["fingerprints"]["dev"] = "0"
    (folder / "study.json").write_text(json.dumps(stored))
    reseal(folder)
    with pytest.raises(UserError, match="dev changed since this study began"):
        plan.resume(folder, Console(quiet=True))


def test_two_at_once_on_one_folder_are_refused(compared: Compared, tmp_path: Path) -> None:
    folder, plan = copied(compared, tmp_path)
    with locked(folder), pytest.raises(UserError, match="is being written by another process"):
        plan.resume(folder, Console(quiet=True))


@pytest.mark.usefixtures("in_process")
def test_finished_runs_are_compared_as_they_are(compared: Compared, tmp_path: Path) -> None:
    folder, result = compared
    names = [str(folder / name / f"seed-{seed}") for name in ("dot", "shared_qk") for seed in (0, 1)]
    compare(*names, dev="prose:300:dev", out=tmp_path / "again")
    again: Any = load(tmp_path / "again").read_result(tmp_path / "again")
    assert [one.name for one in again.variants] == ["dot", "shared_qk"]
    assert again.variants[0].values["dev_token_perplexity"] == result.variants[0].values["dev_token_perplexity"]
    with pytest.raises(UserError, match="no run of shared_qk with seed 1"):
        make_plan(names[:3], data=data(dev="prose:300:dev"))
    with pytest.raises(UserError, match="are both dot with seed 0"):
        make_plan([names[0], *names], data=data(dev="prose:300:dev"))
    with pytest.raises(UserError, match="is not a run, and finished runs are compared with finished runs only"):
        make_plan([names[0], "dot"])
    with pytest.raises(UserError, match="there is no run runs/nope: name the folder"):
        make_plan(["runs/nope", "runs/other"])
    with pytest.raises(UserError, match="have the same settings: there is nothing to compare"):
        make_plan([name for name in names if "dot" in Path(name).parts])


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs fine-tuned without a corpus: a and b from one base, c from another, d from one of another seed; e, f from none."""
    folder = tmp_path_factory.mktemp("tuned")

    def config(stage: Stage, epochs: float, seed: int = 0, **train: float) -> RunConfig:
        model = {"n_layer": 1, "n_head": 2, "n_embd": 32, "vocab_size": 300}
        return resolve("small", stage, given={"model": model, "train": {"epochs": epochs, **train}, "seed": seed})

    def finetune(name: str, base: str | None, stage: Stage = "finetune", **train: float) -> None:
        run = Run.open(folder / base) if base else None
        stages.finetune(config(stage, 1.0, **train), run, "people:60:train", out=folder / name)

    for name, epochs, seed in (("one", 1.0, 0), ("longer", 2.0, 0), ("reseeded", 1.0, 7)):
        stages.pretrain(config("pretrain", epochs, seed), "people:60", out=folder / name)
    for name, base, rate in (
        ("a", "one", 0.001),
        ("b", "one", 0.002),
        ("c", "longer", 0.002),
        ("d", "reseeded", 0.002),
    ):
        finetune(name, base, lr=rate)
    finetune("same", "longer", lr=0.001)
    for name, rate in (("e", 0.001), ("f", 0.002)):
        finetune(name, None, "scratch", lr=rate)
    return folder


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(("pair", "corpus"), [("ab", "people:60"), ("ef", None)])
def test_fine_tuned_runs_without_a_corpus_are_compared(
    tuned: Path, pair: str, corpus: str | None, tmp_path: Path
) -> None:
    names = [str(tuned / name) for name in pair]
    compare(*names, exam="people:60:dev", out=tmp_path / "study")
    plan: Any = load(tmp_path / "study")
    result: Any = plan.read_result(tmp_path / "study")
    assert plan.corpus == corpus
    assert [one.name for one in result.variants] == ["train.lr=0.001", "train.lr=0.002"]
    assert [one.value for one in result.variants] == [0.001, 0.002]
    assert result.comparisons[0].effect.details.questions == len(corpora.load_questions("people:60:dev"))
    assert result.variants[0].exam.commonest
    if corpus:  # what it was pretrained on says what to ask
        assert make_plan(names).exam == "people:60:dev"
    else:
        with pytest.raises(UserError, match="name what to measure the runs on"):
            make_plan(names)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ("c", "differ in train.epochs of the base besides train.lr"),
        ("d", "differ in seed of the base besides train.lr"),
        ("same", "differ in train.epochs of the base, so"),
    ],
)
def test_runs_with_other_bases_are_refused_before_measuring(tuned: Path, other: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make_plan([str(tuned / "a"), str(tuned / other)], data=data(exam="people:60:dev"))


@pytest.mark.processes
def test_a_job_that_fails_says_why(compared: Compared, tmp_path: Path) -> None:
    folder, plan = copied(compared, tmp_path)
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "measured" / "dot" / "seed-1")
    (folder / "dot" / "seed-1" / "model" / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(AttnlabError, match="1 of 6 runs failed, the first dot, seed 1: .*logs.* tries again"):
        plan.resume(folder, Console(quiet=True))


@pytest.mark.usefixtures("in_process")
def test_answers_are_compared_question_by_question(tmp_path: Path) -> None:
    given = {"model": {"n_layer": 1, "n_head": 2, "n_embd": 32, "vocab_size": 300}, "train": {"epochs": 2.0}}
    world = {"corpus": "people:60", "facts": "people:60:train", "exam": "people:60:dev"}
    compare("dot", "linear", seeds=1, given=given, out=tmp_path / "study", **world)
    result: Any = load(tmp_path / "study").read_result(tmp_path / "study")
    assert result.figures[0].key == "accuracy"
    (one,) = result.comparisons
    questions = len(corpora.load_questions("people:60:dev"))
    assert one.effect.details.questions == questions
    right = (tmp_path / "study" / "measured" / "dot" / "seed-0" / "right.csv").read_text().split()[1:]
    assert result.variants[0].values["accuracy"].mean == pytest.approx(right.count("1") / questions)


@pytest.mark.parametrize(("mechanism", "same"), [("dot", True), ("additive", True), ("zero_mask", False)])
def test_word_by_word_tells_who_looks_ahead(mechanism: str, same: bool) -> None:
    lines = some(corpora.load_corpus("prose:300:dev").lines, 5)
    tokenizer = Tokenizer.train("word", lines, 0)
    torch.manual_seed(0)
    config = ModelConfig(
        n_layer=2, n_head=2, n_embd=16, block_size=64, vocab_size=tokenizer.size, zero_init=False, mechanism=mechanism
    )
    model = LanguageModel(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    sentences = [tokenizer.sentence(line, 64) for line in lines]
    whole = perplexity.whole_losses(model, sentences, tokenizer.pad)
    assert list(perplexity.sentence_losses(model, tokenizer, lines).losses) == whole
    assert (perplexity.prefix_losses(model, sentences) == pytest.approx(whole, abs=1e-4)) == same


@pytest.mark.usefixtures("in_process")
def test_longer_contexts_are_read_and_tested_where_the_model_has_no_end(tmp_path: Path) -> None:
    given = {
        "model": {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 32},
        "train": {"steps": 8, "tokens_per_batch": 512, "lr": 0.01},
        "tokenizer": {"kind": "char"},
    }
    rotary, learned, bare = names = [f"model.positions={kind}" for kind in ("rotary", "learned", "none")]
    plan = make_plan(
        [],
        vary="model.positions=rotary,learned,none",
        task="text",
        given=given,
        seeds=2,
        lengths=(4, 2),
        data=data("stories:60:train", "stories:60:dev"),
    )
    folder = tmp_path / "study"
    outcome = plan.begin(folder, Console(quiet=True))
    found, result = outcome.result.long_texts, outcome.result
    assert found is not None
    assert (found.lengths, found.documents) == ((32, 64, 128), 6)
    assert [len(variant.texts.samples) for variant in result.variants if variant.texts] == [2, 2, 2]
    assert [spread is None for spread in found.perplexities[learned]] == [False, True, True]
    assert None not in (*found.perplexities[rotary], *found.perplexities[bare])
    # The whole context is the ordinary reading of a text, of which the tokens after the block count.
    run = Run.open(plan.path(folder, rotary, 1))
    model, tokenizer = load_model(run.model)
    lines = corpora.load_corpus("stories:60:dev").lines
    ids = torch.tensor([[tokenizer.pad, *tokenizer.encode(line)][:129] for line in lines])
    with torch.no_grad():
        losses = torch.nn.functional.cross_entropy(model(ids[:, :-1]).flip(1)[:, :96].mT, ids[:, 1:].flip(1)[:, :96])
    assert found.perplexities[rotary][2].each[1] == pytest.approx(math.exp(losses), rel=1e-5)
    # Every pair that both can read, tested as other pairs are, each table corrected by itself.
    said = [(pair.a, pair.b) for pair in found.gains]
    assert said == [(f"{name} with {n} tokens", f"{name} with 32 tokens") for name in (rotary, bare) for n in (64, 128)]
    read = [*((name, 32) for name in names[1:]), (bare, 64), (bare, 128)]
    assert [(pair.a, pair.b) for pair in found.differences] == [
        (f"{name} with {n} tokens", f"{rotary} with {n} tokens") for name, n in read
    ]
    places = [plan.measured(folder, rotary, seed) for seed in (0, 1)]
    long, short = (
        [SentenceLosses.from_csv((place / f"context-{n}.csv").read_text()).losses for place in places]
        for n in (128, 32)
    )
    test = stats.compare_perplexities(long, short, [96] * 6, alpha=0.05 / 4)
    assert found.gains[1].effect.perplexities == test
    assert "after Holm over 4 comparisons" in found.gains[1].words
    assert f"{learned} reads no more than 32 tokens." in result.verdict
    assert found.gains[1].sentence in result.verdict
    report = as_markdown(outcome.document)
    assert "| 32 tokens | 64 tokens | 128 tokens |" in report
    assert "(reads no more than 32 tokens)" in report
    # What was measured is kept when a comparison is judged again, and finished runs can be read with other lengths.
    unlist(folder, "result.json")
    assert resumed(folder, load(folder)).long_texts == found
    runs = tuple(str(plan.path(folder, name, 1)) for name in (rotary, bare))
    again = Compare(names=runs, lengths=(2,)).begin(tmp_path / "again", Console(quiet=True)).result
    assert again.long_texts.lengths == (32, 64)
    assert again.long_texts.documents == 6
    with pytest.raises(UserError, match="has 705 tokens, and 30 blocks are 960"):
        Compare(names=runs, lengths=(30,)).begin(tmp_path / "third", Console(quiet=True))


def test_quality_counts_words() -> None:
    found = quality([["the", "cat", ".", "<UNK>"], ["the", "!"]])
    assert found.tokens == 6
    assert found.unknown_share == pytest.approx(1 / 6)
    assert found.punctuation_share == pytest.approx(2 / 6)  # <UNK> stands for a word
    assert found.distinct_share == pytest.approx(5 / 6)
    assert found.mean_length == 3


def test_some_lines_are_the_same_each_time() -> None:
    lines = [str(number) for number in range(1000)]
    assert some(lines, 10) == some(lines, 10)
    assert some(lines, 10) == sorted(some(lines, 10), key=int)
    assert some(lines, 2000) == lines
