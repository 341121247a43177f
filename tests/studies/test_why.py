"""Why reading helps: the grid, what may be said of it, and one small study that is really trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attnlab import stages, studies, train
from attnlab.config import resolve
from attnlab.corpora import Question, load_corpus
from attnlab.corpora.library import Corpus
from attnlab.errors import AttnlabError, Interrupted, UserError
from attnlab.folders import read_json
from attnlab.model import load_model
from attnlab.records import plain, restored
from attnlab.report import write_report
from attnlab.runs import Run
from attnlab.studies import why
from attnlab.studies.compare import Plan
from attnlab.studies.compare.job import work
from attnlab.studies.study import refuse_changes
from attnlab.studies.why import (
    PAIRS,
    READ_LINES,
    Cell,
    CellComparison,
    CellResult,
    Reading,
    Share,
    WorldSummary,
    beginnings,
    by_heart,
    cells_of,
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
    plan = why.make_plan(**{**ASKED, "forms": (1, 2, 4), "exposures": (8,)})
    read = {}
    for cell, specimen in zip(cells_of(plan), plan.specimens, strict=True):
        if cell.way != "nothing":
            assert specimen.corpus is not None
            lines = len(load_corpus(specimen.corpus).lines)
            read[cell.name] = lines * specimen.settings(0).train.epochs / 20
    assert read == {"lines-x1-8": 8, "lines-x2-8": 8, "lines-x4-8": 8, "views-x1-8": 8}


def test_whole_lines_are_read_without_questions_and_views_as_the_preset_has_them() -> None:
    plan = why.make_plan(**ASKED)
    options = {one.name: one.settings(0).task.options for one in plan.specimens}
    assert options["lines-x2-2"] == {"views": 0, "lines": 1.0, "questions": 0.0}
    assert options["views-x1-2"] == {}
    assert {one.name: one.steps for one in plan.specimens} == {
        "nothing": ("scratch",),
        "lines-x1-2": ("pretrain", "finetune"),
        "lines-x2-2": ("pretrain", "finetune"),
        "views-x1-2": ("pretrain", "finetune"),
    }
    assert {one.settings(0, "finetune").train.threads for one in plan.specimens} == {1}


def test_a_plan_comes_back_from_its_folder() -> None:
    plan = why.make_plan(**ASKED)
    assert restored(Plan, plain(plan)) == plan


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
        ({"jobs": -1}, "--jobs"),
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
        why.measure(out=tmp_path / "study", **{**ASKED, **asked})
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
    asked = (Question("Where was Ann Lee born?", "York"), Question("Where was Bob Roy born?", "Bonn"))
    assert beginnings(Corpus("here", lines), asked) == [("Ann Lee. Lee was born in", "York")]


def cell(way: Any, forms: int, exposures: int, right: float, heart: float | None = None) -> CellResult:
    def scored(value: float) -> Share:
        return Share(value, max(0.0, value - 0.05), min(1.0, value + 0.05), [value])

    made = Cell(way, forms, exposures)
    reading = Reading(1000 if way == "lines" else 250, 1.0, scored(heart) if heart else None)
    return CellResult(made.name, made, scored(right), reading=None if way == "nothing" else reading)


Said = tuple[dict[str, CellResult], list[CellComparison], WorldSummary]


def made_up(one: float, many: float, views: float, heart: float = 0.9) -> Said:
    every = [
        cell("nothing", 1, 0, 0.05),
        cell("lines", 1, 8, 0.05, 0.5),
        cell("lines", 4, 8, 0.1, 0.5),
        cell("views", 1, 8, 0.2, 0.5),
        cell("lines", 1, 64, one, heart),
        cell("lines", 4, 64, many, heart),
        cell("views", 1, 64, views, 0.5),
    ]
    cells, names = {each.name: each for each in every}, roles([each.cell for each in every])
    pairs = []
    for asked, (a, b) in PAIRS.items():
        left, right = cells[names[a]], cells[names[b]]
        apart = left.right.compared(right.right)
        pairs.append(CellComparison(asked, left.name, right.name, apart, 0.0, None, None, None, ""))
    return cells, pairs, WorldSummary(100, 60, "people:100:test", 25)


def test_what_lies_apart_is_claimed() -> None:
    said = verdict(*made_up(one=0.2, many=0.8, views=0.7), 2)
    assert said[0] == (
        "Reading helps: a model that met everybody 64 times in 4 forms answers 80.0 % (75.0 to 85.0 %) of the questions"
        " correctly, one that read nothing 5.0 % (0.0 to 10.0 %)."
    )
    assert said[1].startswith("Several forms help: ")
    assert said[2].startswith(
        "Views help: a model that met everybody 64 times in short views of one form answers 70.0 %"
    )
    assert said[3].startswith("Reading more often helps: ")
    assert said[4].startswith(
        "25 questions about people that the model had read about but was never asked about; 2 models"
    )


def test_what_overlaps_is_not_claimed_and_what_hurts_is_said() -> None:
    said = verdict(*made_up(one=0.5, many=0.55, views=0.3), 2)
    assert said[1].startswith("Whether several forms help cannot be told here: ")
    assert said[1].endswith("; the intervals overlap.")
    assert said[2].startswith("Views hurt here: ")


def test_stored_and_asked_for_are_told_apart() -> None:
    words = explain(*made_up(one=0.2, many=0.88, views=0.7))
    assert words[0].startswith(
        "A model that met everybody 64 times in one form knows 90.0 % (85.0 to 95.0 %) of the places"
    )
    assert words[0].endswith("So it has stored more than a question reaches.")
    assert words[1].endswith("What is stored can be asked for, as far as these intervals tell.")
    assert "the direction is the same here" in words[2]
    assert "25.0 % of the tokens" in words[3]
    assert "Other wordings help still more" in words[3]
    unsure = explain(*made_up(one=0.5, many=0.5, views=0.5))
    assert "too small to see it" in unsure[2]
    assert not any("Views get round that" in one for one in unsure)


# One small study, trained in this process


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A study whose runs were stopped once and gone on with, trained here and not in processes, which is faster."""
    folder = tmp_path_factory.mktemp("why") / "study"
    plan = why.make_plan(**ASKED)

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="attnlab resume"):
        replace(why.STUDY, train=stopped).begin(plan, folder, quiet())
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
            for specimen in plan.specimens:
                work(folder, specimen.name, 0)
    assert not Run.open(saved[0]).complete
    for specimen in plan.specimens:
        work(folder, specimen.name, 0)
    return folder, studies.resume(folder, quiet())


def test_the_result_is_that_of_the_runs(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, result = trained
    assert read_json(folder / "result.json") == result
    assert [one["name"] for one in result["cells"]] == ["nothing", "lines-x1-2", "lines-x2-2", "views-x1-2"]
    for one in result["cells"]:
        right = (folder / "measured" / one["name"] / "seed-0" / "right.csv").read_text().splitlines()[1:]
        assert one["accuracy"] == right.count("1") / len(right)
        assert 0 <= one["low"] <= one["accuracy"] <= one["high"] <= 1
    tokens = {one["name"]: one["tokens"] for one in result["cells"] if one["way"] != "nothing"}
    assert tokens["lines-x2-2"] == pytest.approx(tokens["lines-x1-2"], rel=0.1)
    assert tokens["views-x1-2"] < tokens["lines-x1-2"] / 2
    assert [one["asked"] for one in result["comparisons"]] == ["reading", "forms", "views"]


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
    write_report(result, tmp_path, ("md", "json", "html"))
    assert (tmp_path / "report.html").read_text() == page


def test_a_run_of_another_cell_is_refused(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = trained
    plan = why.make_plan(**{**ASKED, "given": {**SMALL, "train": {**SMALL["train"], "lr": 0.001}}})
    with pytest.raises(UserError, match=r"not the run of lines-x1-2 with seed 0: it differs in train\.lr"):
        judge(plan, folder)


def test_changed_data_are_refused(trained: tuple[Path, dict[str, Any]]) -> None:
    stored = read_json(trained[0] / "study.json")["fingerprints"]
    assert {"corpus", "facts", "exam", "people:20", "people:20:x2"} == stored.keys()
    with pytest.raises(UserError, match="people:20:x2 changed"):
        refuse_changes(stored, {**stored, "people:20:x2": "other"})


@pytest.mark.parametrize(
    ("words", "mistake"),
    [
        (("--forms", "1,two"), "--forms takes numbers such as 1,2,4, not '1,two'"),
        (("--exposures", "0"), "--exposures takes different numbers of at least 1"),
        (("--forms", "2"), "--forms must hold 1"),
        (("--seed", "3"), "--seed is for recall, trust, not for why"),
        (("--exam", "people:test"), "--exam is for recall, trust, efficient, not for why"),
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
