from pathlib import Path

import numpy as np
import pytest

from attnlab.course import mark as mark_all
from attnlab.errors import UserError

SHEETS = Path(__file__).parents[2] / "examples" / "sheets"
NAMES = sorted(path.stem for path in SHEETS.glob("a*.toml") if "-" not in path.stem)


def mark(sheet, answers):
    return mark_all(sheet, answers).students[0]


def test_there_is_a_sheet_for_every_part():
    assert set(NAMES) == {f"a{i}" for i in range(1, 13)}


@pytest.mark.parametrize("name", NAMES)
def test_right_answers_pass(name):
    marks = mark(SHEETS / f"{name}.toml", SHEETS / f"{name}-right.toml")
    assert marks.passed, [o.message for o in marks.outcomes if not o.passed]


@pytest.mark.parametrize("path", sorted(SHEETS.glob("*-wrong.toml")), ids=lambda path: path.stem)
def test_wrong_answers_fail(path):
    assert not mark(SHEETS / f"{path.stem.split('-')[0]}.toml", path).passed


def test_a_failing_answer_gets_the_counterexample():
    marks = mark(SHEETS / "a12.toml", SHEETS / "a12-wrong.toml")
    failed = [o for o in marks.outcomes if not o.passed]
    assert [o.name for o in failed] == ["average two"]
    assert failed[0].error == pytest.approx(0.186, abs=1e-3)
    for part in ("off by 0.1855 in coordinate 1", "allowed 0.05", "the margin to the other keys is 0.8744"):
        assert part in failed[0].message
    assert marks.points == 3


def test_ten_times_the_mean_passes_within_three_thousandths():
    marks = mark(SHEETS / "a12.toml", SHEETS / "a12-right.toml")
    assert marks.outcomes[3].error == pytest.approx(0.003, abs=5e-4)


SHEET = """
keys = [[1, 0], [0, 1]]
values = [[1, 0], [0, 1]]
[[task]]
name = "copy"
ask = "select"
index = 0
"""


def marked(tmp_path, answers, sheet=SHEET):
    (tmp_path / "sheet.toml").write_text(sheet, encoding="utf-8")
    (tmp_path / "answers.toml").write_text(answers, encoding="utf-8")
    return mark(tmp_path / "sheet.toml", tmp_path / "answers.toml").outcomes[0]


def test_numbers_and_names_of_ones_own(tmp_path):
    assert marked(tmp_path, "copy = [5, -5]").passed
    assert marked(tmp_path, 'copy = "C*(K[0] - K[1])"\n[let]\nC = 9').passed


def test_no_answer_is_not_a_pass(tmp_path):
    assert marked(tmp_path, "").message == "there is no answer"


def test_impossible_must_be_true(tmp_path):
    outcome = marked(tmp_path, 'copy = "impossible"')
    assert not outcome.passed
    assert "does it" in outcome.message


def test_files_beside_the_sheet(tmp_path):
    (tmp_path / "K.csv").write_text("1,0\n0,1\n", encoding="utf-8")
    assert marked(tmp_path, "copy = [5, -5]", SHEET.replace("keys = [[1, 0], [0, 1]]", 'keys = "K.csv"')).passed


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ("copy = [1, 2, 3]", "the answer has 3 numbers; give 2 numbers"),
        ("copy = 3", "the answer has one number; give 2 numbers"),
        ("copy = [[1, 2], [3, 4]]", "the answer has 2 x 2 numbers; give 2 numbers"),
        ('copy = ["1", "2,5"]', "a comma separates numbers; a decimal is written 2.5"),
        ('copy = ["1,5", "2,5"]', "a decimal is written 1.5"),
        ('copy = "2,5*K[0]"', "a decimal is written 2.5"),
        ('copy = "K.sum()"', "calls a function"),
        ("copy = [1, [2]]", "different lengths"),
        ("copy = true", "give numbers"),
        ("copy = [nan, 1]", "finite"),
        ("copy = ", "is not TOML"),
        ("[copy]\na = 1", "the answer is a table"),
        ("copy = [{a = 1}]", "a list holds a table"),
        ('copy = "C"\nlet = 3', "let must be a table"),
        ('copy = "C*K[0]"\n[let]\nC = "1 +"', "C"),
        ("copy = 1e99999999999999999999", "is not a number"),
        ("copy = " + "[" * 5000, "too deep"),
        ("copy = " + "9" * 5000, "is not TOML"),
        ("copy = " + "9" * 400, "100 digits"),
    ],
)
def test_a_malformed_answer_fails_with_one_line(tmp_path, answers, words):
    (tmp_path / "sheet.toml").write_text(SHEET, encoding="utf-8")
    (tmp_path / "answers.toml").write_text(answers, encoding="utf-8")
    student = mark(tmp_path / "sheet.toml", tmp_path / "answers.toml")
    assert not student.passed
    assert words in str(student.mistakes)
    assert not any("\n" in why for _, why in student.mistakes)


@pytest.mark.parametrize(
    ("sheet", "words"),
    [
        ("keys = [[1]]", "has no tasks"),
        (SHEET.replace('"select"', '"selct"'), "did you mean select"),
        (SHEET.replace("index", "indx"), "did you mean index"),
        (SHEET.replace("keys = [[1, 0], [0, 1]]", ""), "'keys' is missing"),
        (SHEET.replace("[[1, 0], [0, 1]]", "[[1, 0], [0]]", 1), "make them equal"),
        (SHEET.replace("index = 0", "index = 7"), "index 7 is out of range"),
        ('[[task]]\nname = "copy"\nask = "number"', "'value' is missing; .* the sheet for students has no solutions"),
        (SHEET.replace("select", "condition"), "'kind' is missing; .* needs it: sufficient or necessary"),
    ],
)
def test_mistakes_in_sheets_are_errors_of_one_line(tmp_path, sheet, words):
    with pytest.raises(UserError, match=words) as caught:
        marked(tmp_path, "copy = [1, 2]", sheet)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("copy: ") or "[[task]]" not in sheet


@pytest.mark.parametrize("names", [("none.toml", "a12-right.toml"), ("a12.toml", "none.toml")])
def test_a_missing_file_is_named(names):
    with pytest.raises(UserError, match="there is no file"):
        mark(*(SHEETS / name for name in names))


NOISE = 'keys = [[1, 0], [0, 1]]\nvalues = [[1], [0]]\n[[task]]\nname = "copy"\nask = "noise"\n'
PROJECT = '[[task]]\nname = "copy"\nask = "project"\nkeep = [[1, 0, 0]]\nforget = [[1, 0]]\n'
EDIT = SHEET.replace('"select"', '"edit-key"') + "query = [1, 2, 3]\n"


@pytest.mark.parametrize(
    ("answers", "sheet"),
    [
        ("", SHEET.replace("index = 0", "")),
        ("copy = [1, 2]", SHEET.replace("index = 0", 'index = "x"')),
        ("copy = [1, 2]", SHEET.replace("index = 0", "index = 0.5")),
        ("", "task = [1, 2]"),
        ("", "task = []"),
        ("", "vectors = 3\n" + SHEET),
        ("", SHEET + "[vectors]\nu = [[1, 2], [3]]\n"),
        *(("", SHEET + f"points = {x}\n") for x in ('"x"', "nan", "-3")),
        *(("", SHEET + f"tolerance = {x}\n") for x in ('"x"', "true", "0")),
        *(("", SHEET.replace('"select"\nindex', '"blend"\nindices').replace("= 0", x)) for x in ("= 3", '= ["a"]')),
        ("copy = [1, 2]", EDIT),
        ("copy = [1, 2]", EDIT.replace("[1, 2, 3]", "[1, 2]") + 'norm = "x"\n'),
        ("copy = [1, 2]", EDIT.replace("[1, 2, 3]", "[1, 2]") + "target = [1]\n"),
        ("copy = [1, 2]", PROJECT),
        ("copy = [1, 2]", NOISE + 'heads = "x"\n'),
        ("copy = [1, 2]", SHEET + SHEET[SHEET.index("[[task]]") :]),
    ],
)
def test_sheets_with_settings_of_the_wrong_kind_are_one_line(tmp_path, answers, sheet):
    with pytest.raises(UserError) as caught:
        marked(tmp_path, answers, sheet)
    assert "\n" not in str(caught.value)


def test_names_that_grow_are_stopped(tmp_path):
    grown = "\n".join(f'x{i + 1} = "x{i} ^ x{i}"' for i in range(9))
    assert "stay below" in marked(tmp_path, f'copy = "x9"\n[let]\nx0 = "K[0] + 1"\n{grown}').message


COLLINEAR = [[0.1, 0.1], [0.15, 0.2], [0.2, 0.3]]  # as decimals; their binary values are not
BEYOND = [-1.4411518807585587e18, 7.205759403792795e17]


@pytest.mark.parametrize("binary", [False, True])
def test_only_one_of_two_contrary_answers_passes(tmp_path, binary):
    np.save(tmp_path / "K.npy", np.array(COLLINEAR))
    keys = '"K.npy"' if binary else str(COLLINEAR)
    sheet = f"keys = {keys}\nvalues = {np.eye(3).tolist()}\n" + SHEET[SHEET.index("[[task]]") :].replace("0", "1")
    impossible, query = (marked(tmp_path, f"copy = {answer}", sheet) for answer in ('"impossible"', BEYOND))
    assert (impossible.passed, query.passed) == ((False, True) if binary else (True, False))
    words = "keys as binary float64 values" if binary else "keys as the decimals written"
    assert words in str(impossible.reading)
    assert words in str(query.reading)


NUMBER = '[[task]]\nname = "copy"\nask = "number"\nvalue = 3323392\ntolerance = 0\n'


@pytest.mark.parametrize(
    ("answer", "more", "passed"),
    [
        ("3323392", "", True),
        ('"3323391 + 1"', "", True),
        ("3323393", "", False),
        ("3323393", "relative = 0.001\n", True),
        ("3400000", "relative = 0.001\n", False),
        ('"impossible"', "", False),
        ("[1, 2]", "", False),
    ],
)
def test_numbers_within_their_tolerance(tmp_path, answer, more, passed):
    outcome = marked(tmp_path, f"copy = {answer}", NUMBER + more)
    assert outcome.passed == passed, outcome.message
    assert outcome.error is None or outcome.error == abs(float(outcome.value) - 3323392)


@pytest.mark.parametrize(
    ("answer", "more", "message"),
    [
        ("3323393", "", "3323393 is not the right number (tolerance 0)"),
        ("3400000", "relative = 0.001\n", "3400000 is not the right number (tolerance 0, relative 0.001)"),
        ("[1, 2, 3]", "", "the answer has 3 numbers; give one number"),
        (
            '"8,1"',
            "",
            "the answer has 2 numbers; give one number (a comma separates numbers; a decimal is written 8.1)",
        ),
    ],
)
def test_a_wrong_number_does_not_give_the_right_one_away(tmp_path, answer, more, message):
    assert marked(tmp_path, f"copy = {answer}", NUMBER + more).message == message
