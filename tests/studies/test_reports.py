"""The experiments of the course reports, on a small model and few people."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from attnlab import studies
from attnlab.corpora import as_table, load_questions
from attnlab.errors import DataError, UserError
from attnlab.report.text import as_markdown
from attnlab.store.runs import Run
from attnlab.studies.reports import Reports, ReportsResult
from verbs import call

WORLD = {"corpus": "people:60", "facts": "people:60:train", "exam": "people:60:test"}
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ReportsResult]:
    folder = tmp_path_factory.mktemp("study") / "reports"
    exam = folder.with_name("exam.tsv")
    exam.write_text("".join(line + "\n" for line in as_table(load_questions("people:60:test")[:3])))
    plan = Reports(
        **{**WORLD, "exam": str(exam)}, epochs=(2,), given={"model": {"n_layer": 2, "n_embd": 16, "n_head": 2}}
    )
    return folder, plan.begin(folder, QUIET).result


def test_every_model_is_trained_as_reported_and_examined(done: tuple[Path, ReportsResult]) -> None:
    folder, result = done
    assert [(row.model, row.epochs) for row in result.rows[:3]] == [
        ("fine-tuned alone", 0),
        ("pretrained", 2),
        ("pretrained, perceiver", 2),
    ]
    assert all(row.questions == 3 for row in result.rows)
    alone = Run.open(folder / "no-pretraining")
    assert (alone.result.steps, alone.result.epochs) == (75, 75.0)
    long = Run.open(folder / "mingpt-perceiver-2-pretrain").record.settings
    assert long["model"]["bottleneck"] == 64
    assert long["train"]["rows_per_batch"] == 128
    assert long["train"]["horizon"] == pytest.approx(2 * 200 / 650)
    assert long["train"]["warmup"] == pytest.approx(4.2e-5 * 650 / 2)
    assert Run.open(folder / "mingpt-2-finetune").result.epochs == 10


def test_it_says_what_the_reports_found(done: tuple[Path, ReportsResult]) -> None:
    page = as_markdown(Reports().document(done[1]))
    assert "the reports after 650 epochs: 18.8, 21.0, 23.0 %" in page
    assert "the reports: 0.6, 1.2, 2.0 %" in page
    assert "always London" in page
    assert "They had other people, so the figures do not compare." in page


def test_a_finished_study_is_left_as_it_is(done: tuple[Path, ReportsResult]) -> None:
    assert studies.resume(done[0], QUIET).result == done[1]


def test_mistakes_are_found_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="--epochs takes different numbers"):
        Reports(**WORLD, epochs=(5, 5)).check()
    with pytest.raises(UserError, match="use --epochs"):
        Reports(**WORLD, epochs=(5,), given={"train": {"epochs": 3.0}}).check()
    (tmp_path / "exam.tsv").write_text("Where was Ada born?\n")
    with pytest.raises(DataError, match="has no answer"):
        Reports(**{**WORLD, "exam": str(tmp_path / "exam.tsv")}, epochs=(5,)).check()
    assert call("run", "reports", "--epochs", "ten") == 2
    assert "it takes numbers such as 1,2,4" in capsys.readouterr().err
