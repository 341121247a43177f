"""Labelled tables as users write them, recognised and checked."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from attnlab.corpora.labelled import parse_names, read_tables
from attnlab.errors import DataError, UserError

TRAIN = [("1", "a fine film"), ("0", "a dull film"), ("1", "fine music"), ("0", "dull music")]
DEV = [("0", "a dull joke"), ("1", "a fine joke")]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write(tmp_path / "train.tsv", TRAIN)
    write(tmp_path / "dev.tsv", DEV)
    return tmp_path


def write(path: Path, rows: list[tuple[str, str]], swapped: bool = False) -> Path:
    path.write_text("".join(f"{b}\t{a}\n" if swapped else f"{a}\t{b}\n" for a, b in rows), encoding="utf-8")
    return path


def test_the_label_is_recognised_on_either_side(files: Path) -> None:
    first = read_tables(files / "train.tsv", files / "dev.tsv")
    assert (first.train.column, first.labels) == ("label-first", ("0", "1"))
    assert first.train.how == "the first column has 2 short values that repeat, the other 4 in 4 lines"
    write(files / "train.tsv", TRAIN, swapped=True)
    write(files / "dev.tsv", DEV, swapped=True)
    second = read_tables(files / "train.tsv", files / "dev.tsv")
    assert (second.train.column, second.dev.column) == ("text-first", "text-first")
    assert [(row.label, row.text) for row in second.train.rows] == TRAIN
    assert second.train.rows == first.train.rows
    assert second.dev.rows == first.dev.rows
    assert second.ids(second.dev) == [0, 1]


def test_a_further_table_may_stand_the_other_way_round(files: Path) -> None:
    write(files / "dev.tsv", DEV, swapped=True)
    tables = read_tables(files / "train.tsv", files / "dev.tsv")
    assert (tables.train.column, tables.dev.column) == ("label-first", "text-first")
    assert "other column" in tables.dev.how
    assert [row.label for row in tables.dev.rows] == ["0", "1"]
    with pytest.raises(DataError, match=r"dev.tsv:1: label 'a dull joke' does not occur in train.tsv, which has 0, 1"):
        read_tables(files / "train.tsv", files / "dev.tsv", column="label-first")


def test_what_cannot_be_told_is_asked(files: Path) -> None:
    write(files / "train.tsv", [("a", "b"), ("c", "d"), ("e", "f")])
    with pytest.raises(DataError, match="cannot tell labels from texts .* say --column label-first"):
        read_tables(files / "train.tsv", files / "dev.tsv")
    write(files / "dev.tsv", [("x", "b"), ("y", "d")])
    assert read_tables(files / "train.tsv", files / "dev.tsv", column="text-first").labels == ("b", "d", "f")


def test_files_of_other_systems(files: Path) -> None:
    data = '\ufeffsentence\tlabel\r\n\r\nA fine  film\t1\r\n"say\thi"\t0\r\ncafe\u0301\t1\r\nbad "\t0\r\n\r\n'
    (files / "train.tsv").write_bytes(data.encode())
    tables = read_tables(files / "train.tsv", files / "dev.tsv")
    assert tables.train.header
    assert tables.train.how == "its heading says text first"
    assert tables.train.texts == ["A fine  film", "say\thi", "café", 'bad "']
    assert tables.train.blank == 2
    assert tables.train.place(1) == "train.tsv:4"
    assert tables.train.sha256 == hashlib.sha256(data.encode()).hexdigest()
    assert not tables.dev.header


@pytest.mark.parametrize("head", [("stars", "body"), ('"label"', '"text"')])
def test_a_heading_in_other_words_is_no_label(files: Path, head: tuple[str, str]) -> None:
    more = [*TRAIN, ("1", "fine words"), ("0", "dull words")]
    write(files / "train.tsv", [head, *more])
    write(files / "dev.tsv", [head, *DEV])
    tables = read_tables(files / "train.tsv", files / "dev.tsv")
    assert tables.labels == ("0", "1")
    assert (len(tables.train.rows), len(tables.dev.rows)) == (len(more), len(DEV))
    assert tables.train.header
    assert tables.train.place(0) == "train.tsv:2"
    assert "heading" in tables.train.how
    write(files / "train.tsv", [*more, head])  # elsewhere it is a label like any other
    write(files / "dev.tsv", DEV)
    assert len(read_tables(files / "train.tsv", files / "dev.tsv").labels) == 3


def test_a_heading_is_not_overruled(files: Path) -> None:
    write(files / "train.tsv", [("text", "label"), *((text, label) for label, text in TRAIN)])
    with pytest.raises(DataError, match="its heading says text first, --column says label-first: leave --column out"):
        read_tables(files / "train.tsv", files / "dev.tsv", column="label-first")
    write(files / "dev.tsv", [("label", "text"), *DEV])
    tables = read_tables(files / "train.tsv", files / "dev.tsv")
    assert (tables.train.column, tables.dev.column) == ("text-first", "label-first")


def test_names_for_labels(files: Path) -> None:
    tables = read_tables(files / "train.tsv", files / "dev.tsv", names=parse_names(" 1 = positive ,0=negative"))
    assert tables.labels == ("negative", "positive")
    assert [row.label for row in tables.dev.rows] == ["negative", "positive"]
    assert tables.ids(tables.dev) == [0, 1]
    assert tables.examples("positive") == ["a fine film", "fine music"]
    assert read_tables(files / "train.tsv", files / "dev.tsv", names={"1": "positive"}).labels == ("0", "positive")
    for given, message in (("1", "takes LABEL=NAME"), ("1=a,1=b", "twice"), ("1=", "takes LABEL=NAME")):
        with pytest.raises(UserError, match=message):
            parse_names(given)
    with pytest.raises(UserError, match="unknown label '2'"):
        read_tables(files / "train.tsv", files / "dev.tsv", names={"2": "x"})
    with pytest.raises(UserError, match="gives the name '0' to two labels"):
        read_tables(files / "train.tsv", files / "dev.tsv", names={"1": "0"})


def test_labels_that_are_numbers_are_ordered_as_numbers(files: Path) -> None:
    rows = [(str(label), f"text {number} of {label}") for label in (10, 9, -1) for number in range(3)]
    write(files / "train.tsv", rows)
    write(files / "dev.tsv", [("10", "another"), ("-1", "one more"), ("9", "the last")])
    assert read_tables(files / "train.tsv", files / "dev.tsv").labels == ("-1", "9", "10")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no tab here", "dev.tsv:3: no tab between label and text"),
        ("1\ta\tb", "dev.tsv:3: 3 columns; leave two"),
        ("1\ta\rb\tc", "dev.tsv:3: 3 columns; leave two"),
        ("1\t  ", "dev.tsv:3: nothing after the tab"),
        ("\ttext", "dev.tsv:3: nothing before the tab"),
        ("2\ta new thing", "dev.tsv:3: label '2' does not occur in train.tsv, which has 0, 1"),
    ],
)
def test_lines_that_are_wrong(files: Path, line: str, message: str) -> None:
    with (files / "dev.tsv").open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(DataError) as caught:
        read_tables(files / "train.tsv", files / "dev.tsv")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_label_teaches_nothing(files: Path) -> None:
    write(files / "train.tsv", [("1", "a fine film"), ("1", "fine music")])
    with pytest.raises(DataError, match="train.tsv has one label only, '1'"):
        read_tables(files / "train.tsv", files / "dev.tsv")


def test_texts_that_leak_are_told(files: Path) -> None:
    assert read_tables(files / "train.tsv", files / "dev.tsv").warnings == ()
    write(files / "dev.tsv", [*DEV, ("1", "A fine  FILM")])
    write(files / "test.tsv", [("0", "a dull joke"), ("0", "fine music"), ("1", "something new")])
    leaks = read_tables(files / "train.tsv", files / "dev.tsv", files / "test.tsv").warnings
    assert leaks[0].startswith("1 text of dev.tsv also appears in train.tsv, such as “A fine  FILM”")
    assert leaks[1].startswith("1 text of test.tsv also appears in train.tsv, such as “fine music”")
    assert leaks[2].startswith("1 text of test.tsv also appears in dev.tsv, such as “a dull joke”")
    assert leaks[3] == "1 text with two labels, such as “fine music” (0, 1)"
    assert len(leaks) == 4


def test_a_label_that_validation_lacks_is_told(files: Path) -> None:
    write(files / "dev.tsv", DEV[:1])
    (warning,) = read_tables(files / "train.tsv", files / "dev.tsv").warnings
    assert warning == "no text of dev.tsv has the label 1: it will not be evaluated"
