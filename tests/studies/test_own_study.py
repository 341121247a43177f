"""A study of a user's own, in one file: it is run, resumed, reported and refused like those of the package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from attnlab.cli.studies import run_app
from attnlab.store import usercode
from verbs import call

STUDY = """
from dataclasses import dataclass
from typing import Annotated

from attnlab.errors import Interrupted, UserError
from attnlab.report.document import Cell, Row, Table, section
from attnlab.report.parts import StudyResult, columns, report_of
from attnlab.studies import options as opt
from attnlab.studies.study import Study, study


@dataclass(frozen=True, kw_only=True)
class LengthsResult(StudyResult):
    shortest: str
    letters: int


@study("lengths")
class Lengths(Study[LengthsResult]):
    '''Find the shortest name of a corpus.'''

    corpus: opt.Corpus = "people:20"
    least: Annotated[opt.Whole, opt.about("Fewest letters of a name.")] = 1

    sources = ("corpus",)

    def check(self):
        if self.least < 1:
            raise UserError("--least must be at least 1")

    def train(self, folder, console):
        if not (folder / "trained").exists():
            (folder / "trained").mkdir()
            raise Interrupted("half way")

    def judge(self, folder, console) -> LengthsResult:
        names = [line.partition(".")[0] for line in self.data.corpus(self.corpus).lines]
        shortest = min((name for name in names if len(name) >= self.least), key=len)
        return LengthsResult(title="The shortest name", shortest=shortest, letters=len(shortest))

    def document(self, result):
        row = Row(Cell(result.shortest), [Cell(str(result.letters), result.letters)])
        table = Table("Names", "The shortest name.", columns("Name", "Letters"), [row], brief=True)
        return report_of(self.name, result, [f"It is {result.shortest}."], section("Names", table))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Path("mine.py").write_text(f"{STUDY}# {tmp_path}\n")  # files of the same content are loaded once per process
    yield "mine.py:Lengths"
    for name in [name for name in run_app if ".py:" in name]:  # commands of this process, which others list
        del run_app[name]


def test_a_study_in_one_file_runs_resumes_and_reports(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", own, "--least", "9", "--out", "study") == 130
    assert "Resume with: attnlab resume study" in capsys.readouterr().err
    assert call("resume", "study", "--trust-code") == 0
    assert "It is " in capsys.readouterr().out
    for name in ("study.json", "result.json", "report.html", "report.md"):
        assert Path("study", name).is_file()
    assert call("report", "study", "--format", "csv", "--out", "again") == 0
    assert Path("again/report-names.csv").read_text().startswith("Name,Letters")
    assert call("runs", "show", "study") == 0


def test_its_fields_are_options_with_help(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", own, "--help") == 0
    shown = capsys.readouterr().out
    assert "Find the shortest name of a corpus." in shown
    assert "Fewest letters of a name." in shown
    assert call("run", own, "--least", "0", "--out", "study") == 2
    assert not Path("study").exists()


def test_a_study_whose_file_changed_is_not_resumed(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", own, "--out", "study") == 130
    Path("mine.py").write_text(STUDY.replace("Fewest", "Least"))
    assert call("resume", "study", "--trust-code") == 2
    assert "mine.py changed since this study began" in capsys.readouterr().err


def test_a_class_that_is_no_study_is_refused(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("other.py").write_text("class Other:\n    pass\n")
    assert call("run", "other.py:Other", "--out", "study") == 2
    assert "is not a study" in capsys.readouterr().err


def test_a_study_that_does_not_declare_its_result_is_refused_before_training(
    own: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.py").write_text(STUDY.replace(" -> LengthsResult", "") + "# undeclared\n")
    assert call("run", own, "--out", "study") == 2
    assert "judge of Lengths must declare the record that it returns" in capsys.readouterr().err
    assert not Path("study").exists()


def test_the_report_of_somebody_elses_study_does_not_run_its_code(
    own: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("run", own, "--out", "study") == 130
    assert call("resume", "study", "--trust-code") == 0
    monkeypatch.setenv("XDG_STATE_HOME", str(Path("other").absolute()))  # of a user who has not trusted it
    monkeypatch.setattr(usercode, "_named", set())
    assert call("report", "study", "--out", "again") == 2
    assert "you have not trusted it" in capsys.readouterr().err
    assert not Path("again").exists()
