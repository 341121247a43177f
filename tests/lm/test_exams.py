"""Examinations: files of predictions, the line of the course, the most common answers, and tests of pairs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from attnlab import corpora, stats
from attnlab.corpora import Question
from attnlab.errors import DataError
from attnlab.lm import exams
from verbs import call

ANSWERS = ["London"] * 25 + [f"City {n % 90}" for n in range(475)]
RIGHT = {"a.txt": range(115), "b.txt": range(5, 88), "c.txt": range(80, 200)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An exam of 500 questions, and three files of predictions that mostly say Berlin or Brooklyn."""
    monkeypatch.chdir(tmp_path)
    Path("exam.tsv").write_text("".join(f"Where was P{n} born?\t{one}\n" for n, one in enumerate(ANSWERS)))
    for name, right in RIGHT.items():
        wrong = ("", "Berlin", "Brooklyn", "Berlin", "Brooklyn")
        said = [one if n in right else wrong[n % 5] for n, one in enumerate(ANSWERS)]
        Path(name).write_text("".join(f"{one}\n" for one in said))
    return tmp_path


def test_the_line_the_course_prints() -> None:
    questions = tuple(Question(f"Where {n}?", "London") for n in range(500))
    examination = exams.Examination(questions, ("London",) * 115 + ("Paris",) * 385)
    assert examination.score().sentence() == "Correct: 115 out of 500: 23.0% (95 % interval 19.5 to 26.9 %)"
    assert examination.score().commonest_words() == "most common answers: Paris 77.0 %, London 23.0 % (2 distinct)"
    assert examination.score().commonest_share == 0.77


def test_an_examination_without_answers_only_predicts() -> None:
    examination = exams.Examination((Question("Where?", None),), ("Rome",))
    assert examination.score().accuracy is None
    assert examination.score().sentence().startswith("Predicted: 1 answers")


def test_spaces_around_an_answer_do_not_count_but_case_does() -> None:
    questions = (Question("a", " Rome "), Question("b", "Rome"))
    assert exams.Examination(questions, ("Rome", "rome")).right == [True, False]


def test_majority_gives_the_commonest_training_answer() -> None:
    train = (Question("a", "Rome"), Question("b", "Oslo"), Question("c", "Rome"))
    assert exams.majority(train, train).predictions == ("Rome",) * 3


def test_majority_on_the_reports_data(data_folder: Path) -> None:
    questions = corpora.load_questions(data_folder / "birthplaces/birth_places_train.tsv")
    assert len(questions) == 2000
    assert exams.majority(questions, questions).predictions[0] == "London"


def test_a_file_and_a_constant_answer_are_scored(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("score", "exam.tsv", "a.txt", "--always", "London") == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "a.txt: Correct: 115 out of 500: 23.0% (95 % interval 19.5 to 26.9 %)"
    assert shown[1].startswith("  most common answers: Berlin 30.8 %, Brooklyn 30.8 %, (nothing) 15.4 %, London 5.0 %,")
    assert shown[2].startswith("always London: Correct: 25 out of 500: 5.0%")
    assert "90 right with a.txt only, 0 with always London only" in shown[4]
    assert len(shown) == 5


def test_all_pairs_are_tested_question_by_question_with_holms_correction(folder: Path) -> None:
    found = exams.score("exam.tsv", *RIGHT, all_pairs=True)
    assert [(one.first, one.second) for one in found.pairs] == [
        ("a.txt", "b.txt"),
        ("a.txt", "c.txt"),
        ("b.txt", "c.txt"),
    ]
    assert [(one.only_a, one.only_b) for one in found.pairs] == [(32, 0), (80, 85), (75, 112)]
    known = {name: [place in right for place in range(500)] for name, right in RIGHT.items()}
    plain = [stats.mcnemar(known[one.first], known[one.second]).p for one in found.pairs]
    assert [one.adjusted for one in found.pairs] == stats.holm(plain)
    assert [len(exams.score("exam.tsv", *list(RIGHT)[:count]).pairs) for count in (1, 2, 3)] == [0, 1, 2]


def test_the_report_names_the_most_common_answers_and_the_pairs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("score", "exam.tsv", *RIGHT, "--out", "report", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["rows"][0]["commonest"][0] == {"prediction": "Berlin", "share": 0.308}
    page = Path("report/report.md").read_text()
    assert "| a.txt | Berlin, 30.8 % | Brooklyn, 30.8 % | (nothing), 15.4 % | London, 5.0 % |" in page
    assert "| a.txt | b.txt | +6.4 points (" in page
    assert call("score", "exam.tsv", "a.txt", "--out", "report") == 2
    assert "exists already" in capsys.readouterr().err


def test_files_of_other_systems_are_read(folder: Path) -> None:
    said = Path("a.txt").read_text().rstrip("\n").split("\n")
    Path("windows.txt").write_bytes(b"\xef\xbb\xbf" + " \r\n".join(said).encode())
    found = exams.score("exam.tsv", "windows.txt").rows[0]
    assert replace(found, name="a.txt") == exams.score("exam.tsv", "a.txt").rows[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("exam.tsv", "short.txt"), "short.txt has 1 line, and the exam 500 questions: write one prediction per line"),
        (("exam.tsv", "empty.txt"), "empty.txt is empty; it needs one prediction per line, 500 for this exam"),
        (("exam.tsv", "aa.txt"), "aa.txt does not exist; did you mean a.txt"),
        (("a.txt", "exam.tsv"), "a.txt has no answers to compare with; it needs QUESTION<TAB>ANSWER on every line"),
        (("exam.tsv",), "nothing to score: name a file of predictions, or --always ANSWER"),
        (("exam.tsv", "a.txt", "a.txt"), "a.txt is given twice: name it once"),
        (("exam.tsv", "exam.tsv"), "exam.tsv has tabs: give the answers alone, one per line, without the questions"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    folder: Path, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("short.txt").write_text("London")
    Path("empty.txt").write_text("")
    assert call("score", *arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"attnlab: {words}")
    assert said.count("\n") == 1


def test_scoring_needs_no_torch(folder: Path) -> None:
    code = "import sys; from attnlab.cli import main; main(['score', 'exam.tsv', 'a.txt']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_five_predictions_are_named_and_long_ones_are_cut() -> None:
    said = [letter * 40 for letter in "aabbbccccddddeeeef"]
    counts = {letter * 40: said.count(letter * 40) for letter in "abcdef"}
    score = exams.Examination(tuple(Question("?", "a") for _ in said), tuple(said)).score()
    assert score.distinct_predictions == 6
    assert {common.prediction: common.share * 18 for common in score.commonest} == pytest.approx(
        {name: count for name, count in counts.items() if count > 1}
    )
    words = score.commonest_words().removeprefix("most common answers: ").split(", ")
    assert {len(word.split(" ")[0]) for word in words} == {30}


def test_an_exam_with_one_unknown_answer_is_not_scored() -> None:
    questions = (Question("a", "Rome"), Question("b", None))
    examination = exams.Examination(questions, ("Rome", "Oslo"))
    assert not examination.answered
    assert (examination.score().questions, examination.score().correct) == (2, None)


def test_half_of_the_lines_may_hold_tabs(tmp_path: Path) -> None:
    questions = [Question(f"{n}?", "Rome") for n in range(4)]
    path = tmp_path / "said.txt"
    path.write_text("a\tb\nc\td\nRome\nOslo\n")
    assert exams.Examination.read(questions, path).right == [False, False, True, False]
    path.write_text("a\tb\nc\td\ne\tf\nOslo\n")
    with pytest.raises(DataError, match="has tabs"):
        exams.Examination.read(questions, path)


def test_one_score_is_not_named_and_one_pair_is_not_corrected(folder: Path) -> None:
    alone = exams.score("exam.tsv", "a.txt")
    assert [line.split(":")[0] for line in alone.lines()] == ["Correct", "most common answers"]
    two = exams.score("exam.tsv", "a.txt", always=["London"])
    assert [(row.name, row.kind) for row in two.rows] == [("a.txt", "model"), ("always London", "baseline")]
    assert (two.exam, two.questions) == ("exam.tsv", 500)
    (pair,) = two.pairs
    assert pair.adjusted is None
    assert two.lines()[-1] == pair.sentence
    assert pair.sentence.startswith("a.txt against always London: ")
    three = exams.score("exam.tsv", "a.txt", "b.txt", always=["London"])
    assert [(pair.first, pair.second) for pair in three.pairs] == [("a.txt", "b.txt"), ("a.txt", "always London")]
    assert all(pair.adjusted is not None for pair in three.pairs)


def test_several_comparisons_have_wider_intervals(folder: Path) -> None:
    """With three pairs, each is judged at 5 % / 3."""
    right = {name: [place in places for place in range(500)] for name, places in RIGHT.items()}
    for pair in exams.score("exam.tsv", *RIGHT, all_pairs=True).pairs:
        expected = stats.mcnemar(right[pair.first], right[pair.second], 0.05 / 3)
        assert (pair.low, pair.high, pair.p) == (expected.low, expected.high, expected.p)


def test_majority_passes_over_questions_without_an_answer() -> None:
    train = (Question("a", None), Question("b", None), Question("c", "Oslo"))
    assert exams.majority(train, train[:2]).predictions == ("Oslo", "Oslo")


def test_predictions_are_written_one_per_line() -> None:
    assert exams.Examination((Question("a", "x"), Question("b", "y")), ("Rome", "é")).lines() == "Rome\né\n".encode()


def test_the_commonest_prediction_has_the_largest_share() -> None:
    questions = tuple(Question(f"{n}?", "Rome") for n in range(4))
    score = exams.Examination(questions, ("Oslo", "Rome", "Oslo", "Bath")).score()
    assert (score.commonest_prediction, score.commonest_share) == ("Oslo", 0.5)
