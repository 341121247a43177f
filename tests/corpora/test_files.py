"""The user's own files: every usual form is read alike, every mistake is named with its place and its remedy."""

from __future__ import annotations

import codecs
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.corpora.files import Question, numbered_lines, parse_question, read_questions
from attnlab.corpora.labelled import read_columns
from attnlab.errors import DataError

TEXT = "Ann Lee. Lee was born in Zürich .\nBo Ek. Ek was born in Malmö .\n"
LINES = ("Ann Lee. Lee was born in Zürich .", "Bo Ek. Ek was born in Malmö .")


def read_corpus(path: str | Path) -> tuple[str, ...]:
    return tuple(line for _, line in numbered_lines(path))


def written(folder: Path, data: bytes | str, name: str = "exam.tsv") -> Path:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def message(path: Path, reader: object = read_questions) -> str:
    assert callable(reader)
    with pytest.raises(DataError) as caught:
        reader(path)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    "data",
    [
        TEXT.encode(),
        codecs.BOM_UTF8 + TEXT.encode(),
        TEXT.replace("\n", "\r\n").encode(),
        codecs.BOM_UTF8 + TEXT.replace("\n", "\r\n").encode(),
        TEXT.rstrip("\n").encode(),
        ("\n\n" + TEXT.replace("\n", "\n \t\n\n")).encode(),
        ("\r\n" + TEXT.replace("\n", "\r\n\r\n")).encode(),
    ],
    ids=["plain", "mark", "crlf", "mark-crlf", "no-last-end", "blank-lines", "blank-crlf"],
)
def test_all_usual_forms_read_alike(tmp_path: Path, data: bytes) -> None:
    assert read_corpus(written(tmp_path, data)) == LINES


@pytest.mark.parametrize("inside", ["\f", "\v", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\r"])
def test_only_line_feeds_end_a_line(tmp_path: Path, inside: str) -> None:
    assert read_corpus(written(tmp_path, f"one{inside}two\nthree\n")) == (f"one{inside}two", "three")


def test_a_path_may_be_text(tmp_path: Path) -> None:
    assert read_corpus(str(written(tmp_path, TEXT))) == LINES


def test_a_missing_file_is_named_with_its_nearest(tmp_path: Path) -> None:
    written(tmp_path, TEXT, "wiki.txt")
    text = message(tmp_path / "wikki.txt")
    assert "does not exist" in text
    assert f"did you mean {tmp_path / 'wiki.txt'}?" in text
    assert "check the path" in message(tmp_path / "nowhere" / "else.txt")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert "cannot be read (Is a directory); name a text file" in message(tmp_path)


@pytest.mark.parametrize("data", [b"", b"\n", b" \r\n\t\n", codecs.BOM_UTF8, codecs.BOM_UTF8 + b"\n\n"])
def test_an_empty_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = written(tmp_path, data)
    for reader in (read_corpus, read_questions):
        assert "is empty; it needs at least one line" in message(path, reader)


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_a_wrong_byte_is_named_with_line_and_offset(tmp_path: Path, mark: bytes) -> None:
    path = written(tmp_path, mark + b"Ann\r\nBo\nMalm\xf6 is a town\n")
    text = f"exam.tsv:3: byte 0xf6 at offset {len(mark) + 12} is not UTF-8; save it as UTF-8"
    assert message(path, read_corpus) == text


@pytest.mark.parametrize(("encoding", "mark"), [("utf-16-le", codecs.BOM_UTF16_LE), ("utf-16-be", codecs.BOM_UTF16_BE)])
def test_utf_16_is_recognised(tmp_path: Path, encoding: str, mark: bytes) -> None:
    path = written(tmp_path, mark + TEXT.encode(encoding))
    assert message(path, read_corpus) == "exam.tsv: the file is UTF-16; save it as UTF-8"


def test_utf_32_is_not_taken_for_utf_16(tmp_path: Path) -> None:
    path = written(tmp_path, codecs.BOM_UTF32_LE + TEXT.encode("utf-32-le"))
    assert message(path, read_corpus) == "exam.tsv: the file is UTF-32; save it as UTF-8"


def test_documents_come_one_at_a_time(tmp_path: Path) -> None:
    lines = numbered_lines(written(tmp_path, b"one\n\ntwo\nMalm\xf6\n"))
    assert (next(lines), next(lines)) == ((1, "one"), (3, "two"))
    with pytest.raises(DataError, match="exam.tsv:4: byte 0xf6 at offset 13"):
        next(lines)


@given(st.text(st.sampled_from("aé\r\n \ufeff\x85\u2028"), max_size=12))
def test_a_line_at_a_time_is_the_text_as_a_whole(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    whole = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    expected = tuple(line for line in whole if line.strip())
    path = written(tmp_path_factory.mktemp("whole"), text)
    if "\r" in whole[0] and not "".join(whole[1:]) and len(whole) <= 2:
        assert "its lines end in CR alone" in message(path, read_corpus)
    else:
        assert (read_corpus(path) if expected else ()) == expected


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_refused(tmp_path: Path, encoding: str) -> None:
    path = written(tmp_path, TEXT.encode(encoding))
    at = 1 if encoding == "utf-16-le" else 0
    expected = f"exam.tsv:1: byte 0x00 at offset {at}: the file is UTF-16 or no text; save it as UTF-8"
    assert message(path, read_corpus) == message(path, read_questions) == message(path, read_columns) == expected


@pytest.mark.parametrize("end", ["", "\r", "\n", "\r\n"])
def test_lines_that_end_in_cr_alone_are_refused(tmp_path: Path, end: str) -> None:
    path = written(tmp_path, "pos\tgood\rneg\tbad" + end)
    for reader in (read_corpus, read_questions, read_columns):
        assert message(path, reader) == "exam.tsv: its lines end in CR alone; save it with LF or CRLF line ends"


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for reader in (read_corpus, read_questions, read_columns):
        for name in (tmp_path / "pipe", Path("/dev/null")):
            assert "it is a pipe, socket or device, not a file" in message(name, reader)


def test_questions_with_answers(tmp_path: Path) -> None:
    path = written(tmp_path, "\ufeffWhere?\tHere\r\n\r\nWhen?\tNow")
    assert read_questions(path) == (Question("Where?", "Here"), Question("When?", "Now"))


def test_an_examination_without_answers(tmp_path: Path) -> None:
    assert read_questions(written(tmp_path, "Where?\nWhen?\n")) == (Question("Where?", None), Question("When?", None))


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ("Where", "no tab between question and answer; "),
        ("Where?\tHere\tThere", "2 tabs; "),
        ("Where?\t\tHere", "2 tabs; "),
        ("\tHere", "the question before the tab is empty; "),
        (" \tHere", "the question before the tab is empty; "),
        ("Where?\t", "the answer after the tab is empty; "),
        ("Where?\t  ", "the answer after the tab is empty; "),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_malformed_line_is_named_with_its_number(tmp_path: Path, line: str, mistake: str, end: str) -> None:
    good = "Where?\tHere"
    path = written(tmp_path, end.join([good] * 14 + ["", "  ", line, good]) + end)
    assert message(path).startswith(f"exam.tsv:17: {mistake}")


def test_a_tab_in_the_last_line_alone_makes_the_first_a_mistake(tmp_path: Path) -> None:
    assert message(written(tmp_path, "Where?\nWhen?\tNow\n")).startswith("exam.tsv:1: no tab")


def field() -> st.SearchStrategy[str]:
    characters = st.characters(exclude_characters="\0\t\n\r\ufeff", exclude_categories=["Cs"])
    return st.text(characters, min_size=1).filter(lambda text: bool(text.strip()))


@given(st.lists(st.tuples(field(), field()), min_size=1))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]]) -> None:
    path = written(tmp_path_factory.mktemp("round"), "".join(f"{one}\t{other}\n" for one, other in pairs))
    assert read_questions(path) == tuple(Question(one, other) for one, other in pairs)


@given(st.lists(field(), min_size=1))
def test_questions_alone_are_read_as_written(tmp_path_factory: pytest.TempPathFactory, asked: list[str]) -> None:
    path = written(tmp_path_factory.mktemp("round"), "\r\n".join(asked))
    assert read_questions(path) == tuple(Question(one, None) for one in asked)


@given(st.text())
def test_a_line_is_parsed_or_refused_never_worse(line: str) -> None:
    try:
        parsed = parse_question(line, "exam.tsv:1")
    except DataError:
        return
    assert f"{parsed.question}\t{parsed.answer}" == line
