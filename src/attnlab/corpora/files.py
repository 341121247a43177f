"""The user's own text files: a corpus with one document a line, and questions with or without answers.

Why: the files come from other programs and other systems, so every usual form is accepted (with or without a byte order
mark, either kind of line end, with or without a last one) and everything else is refused in one line that says where
the mistake is and how to mend it.
It must not know what the lines mean: neither people nor places nor the built-in data.
"""

from __future__ import annotations

import codecs
import difflib
from dataclasses import dataclass
from pathlib import Path

from attnlab.errors import DataError

# The longer marks first: the mark of UTF-32 begins with that of UTF-16.
FOREIGN_MARKS = (
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


def decode(data: bytes, name: str) -> str:
    """The text of a file's bytes, without the byte order mark."""
    for mark, encoding in FOREIGN_MARKS:
        if data.startswith(mark):
            raise DataError(f"{name}: the file is {encoding}; save it as UTF-8")
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        place = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise DataError(f"{name}:{line}: {place} is not UTF-8; save it as UTF-8") from None


def nearest_file(path: Path) -> str:
    """What to do about a missing file: the nearest names in its folder, or where to look."""
    folder = path.parent
    names = sorted(one.name for one in folder.iterdir() if one.is_file()) if folder.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=2)
    return f"did you mean {' or '.join(str(folder / name) for name in near)}?" if near else "check the path"


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file with line feeds as the only line ends; a file without any text is refused."""
    path = Path(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a text file in it")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; {nearest_file(path)}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check its permissions") from None
    text = decode(data, path.name).replace("\r\n", "\n")
    if not text.strip():
        raise DataError(f"{path} is empty; it needs at least one line of text")
    return text


def numbered_lines(path: str | Path) -> tuple[tuple[int, str], ...]:
    """The lines that are not blank, each with its number in the file, counted from one."""
    # Not str.splitlines: form feeds, U+0085 and U+2028 occur inside the lines of real text.
    lines = enumerate(read_text(path).split("\n"), start=1)
    return tuple((number, line) for number, line in lines if line.strip())


def read_corpus(path: str | Path) -> tuple[str, ...]:
    """The documents of a file, one a line; blank lines are skipped."""
    return tuple(line for _, line in numbered_lines(path))


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
    lines = numbered_lines(path)
    if not any("\t" in line for _, line in lines):
        return tuple(Question(line, None) for _, line in lines)
    return tuple(parse_question(line, f"{Path(path).name}:{number}") for number, line in lines)
