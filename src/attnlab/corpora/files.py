"""The user's own text files: a corpus with one document per line, and questions with or without answers.

Files come from other programs and systems, so every usual form is accepted (with or without a byte order mark, LF or CRLF,
with or without a final line end). Everything else is refused in one line that names the place and the fix. Knows nothing
about what the lines mean.
"""

from __future__ import annotations

import codecs
import difflib
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from attnlab.errors import DataError
from attnlab.reading import LARGEST, open_file

# UTF-32 first: its byte order mark begins with that of UTF-16.
_FOREIGN_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
# The forms of files that hold records instead of lines.
RECORDS = {".jsonl": "JSONL", ".ndjson": "JSONL", ".parquet": "parquet", ".arrow": "arrow"}


@dataclass(frozen=True)
class Question:
    """A question and its answer; None if the file has no answers."""

    question: str
    answer: str | None


def record_form(path: Path) -> str | None:
    """Return the form of a file of records, or None if it is plain text."""
    return RECORDS.get(path.suffix.lower())


def refuse_foreign(beginning: bytes, name: str) -> None:
    """Refuse a file that begins with the byte order mark of another encoding."""
    for mark, encoding in _FOREIGN_MARKS:
        if beginning.startswith(mark):
            raise DataError(f"{name}: the file is {encoding}; save it as UTF-8")


def decoded(data: bytes, name: str, number: int, offset: int) -> str:
    """Decode a line, or several, given the number of the first and its offset in the file."""
    if (at := data.find(0)) >= 0:
        number += data.count(b"\n", 0, at)
        raise DataError(
            f"{name}:{number}: byte 0x00 at offset {offset + at}: the file is UTF-16 or no text; save it as UTF-8"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        number += data.count(b"\n", 0, error.start)
        place = f"byte 0x{data[error.start]:02x} at offset {offset + error.start}"
        raise DataError(f"{name}:{number}: {place} is not UTF-8; save it as UTF-8") from None


def _nearest_file(path: Path) -> str:
    """What to do about a missing file: the most similar names in its folder, or check the path."""
    folder, names = path.parent, list[str]()
    with suppress(OSError):
        names = sorted(file.name for file in folder.iterdir() if file.is_file())
    near = difflib.get_close_matches(path.name, names, n=2)
    return f"did you mean {' or '.join(str(folder / name) for name in near)}?" if near else "check the path"


@contextmanager
def opened(path: Path, most: float = math.inf) -> Iterator[BufferedReader]:
    """Open a file of at most some bytes for reading; errors of the system become one line with the fix."""
    try:
        with open_file(path, most) as stream:
            yield stream
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; {_nearest_file(path)}") from None
    except (OSError, MemoryError) as error:
        why = getattr(error, "strerror", "it does not fit into memory")
        raise DataError(f"{path} cannot be read ({why}); name a text file, or save it as one") from None


def numbered_bytes(path: Path, stream: BufferedReader) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file with their numbers, counted from 1."""
    # Lines of bytes end only at line feeds: form feeds, U+0085 and U+2028 occur within lines of real text.
    for number, data in enumerate(iter(lambda: stream.readline(LARGEST), b""), start=1):
        if len(data) == LARGEST:
            raise DataError(f"{path.name}:{number}: the line is longer than {LARGEST // 10**6} MB; split it")
        yield number, data


def _every_line(path: Path, most: float = math.inf) -> Iterator[tuple[int, str]]:
    """Yield all lines with their numbers, counted from 1; only one is in memory at a time."""
    offset = 0
    with opened(path, most) as stream:
        for number, data in numbered_bytes(path, stream):
            end = 2 if data.endswith(b"\r\n") else data.endswith(b"\n")
            if number == 1:
                refuse_foreign(data, path.name)
                if b"\r" in data[: len(data) - end] and not stream.peek(1):
                    raise DataError(f"{path.name}: its lines end in CR alone; save it with LF or CRLF line ends")
            line = decoded(data[: len(data) - end], path.name, number, offset)
            offset += len(data)
            yield number, line.removeprefix("\ufeff") if number == 1 else line


def numbered_lines(path: str | Path, most: float = math.inf) -> Iterator[tuple[int, str]]:
    """Yield the non-blank lines with their numbers, counted from 1; only one is in memory at a time."""
    path, empty = Path(path), True
    for number, line in _every_line(path, most):
        if line.strip():
            empty = False
            yield number, line
    if empty:
        raise DataError(f"{path} is empty; it needs at least one line of text")


def parse_question(line: str, place: str) -> Question:
    """Parse a question and its answer from a line with exactly one tab."""
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
    """Read the questions of a file: `question<TAB>answer` per line, or questions alone if no line has a tab."""
    lines = tuple(numbered_lines(path, LARGEST))
    if not any("\t" in line for _, line in lines):
        return tuple(Question(line, None) for _, line in lines)
    return tuple(parse_question(line, f"{Path(path).name}:{number}") for number, line in lines)


def read_predictions(path: str | Path) -> tuple[str, ...]:
    """Read the predictions of a file, one per line; an empty line is an empty prediction."""
    return tuple(line.strip() for _, line in _every_line(Path(path), LARGEST))
