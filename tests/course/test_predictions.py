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
    right = [str(one.answer) for one in corpora.load_questions("people:300:test")]
    some = right[: len(right) // 2]
    found = [
        marked(tmp_path, lines)
        for lines in (right, [*some, *["Rome"] * (len(right) - len(some))], ["Rome"] * len(right), right[1:])
    ]
    assert [one.earned for one in found] == [3, 1, 0, 0]
    assert [one.points for one in found] == [3] * 4
    assert found[0].message.startswith(f"Correct: {len(right)} out of {len(right)}: 100.0%")
    assert "wanted: at least 90 %" in found[1].message
    assert found[2].value == "mostly Rome"
    assert f"has {len(right) - 1} lines" in found[3].message


@pytest.mark.parametrize(
    ("answer", "words"), [("3", "in quotes"), ('"../ann.toml"', "outside"), ('"none.txt"', "no file none.txt")]
)
def test_a_file_that_is_not_there_fails_the_task(tmp_path: Path, answer: str, words: str) -> None:
    assert words in marked(tmp_path, [], answer).message


@pytest.mark.parametrize("change", [("people:300:test", "none.tsv"), ("accuracy", "acuracy"), ("0.9", "90")])
def test_mistakes_in_the_sheet_are_errors(
    tmp_path: Path, change: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.SHEET", SHEET.replace(*change))
    with pytest.raises(UserError):
        marked(tmp_path, ["Rome"])
