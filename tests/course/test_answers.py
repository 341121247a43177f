"""Which files and folders are the answers of a student."""

from pathlib import Path

import pytest

from attnlab.course.answers import find_answers, read_answers
from attnlab.errors import DataError


def test_only_links_to_nothing_count_as_answers_of_any_name(tmp_path: Path) -> None:
    sheet, handed_in = tmp_path / "sheet.toml", tmp_path / "students"
    handed_in.mkdir()
    (handed_in / "ann.toml").write_text("copy = [1, 0]\n", "utf-8")
    (handed_in / "notes.txt").write_text("not an answer", "utf-8")
    (handed_in / "shortcut").symlink_to("notes.txt")
    (handed_in / "lost").symlink_to("nowhere")
    assert sorted(find_answers([handed_in], sheet)) == ["ann", "lost"]
    assert list(find_answers([handed_in / "lost"], sheet)) == ["lost"]


def test_a_student_may_hand_in_the_sheet_too(tmp_path: Path) -> None:
    (tmp_path / "homework.toml").write_text("copy = 1\n", "utf-8")
    assert read_answers("ann", tmp_path, sheet="homework.toml").values == {"copy": 1}  # the only file
    (tmp_path / "answers.toml").write_text("copy = 2\n", "utf-8")
    assert read_answers("ann", tmp_path, sheet="homework.toml").values == {"copy": 2}
    assert "2 TOML files" in read_answers("ann", tmp_path, sheet="sheet.toml").unreadable


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        find_answers([tmp_path / "absent.toml"], tmp_path / "sheet.toml")
