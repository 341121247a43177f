"""Settings tuned for each, data kept apart for it, and seeds added later; on real small runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from plans import data, make_plan
from rich.console import Console

from attnlab.cli import main
from attnlab.errors import AttnlabError, UserError
from attnlab.report.document import Facts
from attnlab.store.folders import add_files, read_json, to_json
from attnlab.store.runs import Run
from attnlab.studies import resume
from attnlab.studies.compare import add_seeds, choose
from attnlab.studies.compare.cautions import cautions
from attnlab.studies.compare.variants import Trial, Tuned, Tuning
from attnlab.studies.study import load

Compared = tuple[Path, Any]


def plan_of(folder: Path) -> Any:
    return load(folder)


def test_each_is_trained_with_the_value_that_was_best_for_it(tuned: Compared) -> None:
    folder, result = tuned
    trials = result.tuning.trials
    assert [(one.variant, one.values["train.lr"]) for one in trials] == [
        ("dot", 1e-5),
        ("linear", 1e-5),
        ("dot", 0.01),
        ("linear", 0.01),
    ]
    for name in ("dot", "linear"):
        best = min((one for one in trials if one.variant == name), key=lambda one: one.figure)
        assert result.tuning.chosen[name] == best.values == {"train.lr": 0.01}
        for seed in (0, 1):
            assert Run.open(folder / name / f"seed-{seed}").record.settings["train"]["lr"] == 0.01


def test_the_choice_and_the_verdict_share_neither_sentences_nor_seeds(tuned: Compared) -> None:
    folder, result = tuned
    plan = plan_of(folder)
    choosing = plan.tuning_plan()
    assert plan.part == "judging"
    assert not set(choosing.sentences) & set(plan.sentences)
    assert sorted([*choosing.sentences, *plan.sentences]) == sorted(plan.data.corpus(str(plan.dev)).lines)
    assert not set(choosing.seeds) & set(plan.seeds)
    assert result.tuning.items == len(choosing.sentences)
    assert result.sizes["measured sentences"] == len(plan.sentences)


def test_the_verdict_says_what_was_tuned_and_the_report_shows_it(tuned: Compared, compared: Compared) -> None:
    folder, result = tuned
    (verdict,) = (one for one in result.verdict if one.startswith("linear against dot"))
    count = result.tuning.items
    assert f"each with its best train.lr of 2 tried, chosen on {count} other sentences: " in verdict
    assert "quivalen" in verdict
    page = (folder / "report.md").read_text(encoding="utf-8")
    for words in (
        "## Tuning",
        "chosen |",
        "| Registration",
        "Equivalent within 20",
    ):
        assert words in page
    assert {one.settings for one in compared[1].comparisons} == {"with the settings of the preset, not tuned for each"}


def test_documents_are_not_torn_apart(tmp_path: Path) -> None:
    text = tmp_path / "dev.txt"
    blocks = ["".join(f"Sentence {number} of text {block} .\n" for number in range(3)) for block in range(40)]
    text.write_text("\n".join(blocks), encoding="utf-8")
    held = data("prose:100:train", str(text))
    plan = make_plan(["dot", "linear"], task="words", data=held, tune=["train.lr=0.001,0.002"])
    assert plan.clusters is not None
    assert len(set(plan.clusters)) + len(set(plan.tuning_plan().clusters or ())) == 40
    assert not set(plan.clusters) & set(plan.tuning_plan().clusters or ())
    # Without blank lines every sentence is by itself.
    text.write_text("".join(blocks), encoding="utf-8")
    assert make_plan(["dot", "linear"], task="words", data=held).clusters is None
    text.write_text("\n".join(blocks[:5]), encoding="utf-8")
    few = make_plan(["dot", "linear"], task="words", data=held)
    assert few.clusters == tuple(number // 3 + 1 for number in range(15))
    assert "There is no test with 5 documents" in cautions(few).notes[0]


def test_questions_about_one_person_are_a_cluster(tmp_path: Path) -> None:
    files = {
        "corpus.txt": "Ann Lee. Born in Rome .\nBob Ray. Born in Oslo .\n",
        "facts.tsv": "Where was Eve Fox born?\tParis\n",
        "exam.tsv": "Where was Ann Lee born?\tRome\nWhere was Bob Ray born?\tOslo\nAnn Lee's birthplace?\tRome\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    corpus, facts, exam = (str(tmp_path / name) for name in files)
    plan = make_plan(["dot", "linear"], data=data(corpus, None, facts, exam))
    assert plan.clusters == (0, 1, 0)


def test_a_value_at_which_training_diverges_is_never_chosen(tuned: Compared) -> None:
    folder, _ = tuned
    plan = plan_of(folder)
    trying, names = plan.tuning_plan(), [trial.name for _, _, trial in plan.trials()]
    failed = {(names[2], trying.seeds[0]): "the loss is nan at step 7"}
    found = choose(plan, folder / "tuning", failed)
    assert found.chosen == {"dot": {"train.lr": 1e-5}, "linear": {"train.lr": 0.01}}
    assert found.trials[2] == Trial("dot", {"train.lr": 0.01}, None, (), "the loss is nan at step 7")
    with pytest.raises(AttnlabError, match=r"every trial of dot diverged \(no\): try lower values"):
        choose(plan, folder / "tuning", {(names[at], trying.seeds[0]): "no" for at in (0, 2)})


def test_a_best_value_at_the_edge_is_said() -> None:
    settings = (Tuned("train.lr", (0.1, 0.001, 0.01)),)
    found = Tuning(settings, "accuracy", 9, (1000,), (), {"dot": {"train.lr": 0.1}, "linear": {"train.lr": 0.01}})
    assert found.at_edge == {"dot": ["train.lr"]}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"tune": ["train.lr=0.1"]}, "needs at least two different values"),
        ({"tune": ["train.lr"]}, "--tune takes SETTING=VALUE,VALUE"),
        ({"tune": ["train.lr=1,2", "train.lr=3,4"]}, "names a setting twice"),
        ({"tune": ["tokenizer.kind=bpe,char"]}, "changes the data"),
        ({"tune": ["train.order_seed=1,2"]}, "changes the data"),
        ({"tune": ["model.mechanism=dot,linear"]}, "is what is compared"),
        ({"tune_on": "prose:dev"}, "--tune-on and --tune-seeds need --tune"),
        ({"tune": ["train.lr=1,2"], "tune_seeds": 0}, "--tune-seeds must be a number from 1"),
        ({"margin": 2.0}, "--margin is a share between 0 and 1"),
    ],
)
def test_mistakes_in_tuning(more: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        make_plan(["dot", "linear"], task="words", **more)


def test_other_data_to_choose_on_leaves_all_for_the_verdict() -> None:
    held = data("prose:100:train", "prose:300:dev")
    plan = make_plan(["dot", "linear"], task="words", data=held, tune=["train.lr=1,2"], tune_on="prose:100:test")
    assert (plan.part, plan.tuning_plan().dev, plan.tuning_plan().part) == ("all", "prose:100:test", "all")
    assert len(plan.sentences) == len(plan.data.corpus("prose:300:dev").lines)


def registration(folder: Path) -> dict[str, str]:
    """What the report says was fixed beforehand."""
    blocks = load(folder).read_document(folder).blocks()
    (facts,) = (block for block in blocks if isinstance(block, Facts) and block.title == "Registration")
    return dict(facts.pairs)


@pytest.mark.usefixtures("in_process")
def test_seeds_added_later_are_counted_as_a_look(compared: Compared, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(compared[0], folder)
    before = compared[1]
    facts = registration(folder)
    assert (facts["Seeds added later"], facts["Looks at the result"]) == ("none", "1")
    with pytest.raises(UserError, match="has seeds 0, 1: name more, such as --seeds 5"):
        add_seeds(folder, 2)
    add_seeds(folder, 3)
    resume(folder, Console(quiet=True))
    result: Any = load(folder).read_result(folder)
    facts = registration(folder)
    assert (facts["Seeds"], facts["Seeds added later"], facts["Looks at the result"]) == ("0, 1", "2", "2")
    assert result.command == f"{before.command}; attnlab resume FOLDER --seeds 0,1,2"
    (note,) = (one for one in result.verdict if one.startswith("Seeds 2 were added after a result was known"))
    assert "this is look 2. Every p is multiplied by the number of looks." in note
    assert "up to 7.5 %" in note
    for one in result.comparisons:
        if one.valid:
            assert one.adjusted == pytest.approx(min(1.0, 2 * one.effect.p))
            assert one.level == pytest.approx(0.975)
            assert "after correction for 2 looks" in one.words


def test_seeds_are_not_added_to_other_studies_of_several_models(compared: Compared, tmp_path: Path) -> None:
    folder = tmp_path / "why"
    shutil.copytree(compared[0], folder)
    stored = read_json(folder / "study.json")
    add_files(folder, {"study.json": to_json({**stored, "study": "recall", "plan": {}})})
    with pytest.raises(UserError, match="seeds can be added to comparisons only"):
        add_seeds(folder, 5)


def test_seeds_are_added_to_comparisons_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["resume", str(tmp_path), "--seeds", "5"])
    assert "seeds can be added to comparisons only" in capsys.readouterr().err


def test_the_verdict_is_not_taken_from_what_chose(tmp_path: Path) -> None:
    held = data("prose:100:train", "prose:300:dev")
    plan = make_plan(["dot", "linear"], task="words", data=held, tune=["train.lr=1,2"], tune_on="prose:300:dev")
    with pytest.raises(UserError, match="to choose on are those of the verdict: give other data to --tune-on"):
        plan.check()
    taken = make_plan(["dot", "linear"], task="words", data=held, tune=["train.lr=1,2"], seeds=[1000, 1001])
    assert taken.tuning_plan().seeds == (1002,)


def test_the_seed_of_the_order_reaches_every_stage() -> None:
    (one, *_) = make_plan(["dot", "linear"], task="spans").variants
    varied = one.with_settings("dot", {"seed": 3, "train.order_seed": 7, "train.lr": 0.5})
    for stage in ("pretrain", "finetune"):
        settings = varied.settings(0, stage)  # type: ignore[arg-type]
        assert (settings.seed, settings.train.order_seed) == (3, 7)
    assert varied.settings(0, "finetune").train.lr != 0.5
