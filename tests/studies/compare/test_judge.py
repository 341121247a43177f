"""What is said of finished runs, on runs made by hand: directions, corrections, second looks, and who is refused."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from plans import audit, data, make_plan
from scipy.stats import binomtest

from attnlab import stats
from attnlab.corpora import Question, load_questions
from attnlab.errors import UserError
from attnlab.lm.exams import Examination
from attnlab.lm.perplexity import SentenceLosses
from attnlab.measure.audit import Report
from attnlab.report.document import Table
from attnlab.store.folders import add_files, write_manifest
from attnlab.store.records import encode
from attnlab.store.runs import DataSource, RunRecord, Step
from attnlab.studies.compare import Compare
from attnlab.studies.compare.judge import judge

SENTENCES = 40
QUESTIONS = len(load_questions("people:300:dev"))
SOUND = audit("dot", leaks=(0.0,) * 4)
QUALITY = {"tokens": 10, "unknown_share": 0.1, "punctuation_share": 0.1, "distinct_share": 0.5, "mean_length": 5.0}

Answers = Callable[[int, int], bool]  # of seed and question


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    if path.parent.name.startswith("seed-"):
        write_manifest(path.parent, "measurement" if "measured" in path.parts else "run")


def losses(mean: float, seed: int) -> SentenceLosses:
    """Losses of sentences around a mean; how hard a sentence is, is the same for all."""
    hard = random.Random(1)
    noise = random.Random(f"{mean} {seed}")
    each = [mean + hard.gauss(0, 0.5) + noise.gauss(0, 0.01) for _ in range(SENTENCES)]
    return SentenceLosses(tuple(each), (5,) * SENTENCES, (0,) * SENTENCES)


def make_run(plan: Compare, folder: Path, name: str, seed: int, **result: Any) -> Path:
    """A finished run without a model."""
    path = plan.path(folder, name, seed)
    settings, corpus = plan.find(name).settings(seed).to_dict(), DataSource(str(plan.corpus), "a")
    write(path / "config.json", encode(RunRecord("pretrain", settings, corpus=corpus)).decode())
    write(path / "env.json", {"torch": "2"})
    write(path / "metrics.jsonl", json.dumps(asdict(Step(1, 1.0, 1.0, 2.0, 1.0, 9, 0.1))) + "\n")
    figures = {"final_loss": 2.0, "seconds": 10.0, "tokens": 100, "tokens_per_second": 10, "parameters": 5}
    write(path / "result.json", {**figures, "peak_memory": 7, "threads": 1, "processes": 1, **result})
    return path


def words_study(folder: Path, means: dict[str, float], *, seeds: int = 3, ahead: float = 1.0) -> Compare:
    """A comparison of perplexities; the last variant reads word by word with `ahead` times its perplexity."""
    for part in ("train", "dev"):
        write(folder / f"{part}.txt", "".join(f"Sentence {number} of {part} .\n" for number in range(SENTENCES)))
    texts = data(str(folder / "train.txt"), str(folder / "dev.txt"))
    plan = make_plan(list(means), task="words", seeds=seeds, data=texts)
    for number, (name, mean) in enumerate(means.items()):
        for seed in plan.seeds:
            make_run(plan, folder, name, seed, seconds=10.0 * (number + 1))
            dev, place = losses(mean, seed), plan.measured(folder, name, seed)
            apart = ahead if number == len(means) - 1 else 1.0
            again = replace(dev, losses=tuple(loss + math.log(apart) for loss in dev.losses))
            probe = {"sentence": "One .", "tokens": 2, "unknown": 0, "loss": mean + seed, "perplexity": math.exp(mean)}
            readings = {"sentences": SENTENCES, "whole": dev.token_perplexity, "word_by_word": again.token_perplexity}
            text = {
                "probes": [probe],
                "samples": [],
                "sample_quality": QUALITY,
                "text_quality": QUALITY,
            }
            values = {"flops_per_token": 3.0}
            for part, table in (("dev", dev), ("train", losses(mean - 1, seed))):
                values[f"{part}_token_perplexity"] = table.token_perplexity
                values[f"{part}_sentence_perplexity"] = table.sentence_perplexity
            figures = {"values": values, "measuring": 1.0, "word_by_word": readings, "text": text}
            write(place / "measured.json", figures)
            tables = {"dev": dev, "whole": dev, "word_by_word": again, "train": losses(mean - 1, seed)}
            for file, table in tables.items():
                write(place / f"{file}.csv", table.to_csv().decode())
    return plan


def answers_study(folder: Path, right: dict[str, Answers], seeds: int = 3) -> Compare:
    """A comparison of answers."""
    plan = make_plan(list(right), quick=True, seeds=seeds)
    for name, answer in right.items():
        for seed in plan.seeds:
            make_run(plan, folder, name, seed)
            each = [answer(seed, number) for number in range(QUESTIONS)]
            readings = {"sentences": 9, "whole": 5.0, "word_by_word": 5.0}
            figures = {
                "answers": asdict(
                    Examination(tuple(Question("?", str(one)) for one in each), ("True",) * QUESTIONS).score()
                ),
                "values": {"accuracy": sum(each) / QUESTIONS, "flops_per_token": 3.0},
                "word_by_word": readings,
                "measuring": 1,
            }
            write(plan.measured(folder, name, seed) / "measured.json", figures)
            table = "".join(f"{int(one)}\n" for one in each)
            write(plan.measured(folder, name, seed) / "right.csv", "right\n" + table)
            write(
                plan.measured(folder, name, seed) / "whole.csv",
                losses(sum(map(ord, name)) / 100, seed).to_csv().decode(),
            )
    return plan


def judged(plan: Compare, folder: Path, **audits: Report) -> Any:
    return judge(plan, folder, {variant.name: audits.get(variant.name, SOUND) for variant in plan.variants})


def test_the_lower_perplexity_is_the_better_one(tmp_path: Path) -> None:
    plan = words_study(tmp_path, {"dot": 5.0, "additive": 4.9, "linear": 5.1})
    result = judged(plan, tmp_path)
    better, worse = result.comparisons
    assert better.effect.value == pytest.approx(math.exp(-0.1), rel=0.01)
    assert better.words.startswith("additive better")
    assert worse.words.startswith("dot better")
    assert all(one.shown and one.valid for one in result.comparisons)
    assert better.effect.low < better.effect.value < better.effect.high < 1 < worse.effect.low
    seconds = next(one for one in result.paired if one.figure == "seconds" and one.a == "linear")
    assert (seconds.difference, seconds.ratio) == (20.0, 3.0)


def test_figures_are_taken_from_their_place(tmp_path: Path) -> None:
    plan = words_study(tmp_path, {"dot": 5.0, "additive": 4.9})
    dot = judged(plan, tmp_path).variants[0]
    each = [losses(5.0, seed).token_perplexity for seed in range(3)]
    assert dot.values["dev_token_perplexity"].each == pytest.approx(each)
    assert dot.values["dev_token_perplexity"].mean == pytest.approx(stats.geometric_mean(each))
    trained = [losses(4.0, seed).sentence_perplexity for seed in range(3)]
    assert dot.values["train_sentence_perplexity"].each == pytest.approx(trained)
    assert dot.texts.probes[0].losses == (5.0, 6.0, 7.0)
    assert dot.texts.probes[0].perplexity == pytest.approx(math.exp(6.0))


def test_holm_can_take_a_finding_back(tmp_path: Path) -> None:
    """A difference that alone would be shown is not shown among many."""

    def some(share: float) -> Answers:
        return lambda seed, number: random.Random(f"{seed}{number}").random() < share or number % 3 == 0

    names = ["dot", "additive", "linear", "sliding", "gqa"]
    plan = answers_study(tmp_path, {name: some(0.3 + 0.24 * (name == "additive")) for name in names}, seeds=3)
    alone = judged(plan, tmp_path).comparisons
    p_values = [one.effect.p for one in alone]
    assert [one.adjusted for one in alone] == stats.holm(p_values)
    assert any(p < 0.05 <= adjusted for p, adjusted in zip(p_values, stats.holm(p_values), strict=True)), p_values
    assert [one.shown for one in alone] == [one.adjusted < 0.05 for one in alone]


def test_a_pair_without_spread_still_counts_as_a_comparison(tmp_path: Path) -> None:
    plan = answers_study(
        tmp_path,
        {"dot": lambda *_: True, "linear": lambda *_: False, "performer": lambda seed, at: (seed + at) % 2 == 0},
    )
    none, some = judged(plan, tmp_path).comparisons
    assert (none.effect.p, none.adjusted) == (None, None)
    assert "no test: 0.0 vs 100.0 %" in none.words
    assert some.adjusted == pytest.approx(min(1.0, 2 * some.effect.p))


def test_more_right_answers_are_better_with_one_seed_and_with_several(tmp_path: Path) -> None:
    def knows(share: int) -> Answers:
        return lambda seed, number: (number + seed) % 10 < share

    for seeds in (1, 3):
        folder = tmp_path / str(seeds)
        plan = answers_study(folder, {"dot": knows(3), "linear": knows(8)}, seeds)
        (one,) = judged(plan, folder).comparisons
        assert one.effect.value > 0.3
        assert one.effect.low > 0
        assert one.words.startswith("linear better")
        assert seeds > 1 or one.effect.mcnemar.only_b == 0
        assert ("with this one seed" in one.effect.scope) == (seeds == 1)


def test_a_leak_that_training_made_is_found(tmp_path: Path) -> None:
    """The audit passes, and the trained model reads otherwise when nothing follows."""
    plan = words_study(tmp_path, {"dot": 5.0, "additive": 4.9, "linear": 4.0}, ahead=8.0)
    result = judged(plan, tmp_path)
    assert [one.leaks for one in result.variants] == [False, False, True]
    assert [one.valid for one in result.comparisons] == [True, False]
    gain = result.variants[2].gain
    assert gain.whole.value == pytest.approx(math.exp(-1), rel=0.01)
    assert gain.word_by_word.value == pytest.approx(8 * math.exp(-1), rel=0.01)
    assert result.verdict[0].startswith("The gain is the leak: linear")
    # What is not valid weakens no other finding.
    assert result.comparisons[0].adjusted is None


@pytest.mark.parametrize("fault", ["future", "gradient", "prefix", "batch", "packing"])
def test_an_audit_that_finds_what_must_not_be_seen_marks_a_leak(fault: str, tmp_path: Path) -> None:
    plan = words_study(tmp_path, {"dot": 5.0, "additive": 4.9})
    result = judged(plan, tmp_path, additive=replace(SOUND, verdict="fail", faults={fault: "it does"}))
    assert result.variants[1].leaks
    assert not result.comparisons[0].valid


def test_many_comparisons_that_show_nothing_share_a_sentence(tmp_path: Path) -> None:
    names = ("dot", "additive", "alibi", "linear", "performer", "synthesizer")
    same = {name: 5.0 + 1e-4 * place for place, name in enumerate(names)}
    plan = words_study(tmp_path, {**same, "gqa": 4.0})
    first, second, *_ = (result := judged(plan, tmp_path)).verdict
    assert first.startswith("gqa against dot, with the settings of the preset, not tuned for each: gqa better")
    assert second.startswith("additive, alibi, linear, performer and synthesizer against dot, with the settings")
    silent = [one.adjusted for one in result.comparisons if not one.shown]
    least = min(silent)
    assert least < max(silent)
    assert f"no difference shown, {stats.p_in_words(least)} or more after correction." in second
    assert not any("linear against dot" in one for one in result.verdict)


def test_two_seeds_come_with_a_warning(tmp_path: Path) -> None:
    plan = words_study(tmp_path, {"dot": 5.0, "additive": 4.9}, seeds=2)
    assert "With two seeds" in judged(plan, tmp_path).verdict[-1]


def test_runs_of_different_machines_come_with_a_warning(tmp_path: Path) -> None:
    plan = words_study(tmp_path, {"dot": 5.0, "additive": 4.9})
    write(plan.path(tmp_path, "dot", 1) / "env.json", {"torch": "3"})
    assert "do not compare their times" in judged(plan, tmp_path).verdict[-1]


def change(path: Path, *keys: str, value: Any) -> None:
    stored = json.loads(path.read_text())
    inner = stored
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    write(path, stored)


@pytest.mark.parametrize(
    ("keys", "value", "says"),
    [
        (("settings", "train", "lr"), 0.5, r"train\.lr"),
        (("settings", "seed"), 7, "seed"),
        (("settings", "model", "mechanism"), "linear", r"model\.mechanism"),
        (("corpus", "sha256"), "b", "data"),
        (("stage",), "scratch", "stage"),
    ],
)
@pytest.mark.parametrize(("name", "seed"), [("dot", 1), ("additive", 0)])
def test_runs_that_do_not_belong_are_refused(
    keys: tuple[str, ...], value: Any, says: str, name: str, seed: int, tmp_path: Path
) -> None:
    plan = words_study(tmp_path, {"dot": 5.0, "additive": 4.9})
    change(plan.path(tmp_path, name, seed) / "config.json", *keys, value=value)
    with pytest.raises(UserError, match=f"differs? in .*({says})"):
        judged(plan, tmp_path)


def test_a_copied_run_is_no_second_seed(tmp_path: Path) -> None:
    plan = words_study(tmp_path, {"dot": 5.0, "additive": 4.9})
    shutil.rmtree(plan.path(tmp_path, "dot", 1))
    shutil.copytree(plan.path(tmp_path, "dot", 0), plan.path(tmp_path, "dot", 1))
    with pytest.raises(UserError, match="differs in seed"):
        judged(plan, tmp_path)


def test_perplexities_of_other_words_are_not_compared(tmp_path: Path) -> None:
    plan = words_study(tmp_path, {"dot": 5.0, "additive": 4.9})
    place = plan.measured(tmp_path, "additive", 2) / "dev.csv"
    write(place, place.read_text().replace(",5,0", ",5,1", 1))
    with pytest.raises(UserError, match="not measured on the same words"):
        judged(plan, tmp_path)


def test_time_and_tokens_of_what_came_before_count(tmp_path: Path) -> None:
    plan = answers_study(tmp_path, {"dot": lambda seed, number: number < 9, "linear": lambda seed, number: number < 8})
    plan = replace(plan, variants=tuple(replace(each, steps=("pretrain", "finetune")) for each in plan.variants))
    for name in ("dot", "linear"):
        for seed in plan.seeds:
            path = plan.path(tmp_path, name, seed)
            shutil.copytree(path, path.with_name(f"{path.name}-pretrain"))
            change(path / "config.json", "settings", value=plan.find(name).settings(seed, "finetune").to_dict())
            change(path / "config.json", "base", value=f"../{path.name}-pretrain")
            change(path / "config.json", "stage", value="finetune")
    values = judged(plan, tmp_path).variants[0].values
    assert values["seconds"].mean == 20.0
    assert values["tokens_per_second"].mean == 10.0
    # And so do their settings.
    change(
        plan.path(tmp_path, "linear", 1).with_name("seed-1-pretrain") / "config.json",
        "settings",
        "train",
        "lr",
        value=9.0,
    )
    with pytest.raises(UserError, match=r"differs in train\.lr"):
        judged(plan, tmp_path)


def test_what_a_finished_run_started_from_may_have_its_own_seed(tmp_path: Path) -> None:
    plan = answers_study(tmp_path, {"dot": lambda seed, number: number < 9, "linear": lambda seed, number: number < 8})
    paths = {f"{name}/{seed}": plan.path(tmp_path, name, seed) for name, seed in plan.order()}
    for path in paths.values():
        base = path.with_name(f"{path.name}-base")
        shutil.copytree(path, base)
        change(base / "config.json", "settings", "seed", value=40)
        change(path / "config.json", "base", value=f"../{base.name}")
    with pytest.raises(UserError, match="differs in seed"):
        judged(plan, tmp_path)
    given = replace(plan, runs={key: str(path) for key, path in paths.items()})
    assert judged(given, tmp_path).variants[0].values["seconds"].mean == 20.0


def test_a_fault_that_is_no_leak_leaves_the_figures_valid_and_is_named(tmp_path: Path) -> None:
    plan = words_study(tmp_path, {"dot": 5.0, "additive": 4.9})
    result = judged(plan, tmp_path, additive=replace(SOUND, verdict="fail", faults={"padding": "hidden tokens count"}))
    assert not result.leaking
    assert result.comparisons[0].valid
    (note,) = (one for one in result.verdict if "no leak" in one)
    assert "a fault that is no leak: padding: hidden tokens count. Its figures are valid, except" in note
    assert not any("sees the future" in one for one in result.verdict)


def test_a_batch_that_is_seen_is_not_called_the_future(tmp_path: Path) -> None:
    plan = words_study(tmp_path, {"dot": 5.0, "additive": 4.9})
    found = judged(plan, tmp_path, additive=replace(SOUND, verdict="fail", faults={"batch": "rows mix"})).verdict
    assert not any("sees the future" in one for one in found)
    said = judged(plan, tmp_path, dot=replace(SOUND, verdict="fail", faults={"batch": "rows mix"})).verdict
    assert "dot sees the other texts of a batch, and the others are compared with it" in said[0]


def test_two_that_computed_the_same_are_not_tested(tmp_path: Path) -> None:
    plan = words_study(tmp_path, {"dot": 5.0, "sliding": 5.0, "linear": 5.2})
    same, other = judged(plan, tmp_path).comparisons
    assert same.words.startswith("both computed the same, with equal losses of every text and seed")
    assert (same.effect.p, same.adjusted, same.shown, same.belief) == (None, None, False, "")
    report = plan.document(judged(plan, tmp_path))
    (points,) = (block for part in report.sections for block in part.blocks if getattr(block, "shape", "") == "points")
    assert [mark.name for mark in points.marks] == ["linear over dot"]  # no empty row for what was not compared
    assert other.adjusted is None  # one test only: nothing to correct for
    assert other.shown


def test_runs_that_diverged_are_counted_and_their_pairs_not_tested(tmp_path: Path) -> None:
    plan = words_study(tmp_path, {"dot": 5.0, "additive": 4.9, "linear": 5.1}, seeds=5)
    shutil.rmtree(plan.path(tmp_path, "linear", 1))
    lost = {"linear/1": "the loss is nan at step 7"}
    write_manifest(tmp_path, "study")
    add_files(tmp_path, {"diverged.json": encode(lost)})
    result = judged(plan, tmp_path)
    dot, _, linear = result.variants
    assert [figure.key for figure in result.figures[:3]] == [
        "dev_token_perplexity",
        "collapsed",
        "trained_dev_token_perplexity",
    ]
    ends = binomtest(1, 5).proportion_ci()
    share = linear.values["collapsed"]
    assert (share.mean, share.low, share.high) == pytest.approx((0.2, ends.low, ends.high))
    assert dot.values["collapsed"].mean == 0
    assert len(linear.values["trained_dev_token_perplexity"].each) == 4
    tested, untested = result.comparisons
    assert tested.shown
    assert untested.words == "no test: of 5 runs, 1 of linear diverged"
    assert (untested.effect.p, untested.effect.value, untested.equivalence) == (None, None, None)
    assert any("1 of 5 runs of linear diverged" in one for one in result.verdict)
    report = plan.document(result)
    tables = {block.title: block for part in report.sections for block in part.blocks if isinstance(block, Table)}
    assert tables["Comparisons"].rows[1].cells[-1].text == "not tested"
    assert tables["Results"].caption.startswith("Means over up to 5 seeds")
    assert not any("collapsed" in column.title for column in tables["Runs"].columns)


def test_a_leak_of_which_a_run_diverged_is_judged_on_the_seeds_of_both(tmp_path: Path) -> None:
    plan = words_study(tmp_path, {"dot": 5.0, "linear": 4.0}, ahead=8.0)
    shutil.rmtree(plan.path(tmp_path, "linear", 1))
    write_manifest(tmp_path, "study")
    add_files(tmp_path, {"diverged.json": encode({"linear/1": "the loss is nan at step 7"})})
    gain = judged(plan, tmp_path).variants[1].gain
    assert gain.whole.perplexities.seeds == 2
    assert gain.word_by_word.value == pytest.approx(8 * math.exp(-1), rel=0.01)


def test_few_documents_are_neither_different_nor_equivalent(tmp_path: Path) -> None:
    plan = answers_study(tmp_path, {"dot": lambda seed, at: at % 2 == 0, "linear": lambda seed, at: at % 3 == 0})
    plan = replace(plan, margin=0.5)
    plan.__dict__.update(clusters=[at % 5 for at in range(QUESTIONS)])
    (pair,) = judged(plan, tmp_path).comparisons
    assert (pair.effect.p, pair.equivalence, pair.tested) == (None, None, False)


def test_a_run_that_learned_nothing_has_collapsed(tmp_path: Path) -> None:
    plan = words_study(tmp_path, {"dot": 5.0, "additive": 4.9})
    steps = [Step(at, at / 30, 1.0, loss, 1.0, 9 * at, 0.1) for at, loss in enumerate([2.1] * 30, 1)]
    text = "".join(json.dumps(asdict(step)) + "\n" for step in steps)
    write(plan.path(tmp_path, "additive", 0) / "metrics.jsonl", text)
    change(plan.path(tmp_path, "dot", 0) / "result.json", "final_loss", value=1.5)
    result = judged(plan, tmp_path)
    assert [one.values["collapsed"].mean for one in result.variants] == pytest.approx([0, 1 / 3])
    assert result.comparisons[0].effect.p is not None  # it ended, and counts like any other
    assert result.verdict[0].startswith(
        "1 of 3 runs of additive collapsed (training loss 2.10 at first, 2.00 at the end)"
    )


def test_where_little_can_be_learned_no_run_has_collapsed(tmp_path: Path) -> None:
    plan = words_study(tmp_path, {"dot": 5.0, "additive": 4.9})
    text = "".join(json.dumps(asdict(Step(at, at / 30, 1.0, 2.1, 1.0, 9, 0.1))) + "\n" for at in range(1, 31))
    for name, seed in plan.order():
        write(plan.path(tmp_path, name, seed) / "metrics.jsonl", text)
    assert "collapsed" not in judged(plan, tmp_path).variants[0].values


def test_a_variant_of_which_every_run_diverged_is_left_out(tmp_path: Path) -> None:
    plan = words_study(tmp_path, {"dot": 5.0, "additive": 4.9, "linear": 5.1})
    write_manifest(tmp_path, "study")
    lost = {f"dot/{seed}": "the loss is nan at step 7" for seed in plan.seeds}
    add_files(tmp_path, {"diverged.json": encode(lost)})
    result = judged(plan, tmp_path)
    assert [variant.name for variant in result.variants] == ["additive", "linear"]
    assert [(pair.a, pair.b) for pair in result.comparisons] == [("linear", "additive")]
    assert result.verdict[0].startswith("Every run of dot diverged: it is left out.")


def test_fine_tuning_that_had_little_left_to_learn_has_not_collapsed(tmp_path: Path) -> None:
    plan = answers_study(tmp_path, {"dot": lambda seed, number: number < 9, "linear": lambda seed, number: number < 8})
    plan = replace(plan, variants=tuple(replace(each, steps=("pretrain", "finetune")) for each in plan.variants))
    for name, seed in plan.order():
        path = plan.path(tmp_path, name, seed)
        for stage, first in (("pretrain", 9.0), ("finetune", 2.05)):
            steps = [Step(at, at / 30, 1.0, first, 1.0, 9 * at, 0.1) for at in range(1, 31)]
            write(path / "metrics.jsonl", "".join(json.dumps(asdict(step)) + "\n" for step in steps))
            if stage == "pretrain":
                shutil.copytree(path, path.with_name(f"{path.name}-pretrain"))
        change(path / "config.json", "settings", value=plan.find(name).settings(seed, "finetune").to_dict())
        change(path / "config.json", "base", value=f"../{path.name}-pretrain")
        change(path / "config.json", "stage", value="finetune")
    assert "collapsed" not in judged(plan, tmp_path).variants[0].values


def test_a_validation_loss_that_rose_is_said(tmp_path: Path) -> None:
    plan = words_study(tmp_path, {"dot": 5.0, "additive": 4.9})
    steps = [Step(at, at / 3, 1.0, 2.0, 1.0, 9 * at, 0.1, dev_loss=loss) for at, loss in enumerate([5.0, 4.5, 4.9], 1)]
    text = "".join(json.dumps(asdict(step)) + "\n" for step in steps)
    write(plan.path(tmp_path, "additive", 2) / "metrics.jsonl", text)
    result = judged(plan, tmp_path)
    (note,) = (one for one in result.verdict if "validation loss" in one)
    assert note.startswith("The validation loss of additive rose after its best step in 1 of 3 runs, by up to 0.4: ")
    assert result.variants[1].runs[2].dev_curve.losses == [5.0, 4.5, 4.9]


def test_probabilities_are_told_beside_the_test(tmp_path: Path) -> None:
    plan = replace(words_study(tmp_path, {"dot": 5.0, "additive": 4.999}), margin=0.01)
    (one,) = judged(plan, tmp_path).comparisons
    both = one.effect.details.both
    assert one.effect.better == pytest.approx(both.chance(-math.inf, 0.0))
    assert one.effect.similar == pytest.approx(both.chance(-math.log(1.01), math.log(1.01)))
    better = max(one.effect.better, 1 - one.effect.better)
    similar = 100 * one.effect.similar
    assert 0.1 < similar < 99.9
    assert f"is {100 * better:.1f} %; that they differ by less than 1 %: {similar:.1f} %." in one.belief
    assert "not a test" in one.belief


def test_means_come_with_intervals_for_other_seeds_and_other_items(tmp_path: Path) -> None:
    plan = words_study(tmp_path, {"dot": 5.0, "additive": 4.9})
    spread = judged(plan, tmp_path).variants[0].values["dev_token_perplexity"]
    each = [losses(5.0, seed) for seed in range(3)]
    wanted = stats.crossed(stats.log_perplexities([one.losses for one in each], each[0].tokens))
    assert (spread.low, spread.high) == pytest.approx((math.exp(wanted.low or 0), math.exp(wanted.high or 0)))
    over_seeds = stats.mean_interval([math.log(one.token_perplexity) for one in each])
    assert math.log(spread.high / spread.low) > 5 * ((over_seeds.high or 0) - (over_seeds.low or 0))
