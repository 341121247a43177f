"""Built-in English sentences, with or without a topic, from the reference text and docstrings that every CPython carries.

Word-level models need several hundred thousand words of real English, classifiers need labelled text, and both are on every
machine already: the topics of `help()` (pydoc_data) and the docstrings of the standard library. The text is CPython's own,
copyright the Python Software Foundation, under its licence (`license()` prints it); this package contains no copy. It differs
slightly between versions of Python, so runs record its checksum. Knows nothing about tokens, models or results.

The topic of a labelled sentence follows from its module, and its part (train, dev, test) from its docstring, so that
sentences written together stay together. No sentence is in two parts, nor are sentences that differ in one word.
"""

from __future__ import annotations

import hashlib
import inspect
import platform
import re
import sysconfig
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from attnlab.errors import DataError
from attnlab.lm.tokenizers import split_sentences
from attnlab.reading import packaged_text

# Not part of every Python, or not English.
_LEFT_OUT = frozenset(
    {"test", "tests", "idlelib", "tkinter", "lib2to3", "distutils", "ensurepip", "turtledemo", "encodings"}
    | {"site-packages", "dist-packages", "pydoc_data", "config", "__pycache__"}
)

# Everything in a source file that may contain quotation marks, so that those of a docstring are recognised.
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

# (sign, pattern, replacement): the pattern is tried only if the text contains the sign.
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
# A word of an English sentence with its punctuation, a number or a dash.
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
_NO_TEXT = "this Python carries no help texts (pydoc_data and the sources of its library are missing): give a file"


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text, each on one line without list markers; code and tables are skipped.

    Within a block, a list marker or a smaller indent begins a new paragraph.
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
    """Join lines; after a hyphen at the end of a line, without a space."""
    text = " ".join(line.strip() for line in lines)
    label = _LABEL.match(text)
    return re.sub(r"(?<=[a-z]-) (?=[a-z])", "", text[label.end() :] if label else text)


def _without_markup(text: str) -> str:
    text = text.translate(_CURLY)
    for sign, pattern, instead in _MARKUP:
        if sign in text:
            text = pattern.sub(instead, text)
    return " ".join(text.split())


def _is_english(sentence: str) -> bool:
    """Whether a sentence consists of English words, is neither too short nor too long, and ends with a full stop."""
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
    """Yield the triple-quoted strings of a source file that begin a line."""
    for match in _STRINGS.finditer(source):
        text = match["double"] or match["single"]
        if text and not source[source.rfind("\n", 0, match.start()) + 1 : match.start()].strip():
            yield inspect.cleandoc(text)


def _library_files(folder: Path) -> Iterator[Path]:
    """The source files of the standard library, in the same order on every system."""
    for path in sorted(folder.iterdir() if folder.is_dir() else (), key=lambda path: path.name):
        if path.is_dir() and path.name not in _LEFT_OUT and not path.name.startswith(("config-", ".")):
            yield from _library_files(path)
        elif path.suffix == ".py":
            yield path


def _library_docstrings() -> Iterator[tuple[str, str]]:
    """The docstrings of the standard library, each after the name of its top-level module or package."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in _library_files(library):
        module = path.relative_to(library).with_suffix("").parts[0]
        for text in docstrings(path.read_text(encoding="utf-8", errors="replace")):
            yield module, text


def bare(sentence: str) -> str:
    """Return a sentence in lower case without punctuation, to compare copies of it."""
    return " ".join(re.findall(r"\w+", sentence.lower()))


def sentences_of(helps: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Return the English sentences of help texts in order, each once, with the number of the text that it comes from."""
    sentences: dict[str, tuple[str, int]] = {}
    for number, text in enumerate(helps):
        for paragraph in _paragraphs(text):
            for sentence in split_sentences(_without_markup(paragraph)):
                if _is_english(sentence):
                    sentences.setdefault(bare(sentence), (sentence, number))
    return tuple(sentences.values())


@cache
def _sentences() -> tuple[tuple[str, int], ...]:
    """The sentences of all help texts of this Python: the topics of help(), then the docstrings."""
    of_help: dict[str, str] = {}
    with suppress(ImportError):  # a minimal Python
        from pydoc_data.topics import topics as of_help
    return sentences_of([*(of_help[name] for name in sorted(of_help)), *(text for _, text in _library_docstrings())])


def part_of(text: str) -> str:
    """Return the part that a text belongs to, by its checksum: the same in every version; 80 % is for training."""
    digit = int(hashlib.sha256(bare(text).encode()).hexdigest(), 16) % 10
    return {8: "dev", 9: "test"}.get(digit, "train")


def load_prose(n: int | None = None, part: str | None = None) -> list[tuple[str, int]]:
    """Return all sentences or the first n; of these, all or those of one part, with the number of the help text of each."""
    sentences = _sentences()
    if n is not None and not 1 <= n <= len(sentences):
        raise DataError(f"there are {len(sentences)} sentences to choose from, not {n}: ask for 1 to {len(sentences)}")
    chosen = [pair for pair in sentences[:n] if part is None or part_of(pair[0]) == part]
    if not chosen:
        raise DataError(f"none of {n} sentences is in the part {part}: ask for more" if sentences else _NO_TEXT)
    return chosen


def licence() -> str:
    """Return the licence notice that a copy of the sentences needs."""
    return f"""# Licence of these sentences

Taken from the help topics and the docstrings of the standard library of Python {platform.python_version()},
Copyright (c) Python Software Foundation; All Rights Reserved, licensed under the Python Software Foundation
License, https://docs.python.org/3/license.html. Changed: cut into sentences, markup removed, and
everything left out that is not plain English.
"""


# Sentences with a topic

MODULES: dict[str, str] = tomllib.loads(packaged_text("corpora", "data", "topics.toml"))  # of Python, by topic
_TOPIC_OF = {module: topic for topic, modules in MODULES.items() for module in modules.split()}
_SHORTEST_LABELLED = 5  # words; a shorter sentence ("Return the value.") has no topic


def labelled_docstrings() -> Iterator[tuple[str, str]]:
    """Yield the topic and text of every docstring of the modules above."""
    return ((_TOPIC_OF[module], text) for module, text in _library_docstrings() if module in _TOPIC_OF)


def spellings(sentence: str) -> list[str]:
    """Return a bare sentence, and what is left of it without each of its words.

    Sentences that share one of these differ in at most one word: added, missing or replaced.
    """
    words = bare(sentence).split()
    return [" ".join(words[:at] + words[at + 1 :]) for at in range(len(words))] + [" ".join(words)]


def deduplicated(sentences: list[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    """Yield the rows (part, topic, sentence) whose sentence is new; sentences of two topics are dropped."""
    owners: dict[str, set[str]] = {}
    for _, topic, sentence in sentences:
        owners.setdefault(bare(sentence), set()).add(topic)
    seen: set[str] = set()
    for part, topic, sentence in sentences:
        if len(owners[bare(sentence)]) > 1:
            continue
        alike = spellings(sentence)
        if seen.isdisjoint(alike):
            seen.update(alike)
            yield part, topic, sentence


@cache
def topics() -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the parts train, dev and test, each a tuple of (topic, sentence)."""
    sentences = [
        (part_of(text), topic, sentence)
        for topic, text in labelled_docstrings()
        for sentence, _ in sentences_of([text])
        if len(sentence.split()) >= _SHORTEST_LABELLED
    ]
    rows = list(deduplicated(sentences))
    parts = {name: tuple(row[1:] for row in rows if row[0] == name) for name in ("train", "dev", "test")}
    if not all(parts.values()):
        raise DataError(_NO_TEXT)
    return parts
