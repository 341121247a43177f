from pathlib import Path

import pytest

from attnlab import corpora
from attnlab.course import mark
from attnlab.errors import UserError

SHEET = (
    '[[task]]\nname = "recall"\nask = "predictions"\nexam = "people:300:test"\naccuracy = [0.2, 0.9]\npoints = [1, 3]\n'
)


def marked(folder: Path, lines: list[str], answer: str = '"birth.predictions"'):
    (folder / "sheet.toml").write_text(SHEET, "utf-8")
    (folder / "ann.toml").write_text(f"recall = {answer}", "utf-8")
    (folder / "birth.predictions").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return mark(folder / "sheet.toml", folder / "ann.toml").students[0].outcomes[0]


def test_points_follow_the_accuracy(tmp_path: Path) -> None:
    right = [str(item.answer) for item in corpora.load_questions("people:300:test")]
    some = right[: len(right) // 2]
    outcomes = [
        marked(tmp_path, lines)
        for lines in (right, [*some, *["Rome"] * (len(right) - len(some))], ["Rome"] * len(right), right[1:])
    ]
    assert [outcome.earned for outcome in outcomes] == [3, 1, 0, 0]
    assert [outcome.points for outcome in outcomes] == [3] * 4
    assert outcomes[0].message.startswith(f"Correct: {len(right)} out of {len(right)}: 100.0%")
    assert "wanted: at least 90 %" in outcomes[1].message
    assert "level reached: accuracy at least 20 %" in outcomes[1].message
    assert "level reached" not in outcomes[2].message
    assert outcomes[2].value == "mostly Rome"
    assert outcomes[3].message.startswith(f"birth.predictions has {len(right) - 1} lines")
    questions = [item.question for item in corpora.load_questions("people:300:test")]
    table = [f"{question}\t{answer}" for question, answer in zip(questions, right, strict=True)]
    assert marked(tmp_path, table).message.startswith("birth.predictions has tabs: give the answers alone")


@pytest.mark.parametrize(
    ("answer", "words"), [("3", "in quotes"), ('"../ann.toml"', "outside"), ('"none.txt"', "no file none.txt")]
)
def test_a_file_that_is_not_there_fails_the_task(tmp_path: Path, answer: str, words: str) -> None:
    assert words in marked(tmp_path, [], answer).message


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("people:300:test", "none.tsv", "none.tsv does not exist"),
        ("accuracy", "acuracy", "did you mean accuracy"),
        ("accuracy = [0.2, 0.9]\n", "", "accuracy must be given"),
        ("0.9", "90", "accuracy 90 is above 1: write a share such as 0.5"),
        ("[1, 3]", "[3, 1]", "points must rise: write the easiest level first"),
        ("[1, 3]", "[3, 3]", "points must rise"),
        ("[0.2, 0.9]", "[0.9, 0.2]", "accuracy must rise: write the easiest level first"),
    ],
)
def test_mistakes_in_the_sheet_are_errors(
    tmp_path: Path, old: str, new: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.SHEET", SHEET.replace(old, new))
    with pytest.raises(UserError, match=f"^recall: .*{words}"):
        marked(tmp_path, ["Rome"])


def test_the_same_mistake_in_two_files_is_counted_twice(tmp_path: Path) -> None:
    (tmp_path / "sheet.toml").write_text(SHEET, "utf-8")
    for name, lines in (("ann", 3), ("bob", 4)):
        (tmp_path / f"{name}.toml").write_text(f'recall = "{name}.txt"', "utf-8")
        (tmp_path / f"{name}.txt").write_text("Rome\n" * lines, "utf-8")
    mistakes = mark(tmp_path / "sheet.toml", tmp_path / "ann.toml", tmp_path / "bob.toml").tasks()[0].mistakes
    assert [(mistake.students, mistake.message.split(",")[0]) for mistake in mistakes] == [(2, "ann.txt has 3 lines")]
