"""Why reading helps: the grid, the tests of its questions, and one small study that is really trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attnlab import stats, studies
from attnlab.config import resolve
from attnlab.corpora import Question, load_corpus
from attnlab.corpora.library import Corpus
from attnlab.errors import AttnlabError, Interrupted, UserError
from attnlab.lm import stages, train
from attnlab.lm.model import load_model
from attnlab.store.runs import Run
from attnlab.studies.compare.runs import work
from attnlab.studies.study import load
from attnlab.studies.training import share_of
from attnlab.studies.why import (
    MARGIN,
    READ_LINES,
    Reading,
    Why,
    WhyResult,
    beginnings,
    by_heart,
    compare_cells,
)
from verbs import call

SMALL: dict[str, Any] = {
    "model": {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 96, "vocab_size": 300},
    "train": {"tokens_per_batch": 1024, "checkpoint_every": 2},
}
PLAN = Why(corpus="people:20", forms=(1, 2), exposures=(2,), seeds=(0,), given=SMALL)
QUIET = Console(quiet=True)


def test_the_grid_has_a_cell_for_every_way_of_reading() -> None:
    assert [reading.name for reading in replace(PLAN, forms=(4, 1), exposures=(16, 8)).grid] == [
        "nothing read",
        "1 form 8 times",
        "4 forms 8 times",
        "1 form in views 8 times",
        "1 form 16 times",
        "4 forms 16 times",
        "1 form in views 16 times",
    ]


def test_equal_exposures_are_equally_many_readings_of_a_person() -> None:
    plan = replace(PLAN, forms=(1, 2, 4), exposures=(8,)).completed()
    for variant in plan.variants[1:]:
        assert variant.corpus is not None
        assert len(load_corpus(variant.corpus).lines) * variant.settings(0).train.epochs / 20 == 8


def test_whole_lines_are_read_without_questions_and_views_as_the_preset_has_them() -> None:
    nothing, _, two, views = PLAN.completed().variants
    assert two.settings(0).task.options == {"views": 0, "lines": 1.0, "questions": 0.0}
    assert views.settings(0).task.options == {}
    assert nothing.steps == ("scratch",)
    assert two.steps == views.steps == ("pretrain", "finetune")
    assert two.settings(0, "finetune").train.threads == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"corpus": "wiki.txt"}, "built-in people"),
        ({"corpus": "people:300:x2"}, "built-in people"),
        ({"forms": (2, 4)}, "must hold 1"),
        ({"forms": (1, 1)}, "different numbers"),
        ({"forms": (1, 99)}, "1 to 15 forms"),
        ({"exposures": (0,)}, "at least 1"),
        ({"workers": "-1"}, "--workers"),
        ({"quick": True}, "--quick chooses its own"),
        ({"given": {"seed": 3}}, "sets seed itself"),
        ({"given": {"train": {"epochs": 3.0}}}, r"sets train\.epochs itself"),
        ({"given": {"task": {"name": "spans"}}}, r"sets task\.name itself"),
        ({"given": {"model": {"n_embd": 17}}}, "n_embd"),
        ({"given": {"model": {"block_size": 8}}}, "tokens"),
        ({"preset": "nothing-such"}, "unknown preset"),
    ],
)
def test_mistakes_are_found_before_a_folder_is_made(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(AttnlabError, match=message):
        replace(PLAN, **options).begin(tmp_path / "study", QUIET)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--forms", "1,two"), "1,2,4, not '1,two'"),
        (("--seeds", "0"), "--seeds"),
        (("--exam", "people:test"), "--exam"),
        (("--train.epochs", "3"), "sets train.epochs itself"),
    ],
)
def test_mistakes_on_the_command_line(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert call("run", "why", "--out", tmp_path / "study", *words) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "study").exists()


# Shares and tests


def test_a_share_has_an_interval_for_new_seeds_and_new_questions() -> None:
    right = share_of([True, False, True, True], [True, False, False, True])
    assert right.accuracy == 5 / 8
    assert right.each == [3 / 4, 1 / 2]
    assert 0 <= right.low < 5 / 8 < right.high <= 1  # type: ignore[operator]


def test_without_spread_the_interval_is_that_of_the_questions() -> None:
    alone, twice = share_of([True] * 20), share_of([True] * 20, [True] * 20)
    assert alone.low == twice.low == pytest.approx(0.8389, abs=1e-3)
    assert alone.high == twice.high == 1


def row(*runs: tuple[int, bool]) -> list[bool]:
    """So many answers that are right, then so many that are wrong, and so on."""
    return [value for number, value in runs for _ in range(number)]


GRID = replace(PLAN, forms=(1, 4), exposures=(8, 64)).grid
MOST, ONE, VIEWS = "4 forms 64 times", "1 form 64 times", "1 form in views 64 times"


def compared(usual: list[bool], hearts: list[bool] | None = None, **other: list[bool]) -> dict[str, stats.Contrast]:
    """The study with one seed, in which all cells answer as usual, except those named MOST, ONE or VIEWS."""
    right = {reading.name: [usual] for reading in GRID}
    right |= {{"most": MOST, "one": ONE, "views": VIEWS}[name]: [answers] for name, answers in other.items()}
    known = {name: [hearts] if hearts else answers for name, answers in right.items()}
    return compare_cells(GRID, right, known, range(len(usual)))


def test_a_paired_difference_is_shown_although_the_intervals_of_the_shares_overlap() -> None:
    less, more = row((27, True), (33, False)), row((40, True), (20, False))
    assert share_of(more).low < share_of(less).high  # type: ignore[operator]
    findings = compared(less, most=more)
    shown = [question for question, finding in findings.items() if finding.adjusted < 0.05]
    assert shown == [
        "Does reading help?",
        "Do several forms help?",
        "Does reading more often help?",
        "Do several forms help more than views?",
    ]
    words = findings["Do several forms help?"].words
    assert words.startswith("4 forms 64 times better by 21.7 points (")
    assert "after Holm over 7 comparisons" in words
    assert findings["Do views help?"].words.startswith("no difference shown: 45.0 vs 45.0 % of the same 60")
    assert compared(more, most=less)["Do several forms help?"].words.startswith("1 form 64 times better")


def test_a_difference_that_is_not_shown_after_correction_is_not_claimed() -> None:
    usual, views = row((2, True), (12, True), (26, False)), row((2, True), (12, False), (26, True))
    finding = compared(usual, views=views)["Do views help?"]
    assert finding.p is not None
    assert finding.p < 0.05 < finding.adjusted
    assert finding.words.startswith("no difference shown")


def test_intervals_are_adjusted_for_as_many_tests_as_p() -> None:
    usual, most = row((20, True), (30, False)), row((30, True), (20, False))
    finding = compared(usual, most=most)["Do several forms help?"]
    alone = stats.mcnemar(most, usual, alpha=0.05 / 7)
    assert (finding.low, finding.high) == (alone.low, alone.high)
    assert finding.adjusted == pytest.approx(7 * alone.p)


def test_several_seeds_are_tested_for_new_seeds_and_questions() -> None:
    right = {reading.name: [row((20, True), (30, False))] * 2 for reading in GRID}
    right[MOST] = [row((40, True), (10, False)), row((38, True), (12, False))]
    findings = compare_cells(GRID, right, right, range(50))
    assert "for new seeds and new questions" in findings["Does reading help?"].words


def test_with_one_form_and_one_number_of_exposures_no_question_is_asked_twice() -> None:
    grid = replace(PLAN, forms=(1,), exposures=(8,)).grid
    right = {reading.name: [row((9, True))] for reading in grid}
    questions = list(compare_cells(grid, right, right, range(9)))
    assert questions == [
        "Does reading help?",
        "Do views help?",
        "Can what “1 form 8 times” knows by heart be asked for?",
    ]


STORED = f"Can what “{ONE}” knows by heart be asked for?"


def test_more_is_stored_than_asked_for_if_the_people_show_it() -> None:
    every, half = row((60, True)), row((30, True), (30, False))
    assert compared(half, every)[STORED].words.startswith("by heart better by 50.0 points")
    assert compared(every, half)[STORED].words.startswith("asked better by 50.0 points")


def test_equal_shares_are_equivalent_only_among_many_people() -> None:
    few, many = row((16, True), (4, False)), row((320, True), (80, False))
    assert "Equivalence within 5.0 points is not shown" in compared(few, few)[STORED].words
    assert "Equivalent within 5.0 points" in compared(many, many)[STORED].words
    other = row((80, False), (320, True))  # as many, but other people
    assert "Equivalence within 5.0 points is not shown" in compared(many, other)[STORED].words


def test_a_true_difference_of_the_margin_seldom_passes_as_equivalent() -> None:
    """The exact chance that an exam of 75 people shows equivalence, by the number of those who differ."""
    from scipy.stats import binom

    def passes(differ: int) -> bool:
        asked = row((differ, False), (75 - differ, True))
        return "Equivalent within" in compared(asked, row((75, True)))[STORED].words

    shown = [differ for differ in range(10) if passes(differ)]
    assert sum(binom.pmf(differ, 75, MARGIN) for differ in shown) < 0.025


def test_beginnings_end_before_the_answer() -> None:
    lines = ("Ann Lee. Lee was born in York .", "Bob Roy. Roy never says where .")
    asked = (Question("Where was Bob Roy born?", "Bonn"), Question("Where was Ann Lee born?", "York"))
    assert beginnings(Corpus("here", lines), asked) == {1: ("Ann Lee. Lee was born in", "York")}


def test_by_heart_is_what_was_read_and_not_what_was_not(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("Ann Lee. Lee was born in York .\nBob Roy. Roy was born in Bonn .\n")
    given = {**SMALL, **READ_LINES, "train": {"epochs": 80.0}}
    run = stages.pretrain(resolve("reader", given=given), str(tmp_path / "lines.txt"), None, tmp_path / "run")
    begun = [("Ann Lee. Lee was born in", "York"), ("Bob Roy. Roy was born in", "Bonn"), ("Bob Roy. Roy was", "York")]
    assert by_heart(*load_model(run.model), begun) == [True, True, False]


# One small study, trained in this process


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, WhyResult]:
    """A study whose runs were stopped once and resumed, trained here and not in processes, which is faster."""
    folder = tmp_path_factory.mktemp("why") / "study"

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Why, "train", stop)
        with pytest.raises(Interrupted, match="attnlab resume"):
            PLAN.begin(folder, QUIET)
    (folder / "logs").mkdir()
    variants = load(folder).variants  # type: ignore[attr-defined]
    real, saved = train.Trainer.checkpoint, []

    def stop_once(trainer: train.Trainer) -> None:
        real(trainer)
        saved.append(trainer.run.path)
        if len(saved) == 1:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(train.Trainer, "checkpoint", stop_once)
        with pytest.raises(KeyboardInterrupt):
            for variant in variants:
                work(folder, variant.name, 0)
    assert not Run.open(saved[0]).complete
    for variant in variants:
        work(folder, variant.name, 0)
    return folder, studies.resume(folder, QUIET).result


def test_the_result_is_that_of_the_runs(trained: tuple[Path, WhyResult]) -> None:
    folder, result = trained
    assert load(folder).read_result(folder) == result
    rows = {row.name: row for row in result.rows}
    assert list(rows) == ["nothing read", "1 form 2 times", "2 forms 2 times", "1 form in views 2 times"]
    for variant in load(folder).variants:  # type: ignore[attr-defined]
        right = (folder / "measured" / variant.folder / "seed-0" / "right.csv").read_text().splitlines()[1:]
        assert rows[variant.name].accuracy == right.count("1") / len(right)
    tokens = {name: row.tokens for name, row in rows.items()}
    assert tokens["nothing read"] is None
    assert tokens["2 forms 2 times"] == pytest.approx(tokens["1 form 2 times"], rel=0.1)
    assert (tokens["1 form in views 2 times"] or 0) < (tokens["1 form 2 times"] or 0) / 2
    assert len(result.findings) == 6
    assert result.rows[1].reading == Reading("lines", 1, 2)


def test_reading_came_before_questions(trained: tuple[Path, WhyResult]) -> None:
    folder, _ = trained
    run = Run.open(folder / "2_forms_2_times" / "seed-0")
    assert run.record.stage == "finetune"
    base = Run.open(run.path / str(run.record.base))
    assert base.record.corpus is not None
    assert base.record.corpus.source == "people:20:x2"
    assert Run.open(folder / "nothing_read" / "seed-0").record.base is None


def test_the_page_shows_every_number(trained: tuple[Path, WhyResult]) -> None:
    folder, result = trained
    page, text = (folder / "report.html").read_text(), (folder / "report.md").read_text()
    assert page.count("<svg") == 2  # for wide screens and for narrow ones
    for line in result.rows:
        assert line.name in page
        assert f"{100 * (line.accuracy or 0):.1f} %" in text
    for sentence in result.verdict:
        assert sentence in text


def test_a_run_of_another_cell_is_refused(trained: tuple[Path, WhyResult]) -> None:
    plan = replace(PLAN, given={**SMALL, "train": {**SMALL["train"], "lr": 0.001}}).completed()
    with pytest.raises(UserError, match=r"not the run of 1 form 2 times with seed 0: it differs in train\.lr"):
        plan.judge(trained[0], QUIET)


def test_changed_data_are_refused(trained: tuple[Path, WhyResult], monkeypatch: pytest.MonkeyPatch) -> None:
    plan = load(trained[0])
    sums = plan.fingerprints()
    assert {"corpus", "facts", "exam", "people:20", "people:20:x2"} == sums.keys()
    monkeypatch.setattr(Why, "fingerprints", lambda _: {**sums, "people:20:x2": "other"})
    with pytest.raises(UserError, match="people:20:x2 changed"):
        plan.refuse_changes(trained[0])
