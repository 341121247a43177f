"""What is compared: named well, different in one thing, in a fair order; everything else is refused in a line."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plans import data, make_plan

from attnlab.errors import ConfigError, UserError
from attnlab.store.folders import write_folder
from attnlab.store.records import decode, encode
from attnlab.studies.compare import Compare
from attnlab.studies.workers import read_workers


def test_mechanisms_differ_in_the_mechanism_only() -> None:
    plan = make_plan(["dot", "additive"], task="words")
    assert plan.varied == "model.mechanism"
    one, other = (variant.settings(5) for variant in plan.variants)
    assert (one.model.mechanism, other.model.mechanism) == ("dot", "additive")
    assert one.preset == other.preset == "nano-words"
    assert one.seed == 5
    assert one.train.threads == 1


def test_layers_of_several_mechanisms_and_classes_in_files_are_variants(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from attnlab.mechanisms.dot import Dot as Dot\nclass Mine(Dot):\n    '''Mine.'''\n",
        encoding="utf-8",
    )
    plan = make_plan(["dot", "dot,sliding", f"{file}:Mine"], task="words")
    assert [one.name for one in plan.variants] == ["dot", "dot,sliding", "Mine"]
    assert plan.find("Mine").settings(0).model.mechanism.startswith("mine.py@")  # with digits of its sha256


def test_running_text_is_not_compared_with_sentences() -> None:
    with pytest.raises(
        UserError, match="each must be a document: set --task.options.documents lines, or use --task words"
    ):
        make_plan([], vary="task.name=words,text", task="words")


@pytest.mark.parametrize(
    ("task", "more", "says"),
    [
        ("text", {"lengths": (0,)}, "--lengths takes different numbers of at least 1"),
        ("text", {"lengths": (2, 2)}, "--lengths takes different numbers of at least 1"),
        ("text", {"lengths": (1,)}, "give one above 1"),
        ("words", {"lengths": (2,)}, "--lengths is for running text, not for task words: use --task text"),
        ("recall", {"lengths": (2,)}, "--lengths is for running text, not for task recall"),
        ("text", {"lengths": (2,), "vary": "model.block_size=32,64"}, "model.block_size must be the same"),
        ("text", {"lengths": (2,), "tune": ("model.block_size=32,64",)}, "model.block_size must be the same"),
    ],
)
def test_lengths_are_multiples_of_one_block_of_running_text(task: str, more: dict[str, Any], says: str) -> None:
    names = [] if "vary" in more else ["dot", "alibi"]
    with pytest.raises(UserError, match=says):
        make_plan(names, task=task, quick=True, **more).check()


def test_lengths_that_no_document_has_are_found_before_training() -> None:
    given = {"model": {"block_size": 64}, "tokenizer": {"kind": "char"}}
    plan = make_plan(
        ["dot", "alibi"], task="text", given=given, lengths=(2, 8), data=data("stories:60:train", "stories:60:dev")
    )
    plan.check()
    assert plan.tuning_plan().lengths == ()  # trials are chosen on the tested figure
    with pytest.raises(UserError, match="has 705 tokens, and 16 blocks are 1,024: give smaller lengths or longer"):
        replace(plan, lengths=(2, 16)).check()


def test_values_of_one_setting() -> None:
    plan = make_plan([], vary="train.lr=0.001,0.002", task="words")
    assert plan.varied == "train.lr"
    assert [one.settings(0).train.lr for one in plan.variants] == [0.001, 0.002]
    assert [one.folder for one in plan.variants] == ["train.lr=0.001", "train.lr=0.002"]


def test_options_of_a_mechanism_can_be_varied() -> None:
    plan = make_plan(
        [], vary="model.options.performer.features=16,32", given={"model": {"mechanism": "performer"}}, task="words"
    )
    assert plan.varied == "model.options.performer.features"


def test_options_go_to_the_mechanism_that_has_them() -> None:
    given = {"model": {"options": {"performer": {"features": 16}}}}
    plan = make_plan(["dot", "performer"], given=given, task="words")
    assert plan.varied == "model.mechanism"
    assert [one.settings(0).model.options for one in plan.variants] == [{}, {"performer": {"features": 16}}]
    plan.check()
    with pytest.raises(ConfigError, match="not compared, 'performer'"):
        make_plan(["dot", "additive"], given=given, task="words")


def test_settings_files_that_differ_in_one_setting(tmp_path: Path) -> None:
    for name, rate in (("slow", 0.1), ("fast", 0.2)):
        (tmp_path / f"{name}.toml").write_text(f"[model]\ndropout = {rate}\n", encoding="utf-8")
    plan = make_plan([str(tmp_path / "slow.toml"), str(tmp_path / "fast.toml")], task="words")
    assert [one.name for one in plan.variants] == ["slow", "fast"]
    assert plan.varied == "model.dropout"


@pytest.mark.parametrize(
    ("names", "more", "says"),
    [
        (["small", "mingpt"], {}, "differ in .* settings"),
        (["dot"], {}, "at least two"),
        (["dot", "dot"], {}, "the same twice"),
        (["dot", "nano-words"], {}, "all of one kind"),
        (["dot", "nothing_such"], {}, "unknown mechanism, preset .* 'nothing_such'"),
        (["dot"], {"vary": "train.lr=1,2"}, "--mechanism"),
        ([], {"vary": "train.lr"}, "SETTING=VALUE"),
        ([], {"vary": "train.nothing=1,2"}, "unknown setting"),
        ([], {"vary": "train.lr=0.1,0.1"}, "the same twice"),
        ([], {"vary": "train.lr=0.1,0.10"}, "nothing to compare"),
        ([], {"vary": "train.lr=0.001,1e-3,0.002"}, "the same twice"),
        ([], {"vary": "model.vocab_size=60,2000", "task": "words"}, "changes what is predicted"),
        ([], {"vary": "tokenizer.min_count=1,3", "task": "words"}, "changes what is predicted"),
        ([], {"vary": "task.options.longest=20,100", "task": "words"}, "changes what is predicted"),
        (["dot", "additive"], {"workers": -1}, "--workers"),
        (["dot", "additive"], {"probe": ("One .",)}, "--probe is for tasks words and text"),
        (["dot", "additive"], {"task": "words", "quick": True, "data": data("a", "b")}, "--quick is for built-in"),
        (["dot", "additive"], {"seeds": 0}, "--seeds"),
        (["dot", "additive"], {"seeds": [1, 1]}, "--seeds"),
        (["dot", "additive"], {"task": "words", "data": data(corpus="a.txt")}, "go together"),
        (["dot", "additive"], {"task": "words", "data": data(exam="a.txt")}, "measures text"),
        (["dot", "additive"], {"task": "recall", "data": data(dev="a.txt")}, "--exam instead"),
        (["dot", "additive"], {"task": "recall", "data": data(corpus="a.txt")}, "all three"),
    ],
)
def test_what_cannot_be_compared_is_refused(names: list[str], more: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        make_plan(names, **more)  # type: ignore[arg-type]


def test_every_seed_begins_with_another_variant() -> None:
    plan = make_plan(["dot", "additive", "linear"], task="words", seeds=3)
    order = plan.order()
    assert sorted(order) == sorted((one.name, seed) for one in plan.variants for seed in range(3))
    assert [seed for _, seed in order] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert [order[at][0] for at in (0, 3, 6)] == ["dot", "additive", "linear"]


def test_what_files_say_is_not_overridden(tmp_path: Path) -> None:
    for name, rate in (("slow", 0.1), ("fast", 0.2)):
        text = f"[model]\ndropout = {rate}\n[train]\nepochs = 3\nthreads = 2\n"
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
    plan = make_plan([str(tmp_path / "slow.toml"), str(tmp_path / "fast.toml")], task="words")
    assert [one.settings(0).train.epochs for one in plan.variants] == [3, 3]
    assert plan.variants[0].settings(0).train.threads == 2
    words = tmp_path / "words.toml"
    words.write_text('[task]\nname = "words"\n[tokenizer]\nkind = "word"\n', encoding="utf-8")
    assert make_plan(["dot", "additive"], config=words).dev == "prose:dev"


def test_presets_bring_their_task() -> None:
    plan = make_plan(["mingpt", "mingpt-perceiver"])
    assert plan.varied == "model.bottleneck"
    assert "better at spans" in plan.title


def test_yes_and_no_can_be_varied() -> None:
    plan = make_plan([], vary="model.qk_norm=true,false", quick=True)
    assert [one.settings(0).model.qk_norm for one in plan.variants] == [True, False]


def test_classes_of_one_name_in_two_files_are_told_apart(tmp_path: Path) -> None:
    for number in (1, 2):
        text = 'from attnlab.mechanisms.dot import Dot\nclass Mine(Dot):\n    """Mine."""\n'
        (tmp_path / f"v{number}.py").write_text(text, encoding="utf-8")
    plan = make_plan([f"{tmp_path}/v1.py:Mine", f"{tmp_path}/v2.py:Mine"], task="words")
    assert [one.name.endswith(f"v{number}.Mine") for number, one in enumerate(plan.variants, start=1)] == [True, True]
    before = plan.fingerprints()
    assert len(before) == 4  # two texts, two files
    write_folder(tmp_path / "study", "study", {"study.json": plan.study_json()})
    (tmp_path / "v1.py").write_text("changed = True\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"v1\.py changed since"):
        plan.refuse_changes(tmp_path / "study")


def test_what_is_learned_is_not_measured(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("One sentence .\nTwo sentences .\n", encoding="utf-8")
    with pytest.raises(UserError, match="in the training data"):
        make_plan(["dot", "additive"], task="words", data=data(str(text), str(text))).check()
    other = tmp_path / "other.txt"
    other.write_text("One sentence .\nThree sentences .\n", encoding="utf-8")
    plan = make_plan(["dot", "additive"], task="words", data=data(str(text), str(other)))
    assert (plan.seen_before, len(plan.items)) == (1, 2)


def test_a_plan_survives_being_stored() -> None:
    plan = make_plan(["dot", "additive"], task="words", seeds=[4, 7])
    assert decode(Compare, encode(plan), Path("study.json")) == plan


def test_pairs_with_the_first_or_with_all() -> None:
    names = ["dot", "additive", "linear"]
    assert make_plan(names, task="words").compared() == [("additive", "dot"), ("linear", "dot")]
    assert make_plan(names, task="words", all_pairs=True).compared() == [
        ("additive", "dot"),
        ("linear", "dot"),
        ("linear", "additive"),
    ]


def test_data_of_a_task() -> None:
    words, recall = make_plan(["dot", "additive"], task="words"), make_plan(["dot", "additive"], quick=True)
    assert (words.corpus, words.dev, words.exam) == ("prose:train", "prose:dev", None)
    assert (recall.corpus, recall.facts, recall.exam) == ("people:300", "people:300:train", "people:300:dev")
    assert recall.variants[0].preset == "quick"


def test_mistakes_are_found_before_training(tmp_path: Path) -> None:
    exam = tmp_path / "exam.tsv"
    exam.write_text("Where was A born?\n", encoding="utf-8")
    plan = make_plan(["dot", "additive"], data=data("people:300", None, "people:300:train", str(exam)), preset="quick")
    with pytest.raises(UserError, match="without answers"):
        plan.check()
    with pytest.raises(ConfigError, match="task words: longest"):
        make_plan(["dot", "additive"], given={"task": {"options": {"longest": 1}}}, task="words").check()


def test_workers_are_a_number_or_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (read_workers("3"), read_workers(2), read_workers("ray://host:10001")) == (3, 2, "ray://host:10001")
    for wrong in ("-1", "rays", "ray://", "3.5", "slurm://host"):
        with pytest.raises(UserError, match="--workers must be a number .*, ray"):
            read_workers(wrong)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"--workers ray needs ray: pip install 'attnlab\[ray\]'"):
        read_workers("ray")
