"""The user's own text files: a corpus with one document a line, and questions with or without answers.

Why: the files come from other programs and other systems, so every usual form is accepted (with or without a byte order
mark, either kind of line end, with or without a last one) and everything else is refused in one line that says where
the mistake is and how to mend it.
It must not know what the lines mean: neither people nor places nor the built-in data.
"""

from __future__ import annotations

import codecs
import difflib
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from attnlab.errors import DataError

# The longer marks first: the mark of UTF-32 begins with that of UTF-16.
_FOREIGN_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


@dataclass(frozen=True)
class Question:
    """A question and its answer, or None where the file has no answers."""

    question: str
    answer: str | None


def _refuse_foreign(beginning: bytes, name: str) -> None:
    """Refuses a file that begins with the mark of another encoding."""
    for mark, encoding in _FOREIGN_MARKS:
        if beginning.startswith(mark):
            raise DataError(f"{name}: the file is {encoding}; save it as UTF-8")


def _decode(data: bytes, name: str, number: int, offset: int) -> str:
    """The text of a line, given its number in the file and where it begins."""
    if (at := data.find(0)) >= 0:
        raise DataError(
            f"{name}:{number}: byte 0x00 at offset {offset + at}: the file is UTF-16 or no text; save it as UTF-8"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        place = f"byte 0x{data[error.start]:02x} at offset {offset + error.start}"
        raise DataError(f"{name}:{number}: {place} is not UTF-8; save it as UTF-8") from None


def _nearest_file(path: Path) -> str:
    """What to do about a missing file: the nearest names in its folder, or where to look."""
    folder, names = path.parent, list[str]()
    with suppress(OSError):
        names = sorted(one.name for one in folder.iterdir() if one.is_file())
    near = difflib.get_close_matches(path.name, names, n=2)
    return f"did you mean {' or '.join(str(folder / name) for name in near)}?" if near else "check the path"


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """A file to be read; what the system says against it becomes one line with the remedy."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise DataError(f"{path} is a folder; name a text file in it")
        if not stat.S_ISREG(mode):
            raise DataError(f"{path} is a pipe or a device, and text is read more than once; save it to a file first")
        with path.open("rb") as stream:
            yield stream
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; {_nearest_file(path)}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check its permissions") from None


def numbered_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, each with its number in the file, counted from one; one at a time is in memory."""
    path, offset, empty = Path(path), 0, True
    with opened(path) as stream:
        # Lines of bytes end at line feeds alone: form feeds, U+0085 and U+2028 occur inside the lines of real text.
        for number, data in enumerate(stream, start=1):
            end = 2 if data.endswith(b"\r\n") else data.endswith(b"\n")
            if number == 1:
                _refuse_foreign(data, path.name)
                if b"\r" in data[: len(data) - end] and not stream.peek(1):
                    raise DataError(f"{path.name}: its lines end in CR alone; save it with LF or CRLF line ends")
            line = _decode(data[: len(data) - end], path.name, number, offset)
            offset += len(data)
            line = line.removeprefix("\ufeff") if number == 1 else line
            if line.strip():
                empty = False
                yield number, line
    if empty:
        raise DataError(f"{path} is empty; it needs at least one line of text")


def documents(path: str | Path) -> Iterator[str]:
    """The documents of a file, one a line and one at a time; blank lines are skipped."""
    return (line for _, line in numbered_lines(path))


def parse_question(line: str, place: str) -> Question:
    """A question and its answer from a line with exactly one tab."""
    parts = line.split("\t")
    if len(parts) == 1:
        raise DataError(f"{place}: no tab between question and answer; other lines have one, so add it here too")
    if len(parts) > 2:
        raise DataError(f"{place}: {len(parts) - 1} tabs; leave only the one between question and answer")
    question, answer = parts
    if not question.strip():
        raise DataError(f"{place}: the question before the tab is empty; write one or remove the line")
    if not answer.strip():
        raise DataError(f"{place}: the answer after the tab is empty; write one or remove the line")
    return Question(question, answer)


def read_questions(path: str | Path) -> tuple[Question, ...]:
    """The questions of a file, `question<TAB>answer` a line, or only questions where no line has a tab."""
    lines = tuple(numbered_lines(path))
    if not any("\t" in line for _, line in lines):
        return tuple(Question(line, None) for _, line in lines)
    return tuple(parse_question(line, f"{Path(path).name}:{number}") for number, line in lines)
