"""Why reading helps: the grid, what may be said of it, and one small study that is really trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from attnlab import stats, studies
from attnlab.config import resolve
from attnlab.corpora import Question, load_corpus
from attnlab.corpora.library import Corpus
from attnlab.errors import AttnlabError, Interrupted, UserError
from attnlab.lm import stages, train
from attnlab.lm.model import load_model
from attnlab.report import write_document
from attnlab.report.why import document
from attnlab.store.folders import read_json, to_json, write_folder
from attnlab.store.records import decode, encode, plain
from attnlab.store.runs import Run
from attnlab.studies import why
from attnlab.studies.compare.job import work
from attnlab.studies.compare.records import Record
from attnlab.studies.options import seed_numbers
from attnlab.studies.why import (
    MARGIN,
    PAIRS,
    READ_LINES,
    Cell,
    CellComparison,
    CellResult,
    Effect,
    Reading,
    Share,
    WorldSummary,
    beginnings,
    by_heart,
    cells_of,
    compare_all,
    compare_stored,
    explain,
    grid,
    judge,
    roles,
    share,
    verdict,
)
from verbs import call

SMALL: dict[str, Any] = {
    "model": {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 96, "vocab_size": 300},
    "train": {"tokens_per_batch": 1024, "checkpoint_every": 2},
}
ASKED: dict[str, Any] = {"world": "people:20", "forms": (1, 2), "exposures": (2,), "seeds": 1, "given": SMALL}


def quiet() -> Console:
    return Console(quiet=True)


def make_study(world: str | None = None, seeds: int | None = None, workers: int = 0, **asked: Any) -> why.Why:
    numbers = () if seeds is None else seed_numbers(seeds)
    return why.Why(corpus=world, seeds=numbers, workers=str(workers), **asked)


def make_plan(**asked: Any) -> why.Why:
    return make_study(**asked).completed()


def test_cells_have_names_that_say_what_they_are() -> None:
    cells = grid((1, 4), (8, 16))
    assert [one.name for one in cells] == [
        "nothing",
        "lines-x1-8",
        "lines-x4-8",
        "views-x1-8",
        "lines-x1-16",
        "lines-x4-16",
        "views-x1-16",
    ]
    assert tuple(Cell.named(one.name) for one in cells) == cells


def test_equal_exposures_are_equally_many_readings_of_a_person() -> None:
    plan = make_plan(**{**ASKED, "forms": (1, 2, 4), "exposures": (8,)})
    read = {}
    for cell, variant in zip(cells_of(plan), plan.variants, strict=True):
        if cell.way != "nothing":
            assert variant.corpus is not None
            lines = len(load_corpus(variant.corpus).lines)
            read[cell.name] = lines * variant.settings(0).train.epochs / 20
    assert read == {"lines-x1-8": 8, "lines-x2-8": 8, "lines-x4-8": 8, "views-x1-8": 8}


def test_whole_lines_are_read_without_questions_and_views_as_the_preset_has_them() -> None:
    plan = make_plan(**ASKED)
    options = {one.name: one.settings(0).task.options for one in plan.variants}
    assert options["lines-x2-2"] == {"views": 0, "lines": 1.0, "questions": 0.0}
    assert options["views-x1-2"] == {}
    assert {one.name: one.steps for one in plan.variants} == {
        "nothing": ("scratch",),
        "lines-x1-2": ("pretrain", "finetune"),
        "lines-x2-2": ("pretrain", "finetune"),
        "views-x1-2": ("pretrain", "finetune"),
    }
    assert {one.settings(0, "finetune").train.threads for one in plan.variants} == {1}


def test_a_plan_comes_back_from_its_folder() -> None:
    plan = make_plan(**ASKED)
    assert decode(why.Why, encode(plan), Path("study.json")) == plan


@pytest.mark.parametrize(
    ("asked", "mistake"),
    [
        ({"world": "wiki.txt"}, "built-in people"),
        ({"world": "people:300:x2"}, "built-in people"),
        ({"forms": (2, 4)}, "must hold 1"),
        ({"forms": (1, 1)}, "different numbers"),
        ({"forms": (1, 99)}, "1 to 15 forms"),
        ({"exposures": (0,)}, "at least 1"),
        ({"seeds": 0}, "--seeds"),
        ({"workers": -1}, "--workers"),
        ({"quick": True}, "--quick chooses its own"),
        ({"given": {"seed": 3}}, "--seeds 3"),
        ({"given": {"train": {"epochs": 3.0}}}, r"chooses train\.epochs itself"),
        ({"given": {"task": {"name": "spans"}}}, r"chooses task\.name itself"),
        ({"given": {"model": {"n_embd": 17}}}, "n_embd"),
        ({"given": {"model": {"block_size": 8}}}, "tokens"),
        ({"preset": "nothing-such"}, "unknown preset"),
    ],
)
def test_mistakes_are_found_before_a_folder_is_made(tmp_path: Path, asked: dict[str, Any], mistake: str) -> None:
    with pytest.raises(AttnlabError, match=mistake):
        make_study(**{**ASKED, **asked}).begin(tmp_path / "study", quiet())
    assert not (tmp_path / "study").exists()


# What may be said


def test_a_share_has_an_interval_for_new_seeds_and_new_questions() -> None:
    found = share([[True, False, True, True], [True, False, False, True]])
    assert found.accuracy == 5 / 8
    assert found.each == [3 / 4, 1 / 2]
    assert 0 <= found.low < 5 / 8 < found.high <= 1


def test_without_spread_the_interval_is_that_of_the_questions() -> None:
    alone, twice = share([[True] * 20]), share([[True] * 20] * 2)
    assert alone.low == twice.low == pytest.approx(0.8389, abs=1e-3)
    assert alone.high == twice.high == 1


def test_beginnings_end_before_the_answer() -> None:
    lines = ("Ann Lee. Lee was born in York .", "Bob Roy. Roy never says where .")
    asked = (Question("Where was Bob Roy born?", "Bonn"), Question("Where was Ann Lee born?", "York"))
    assert beginnings(Corpus("here", lines), asked) == {1: ("Ann Lee. Lee was born in", "York")}


@dataclass(frozen=True)
class Answered:
    """What the tests need of a run: its answers."""

    right: list[bool]

    def answers(self) -> list[bool]:
        return self.right


Table = list[list[bool]]
SEVEN = grid((1, 4), (8, 64))


def row(*runs: tuple[int, bool]) -> list[bool]:
    """So many answers that are right, then so many that are wrong, and so on."""
    return [value for number, value in runs for _ in range(number)]


def compared(usual: list[bool], **other: list[bool]) -> dict[str, CellComparison]:
    """The study with one seed, in which all cells answer as usual, except those with these roles."""
    names = roles(SEVEN)
    right = {one.name: usual for one in SEVEN} | {names[role]: answers for role, answers in other.items()}
    records = {name: [cast(Record, Answered(answers))] for name, answers in right.items()}
    return {one.asked: one for one in compare_all(SEVEN, records)}


def overlap(a: list[bool], b: list[bool]) -> bool:
    one, other = share([a]), share([b])
    return one.low <= other.high and other.low <= one.high


def test_a_paired_difference_is_shown_although_the_intervals_of_the_shares_overlap() -> None:
    less, more = row((27, True), (33, False)), row((37, True), (23, False))
    assert overlap(more, less)
    found = compared(less, most=more)
    assert {asked: one.effect.sign for asked, one in found.items()} == {
        "reading": 1,
        "forms": 1,
        "views": 0,
        "exposures": 1,
        "wordings": 1,
    }
    assert compared(more, most=less)["forms"].effect.sign == -1


def test_intervals_apart_are_not_a_difference_if_the_adjusted_test_shows_none() -> None:
    usual, views = row((2, True), (12, True), (26, False)), row((2, True), (12, False), (26, True))
    assert not overlap(usual, views)
    one = compared(usual, views=views)["views"].effect
    assert one.p is not None
    assert one.p < 0.05 < (one.adjusted or 0)
    assert not one.shown


def test_intervals_are_adjusted_for_as_many_tests_as_p() -> None:
    usual, most = row((20, True), (30, False)), row((30, True), (20, False))
    one = compared(usual, most=most)["forms"].effect
    alone = stats.mcnemar(most, usual, alpha=0.01)
    assert (one.tests, one.level) == (5, 0.99)
    assert (one.low, one.high) == (alone.low, alone.high)
    assert one.adjusted == pytest.approx(5 * alone.p)


def test_with_one_form_and_one_number_of_exposures_two_pairs_are_tested() -> None:
    cells = grid((1,), (8,))
    found = compare_all(cells, {one.name: [cast(Record, Answered(row((9, True))))] for one in cells})
    assert [(one.asked, one.effect.tests) for one in found] == [("reading", 2), ("views", 2)]


def said_of(hearts: Table, asked: Table) -> str:
    """The paragraph on what one cell has stored."""
    made = Cell("lines", 1, 64)
    result = CellResult(made.name, made, share(asked), reading=Reading(1000, 1.0, share(hearts)))
    stored = compare_stored({made.name: (hearts, asked)})
    effect = Effect(0.0, -0.1, 0.1, 1.0, "")
    pairs = [CellComparison("views", made.name, made.name, effect)]
    return explain({made.name: result}, pairs, stored, WORLD)[0]


WORLD = WorldSummary(100, 60, "people:100:test", 25)
SAME = "What is stored can be asked for"
MORE = "So it has stored more than a question reaches"
NEITHER = "Neither a difference nor equivalence within 5 points is shown"


def test_equal_shares_of_few_people_do_not_show_that_what_is_stored_can_be_asked_for() -> None:
    few, many = row((16, True), (4, False)), row((320, True), (80, False))
    assert f"{NEITHER}: the difference is 0.0 points (95 % interval −" in said_of([few], [few])
    words = said_of([many], [many])
    assert f"{SAME}: the two shares differ by less than 5.0 points (two one-sided tests: 90 % interval −" in words
    assert words.endswith("These tests hold for this one model.")
    assert "this one model" not in said_of([many, many, many], [many, many, many])


def test_a_few_points_among_many_people_are_more_and_less_than_the_margin() -> None:
    hearts, asked = row((1800, True), (200, False)), row((1760, True), (240, False))
    words = said_of([hearts], [asked])
    assert f"{MORE}: the difference is +2.0 points (95 % interval +" in words
    assert "But the two shares differ by less than 5.0 points" in words


def test_more_is_stored_than_asked_for_if_the_people_show_it() -> None:
    every, half = row((60, True)), row((30, True), (30, False))
    assert f"{MORE}: the difference is +50.0 points" in said_of([every] * 3, [half] * 3)
    # Two seeds that disagree show nothing about a third.
    assert NEITHER in said_of([every] * 2, [every, half])
    assert "Asked, it knows more than by heart: the difference is −50.0 points" in said_of([half], [every])


def test_nothing_stored_and_nothing_answered_is_not_something_that_can_be_asked_for() -> None:
    none = row((400, False))
    words = said_of([none], [none])
    assert SAME not in words
    assert "The two shares differ by less than 5.0 points" in words


def test_people_are_compared_and_not_shares() -> None:
    """Equal shares of other people leave a wider interval than those of the same people."""
    first, last = row((50, True), (50, False)), row((50, False), (50, True))
    same, other = (compare_stored({"one": ([first], [asked])})[0].equivalence for asked in (first, last))
    assert same is not None
    assert other is not None
    assert same.shown
    assert not other.shown


def test_a_true_difference_of_the_margin_seldom_passes_as_equivalent() -> None:
    """The exact chance that an exam of 75 people shows equivalence, by the number of those who differ."""
    from scipy.stats import binom

    def passes(differ: int) -> bool:
        tables = [row((75, True))], [row((differ, False), (75 - differ, True))]
        same = compare_stored({"one": tables, "most": tables})[0].equivalence
        return same is not None and same.shown

    assert 0 < sum(binom.pmf(differ, 75, MARGIN) for differ in range(76) if passes(differ)) < 0.025


def test_what_is_stored_is_tested_at_a_level_for_all_cells_together() -> None:
    hearts, asked = row((40, True)), row((34, True), (6, False))
    alone, both = (compare_stored(dict.fromkeys(names, ([hearts], [asked]))) for names in (("one",), ("one", "most")))
    assert [one.effect.level for one in both] == [0.975, 0.975]
    assert both[0].effect.adjusted == pytest.approx(2 * (alone[0].effect.adjusted or 0))
    assert (both[0].effect.low or 0) < (alone[0].effect.low or 0)


def cell(way: Any, forms: int, exposures: int, right: float, heart: float | None = None) -> CellResult:
    def scored(value: float) -> Share:
        return Share(value, max(0.0, value - 0.05), min(1.0, value + 0.05), [value])

    made = Cell(way, forms, exposures)
    reading = Reading(1000 if way == "lines" else 250, 1.0, scored(heart) if heart else None)
    return CellResult(made.name, made, scored(right), reading=None if way == "nothing" else reading)


def effect(difference: float, p: float, wide: float = 0.05) -> Effect:
    return Effect(difference, difference - wide, difference + wide, p / 5, "", 5, 0.99, p, p < 0.05)


Said = tuple[dict[str, CellResult], list[CellComparison]]


def made_up(one: float, many: float, views: float, not_shown: Sequence[str] = ()) -> Said:
    """Cells with these shares, and pairs whose differences are shown, except the ones named."""
    every = [
        cell("nothing", 1, 0, 0.05),
        cell("lines", 1, 8, 0.05, 0.5),
        cell("lines", 4, 8, 0.1, 0.5),
        cell("views", 1, 8, 0.2, 0.5),
        cell("lines", 1, 64, one, 0.9),
        cell("lines", 4, 64, many, 0.9),
        cell("views", 1, 64, views, 0.5),
    ]
    cells, names = {each.name: each for each in every}, roles([each.cell for each in every])
    pairs = []
    for asked, (a, b) in PAIRS.items():
        left, right = cells[names[a]], cells[names[b]]
        difference = left.right.accuracy - right.right.accuracy
        pairs.append(
            CellComparison(asked, left.name, right.name, effect(difference, 0.06 if asked in not_shown else 0.01))
        )
    return cells, pairs


def test_what_is_shown_is_claimed() -> None:
    said = verdict(*made_up(one=0.2, many=0.8, views=0.7), WORLD, 2)
    assert said[0] == (
        "Reading helps: a model that met everybody 64 times in 4 forms answers 80.0 % (75.0 to 85.0 %) of the questions"
        " correctly, one that read nothing 5.0 % (0.0 to 10.0 %); the difference is +75.0 points (99 % interval +70.0 to"
        " +80.0 points; p = 0.01 after Holm over 5 tests)."
    )
    assert said[1].startswith("Several forms help: ")
    assert said[2].startswith(
        "Views help: a model that met everybody 64 times in short views of one form answers 70.0 %"
    )
    assert said[3].startswith("Reading more often helps: ")
    assert said[4].startswith(
        "25 questions about people that the model had read about but was never asked about; 2 models"
    )


def test_what_is_not_shown_is_not_claimed_and_what_hurts_is_said() -> None:
    said = verdict(*made_up(one=0.5, many=0.9, views=0.3, not_shown=["forms"]), WORLD, 2)
    assert said[1].startswith("Whether several forms help is not shown: ")
    assert said[1].endswith("+40.0 points (99 % interval +35.0 to +45.0 points; p = 0.06 after Holm over 5 tests).")
    assert said[2].startswith("Views hurt here: ")


def test_a_claim_whose_interval_touches_zero_says_so() -> None:
    assert "−1.0 to +9.0 points, which touches zero; p = 0.04" in str(effect(0.04, 0.04))
    assert "touches" not in str(effect(0.04, 0.06))


def test_explanations_follow_from_the_tests() -> None:
    shown = explain(*made_up(one=0.2, many=0.88, views=0.7), [], WORLD)
    assert shown[0].endswith("; the direction is the same here.")
    assert "25.0 % of the tokens" in shown[1]
    assert "Other wordings help still more, if you have them: the difference is +18.0 points" in shown[1]
    unsure = explain(*made_up(one=0.2, many=0.88, views=0.7, not_shown=["forms", "wordings"]), [], WORLD)
    assert "; here no difference is shown: the difference is +68.0 points" in unsure[0]
    assert "Whether other wordings help still more is not shown: the difference is +18.0 points" in unsure[1]
    assert len(explain(*made_up(one=0.2, many=0.88, views=0.7, not_shown=["views"]), [], WORLD)) == len(shown) - 1


# One small study, trained in this process


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A study whose runs were stopped once and gone on with, trained here and not in processes, which is faster."""
    folder = tmp_path_factory.mktemp("why") / "study"
    plan = make_plan(**ASKED)

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Interrupted, match="attnlab resume"):
        patched.setattr(why.Why, "train", stopped)
        plan.begin(folder, quiet())
    (folder / "logs").mkdir()
    real, saved = train.Trainer.checkpoint, []

    def stop_once(trainer: train.Trainer) -> None:
        real(trainer)
        saved.append(trainer.run.path)
        if len(saved) == 1:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(train.Trainer, "checkpoint", stop_once)
        with pytest.raises(KeyboardInterrupt):
            for variant in plan.variants:
                work(folder, variant.name, 0)
    assert not Run.open(saved[0]).complete
    for variant in plan.variants:
        work(folder, variant.name, 0)
    return folder, plain(studies.resume(folder, quiet()).result)


def test_the_result_is_that_of_the_runs(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, result = trained
    assert [one["name"] for one in result["cells"]] == ["nothing", "lines-x1-2", "lines-x2-2", "views-x1-2"]
    for one in result["cells"]:
        right = (folder / "measured" / one["name"] / "seed-0" / "right.csv").read_text().splitlines()[1:]
        assert one["accuracy"] == right.count("1") / len(right)
        assert 0 <= one["low"] <= one["accuracy"] <= one["high"] <= 1
    tokens = {one["name"]: one["tokens"] for one in result["cells"] if one["way"] != "nothing"}
    assert tokens["lines-x2-2"] == pytest.approx(tokens["lines-x1-2"], rel=0.1)
    assert tokens["views-x1-2"] < tokens["lines-x1-2"] / 2
    assert [one["asked"] for one in result["comparisons"]] == ["reading", "forms", "views", "wordings"]
    assert [(one["name"], one["people"]) for one in result["stored"]] == [("lines-x1-2", 5), ("lines-x2-2", 5)]


def test_reading_came_before_questions(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = trained
    run = Run.open(folder / "lines-x2-2" / "seed-0")
    assert run.record.stage == "finetune"
    assert Run.open(run.path / run.record.base).record.corpus.source == "people:20:x2"
    assert Run.open(folder / "nothing" / "seed-0").record.base is None


def test_by_heart_is_what_was_read_and_not_what_was_not(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("Ann Lee. Lee was born in York .\nBob Roy. Roy was born in Bonn .\n")
    given = {**SMALL, **READ_LINES, "train": {"epochs": 80.0}}
    run = stages.pretrain(resolve("reader", given=given), str(tmp_path / "lines.txt"), None, tmp_path / "run")
    begun = [("Ann Lee. Lee was born in", "York"), ("Bob Roy. Roy was born in", "Bonn"), ("Bob Roy. Roy was", "York")]
    assert by_heart(*load_model(run.model), begun) == [True, True, False]


def test_the_page_shows_every_number(trained: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, result = trained
    page, text = (folder / "report.html").read_text(), (folder / "report.md").read_text()
    for name in ("1 form", "2 forms", "1 form, in views", "nothing read"):
        assert name in page
    assert page.count("<svg") == 2
    for one in result["cells"]:
        assert f"{100 * one['accuracy']:.1f} %" in text
    for sentence in result["verdict"]:
        assert sentence in text
    write_document(document(result), tmp_path, ("md", "json", "html"))
    assert (tmp_path / "report.html").read_text() == page


def test_the_page_shows_the_tests(trained: tuple[Path, dict[str, Any]]) -> None:
    text = (trained[0] / "report.md").read_text()
    for words in ("lines-x2-2 minus nothing", "lines-x1-2: by heart minus asked", "p after Holm", "98.8 %: "):
        assert words in text


def test_a_run_of_another_cell_is_refused(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = trained
    plan = make_plan(**{**ASKED, "given": {**SMALL, "train": {**SMALL["train"], "lr": 0.001}}})
    with pytest.raises(UserError, match=r"not the run of lines-x1-2 with seed 0: it differs in train\.lr"):
        judge(plan, folder)


def test_changed_data_are_refused(trained: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    stored = read_json(trained[0] / "study.json")
    assert {"corpus", "facts", "exam", "people:20", "people:20:x2"} == stored["fingerprints"].keys()
    stored["fingerprints"]["people:20:x2"] = "other"
    write_folder(tmp_path / "changed", "study", {"study.json": to_json(stored)})
    with pytest.raises(UserError, match="people:20:x2 changed"):
        make_plan(**ASKED).refuse_changes(tmp_path / "changed")


@pytest.mark.parametrize(
    ("words", "mistake"),
    [
        (("--forms", "1,two"), "--forms: it takes numbers such as 1,2,4, not '1,two'"),
        (("--exposures", "0"), "--exposures takes different numbers of at least 1"),
        (("--forms", "2"), "--forms must hold 1"),
        (("--seed", "3"), "--seed is for recall, reports, trust, not for why"),
        (("--exam", "people:test"), "--exam is for efficient, recall, reports, trust, not for why"),
        (("--corpus", "wiki.txt"), "built-in people"),
        (("--train.epochs", "3"), "chooses train.epochs itself"),
    ],
)
def test_mistakes_on_the_command_line(
    words: tuple[str, ...], mistake: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert call("run", "why", "--out", tmp_path / "study", *words) == 2
    assert mistake in capsys.readouterr().err
    assert not (tmp_path / "study").exists()


def test_forms_are_for_this_study_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert call("run", "recall", "--forms", "1,2", "--out", tmp_path / "study") == 2
    assert "--forms is for why, not for recall" in capsys.readouterr().err
