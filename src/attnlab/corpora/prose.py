"""Built-in prose: English sentences from the reference text and the docstrings that every CPython carries.

Why: word-level models need some hundred thousand words of real English, and these are on every machine already: the topics
of `help()` (pydoc_data) and the docstrings of the standard library. The text is CPython's own, copyright the Python Software
Foundation, under its licence (`license()` prints it); no copy of it comes with this package. It differs a little between
versions of Python, so that runs record its checksum.
It must not know about tokens, models or results.
"""

from __future__ import annotations

import hashlib
import inspect
import platform
import re
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from attnlab.errors import DataError
from attnlab.word_split import split_sentences

# Not everywhere a part of Python, or not English.
_LEFT_OUT = frozenset(
    {"test", "tests", "idlelib", "tkinter", "lib2to3", "distutils", "ensurepip", "turtledemo", "encodings"}
    | {"site-packages", "dist-packages", "pydoc_data", "config", "__pycache__"}
)

# Everything in a source file that may hold quotation marks, so that those of a docstring are never mistaken.
_STRINGS = re.compile(
    r"""
      \#[^\n]*
    | [A-Za-z]{0,2} (?: \"\"\" (?P<double> (?: [^"\\] | \\. | "(?!"") )* ) \"\"\"
                      | \'\'\' (?P<single> (?: [^'\\] | \\. | '(?!'') )* ) \'\'\' )
    | " (?: [^"\\\n] | \\. )* "
    | ' (?: [^'\\\n] | \\. )* '
    """,
    re.VERBOSE | re.DOTALL,
)

# Where a text holds the sign, the pattern is replaced.
_MARKUP = (
    ("`", re.compile(r":[a-z]+(?::[a-z]+)?:`~?([^`<>]+)`"), r"\1"),  # :func:`name`
    ("`", re.compile(r"``?([^`]+)`?`"), r"\1"),
    ("*", re.compile(r"(?<!\w)\*\*?([^\s*][^*]*)\*\*?(?!\w)"), r"\1"),  # *name*, **strong**
    ('"', re.compile(r'"([\w.-]+)(?:\(\))?"'), r"\1"),  # "name()", as help() shows code
    ("()", re.compile(r"\b([A-Za-z]\w*)\(\)"), r"\1"),
    ("[", re.compile(r"\s*\[\d+\]"), ""),  # footnotes
    ("—", re.compile(r"\s*—\s*"), " -- "),
    (" - ", re.compile(r"(?<=[a-z)]) - (?=[a-z])"), " -- "),
)
_CURLY = str.maketrans("“”‘’", "\"\"''")
_LABEL = re.compile(r"(?:[-*+•]|\(?(?:\d+|[a-z])[.)]|(?:Note|Warning|Caution|CPython implementation detail):)\s+")
_STRANGE = (">>>", "::=", "+--", "|  ", " |", "****", "====", "----", "~~~~", "\\", "$ ")  # code, tables, headings
# What stands between two spaces in an English sentence: words, numbers, a dash, all with their punctuation.
_ENGLISH = re.compile(
    r"""["'(]* (?: [A-Za-z]+\d* (?: [-'/] [A-Za-z]+ )* '? | [A-Z] (?: \.[A-Z] )+ \.? | e\.g\.? | i\.e\.?
               | \d+ (?: [.,] \d+ )* (?: st | nd | rd | th | s | % | -[a-z]+ )? | -- )
        [)"']* [,.;:!?]* [)"']*""",
    re.VERBOSE,
)
_NAME = re.compile(r"""["'(]*\w+[)"']*[,.;:!?]*[)"']*""")  # __init__, follow_symlinks
_FREQUENT = """
a all an and are as at be by can for from has have if in is it may must no not of on or that the this to use used was when
which with you
"""
_COMMON = frozenset(_FREQUENT.split())
_BEGINNING = re.compile(r"""["'(]?[A-Z]""")
_ENDING = re.compile(r"""[\w)"'][.!?][)"']*$""")
_SHORTEST, _LONGEST = 3, 100  # words
NO_TEXT = "this Python carries no help texts (pydoc_data and the sources of its library are missing): give a file"


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a help text, each on one line, without marks of lists; what looks like code or a table is left out.

    Inside a block a new one begins at the mark of a list, and where the text moves back to the left.
    """
    for block in re.split(r"\n\s*\n", text):
        if any(mark in block for mark in _STRANGE):
            continue
        lines, begin = block.split("\n"), 0
        indents = [len(line) - len(line.lstrip()) for line in lines]
        for at in range(1, len(lines) + 1):
            if at == len(lines) or _LABEL.match(lines[at].lstrip()) or indents[at] < indents[begin]:
                yield _unwrapped(lines[begin:at])
                begin = at


def _unwrapped(lines: list[str]) -> str:
    """Lines joined to one; a hyphen at the end of a line joins without a space."""
    text = " ".join(line.strip() for line in lines)
    label = _LABEL.match(text)
    return re.sub(r"(?<=[a-z]-) (?=[a-z])", "", text[label.end() :] if label else text)


def plain(text: str) -> str:
    """A text without its markup."""
    text = text.translate(_CURLY)
    for sign, pattern, instead in _MARKUP:
        if sign in text:
            text = pattern.sub(instead, text)
    return " ".join(text.split())


def _is_english(sentence: str) -> bool:
    """Whether a sentence is made of English words only, of a fitting number, from a capital to a full stop."""
    words = sentence.split()
    if not (_SHORTEST <= len(words) <= _LONGEST and _BEGINNING.match(sentence) and _ENDING.search(sentence)):
        return False
    strange = [word for word in words if not _ENGLISH.fullmatch(word)]
    if len(strange) * 8 > len(words) or not all(map(_NAME.fullmatch, strange)):
        return False
    if sentence.count("(") != sentence.count(")") or sentence.count('"') % 2:
        return False
    known = sum(word.lower() in _COMMON for word in words)
    return known * 6 >= len(words) and sum(word[:1].islower() for word in words) * 2 >= len(words)


def docstrings(source: str) -> Iterator[str]:
    """The long strings of a source file that stand alone on their lines."""
    for match in _STRINGS.finditer(source):
        text = match["double"] or match["single"]
        if text and not source[source.rfind("\n", 0, match.start()) + 1 : match.start()].strip():
            yield inspect.cleandoc(text)


def library_files(folder: Path) -> Iterator[Path]:
    """The source files of the standard library, in an order that is the same everywhere."""
    for path in sorted(folder.iterdir() if folder.is_dir() else (), key=lambda one: one.name):
        if path.is_dir() and path.name not in _LEFT_OUT and not path.name.startswith(("config-", ".")):
            yield from library_files(path)
        elif path.suffix == ".py":
            yield path


def texts() -> Iterator[str]:
    """All help texts of this Python: the topics of help(), then the docstrings."""
    with suppress(ImportError):  # a Python cut down to the bones
        from pydoc_data.topics import topics

        yield from (topics[name] for name in sorted(topics))
    for path in library_files(Path(sysconfig.get_path("stdlib"))):
        yield from docstrings(path.read_text(encoding="utf-8", errors="replace"))


def bare(sentence: str) -> str:
    """A sentence without what may differ between copies of it: case, punctuation, quotation marks."""
    return " ".join(re.findall(r"\w+", sentence.lower()))


def sentences_of(helps: Iterable[str]) -> tuple[str, ...]:
    """The English sentences of some help texts, each once, in order."""
    found: dict[str, str] = {}
    for text in helps:
        for paragraph in paragraphs(text):
            for sentence in split_sentences(plain(paragraph)):
                if _is_english(sentence):
                    found.setdefault(bare(sentence), sentence)
    return tuple(found.values())


@cache
def sentences() -> tuple[str, ...]:
    """All sentences of this Python."""
    return sentences_of(texts())


def _part_of(sentence: str) -> str:
    """The part a sentence belongs to, by its checksum: the same in every version, eight tenths of them for training."""
    digit = int(hashlib.sha256(bare(sentence).encode()).hexdigest(), 16) % 10
    return {8: "dev", 9: "test"}.get(digit, "train")


def load_prose(n: int | None = None, part: str | None = None) -> tuple[str, ...]:
    """All sentences or the first n, and of these all or those of one part."""
    found = sentences()
    if n is not None and not 1 <= n <= len(found):
        raise DataError(f"there are {len(found)} sentences to choose from, not {n}: ask for 1 to {len(found)}")
    chosen = tuple(one for one in found[:n] if part is None or _part_of(one) == part)
    if not chosen:
        raise DataError(f"none of {n} sentences is in the part {part}: ask for more" if found else NO_TEXT)
    return chosen


def licence() -> tuple[str, ...]:
    """What must be said with a copy of the sentences."""
    return (
        "# Licence of these sentences",
        "",
        f"Taken from the help topics and the docstrings of the standard library of Python {platform.python_version()},",
        "Copyright (c) Python Software Foundation; All Rights Reserved, licensed under the Python Software Foundation",
        "License, https://docs.python.org/3/license.html. Changed: cut into sentences, markup removed, and",
        "everything left out that is not plain English.",
    )
