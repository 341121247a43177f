"""Data by name: built-in data, or the path of a file. Every command and setting names its data with one string.

    people, people:300                            the corpus: all people, or 300 of them
    people:x4, people:300:x4                      4 lines per person, each in another sentence form; the first as in people
    people:train, people:dev, people:300:test     the questions about them, whatever the number of forms; dev is for
                                                  choosing, people:calibration for calibrating
    prose, prose:2000                             English sentences: all, or the first 2,000
    prose:train, prose:dev, prose:2000:test       parts of them that share no sentence
    stories, stories:2000                         small stories made from a grammar: 10,000, or as many as named
    stories:train, stories:dev, stories:2000:test parts of them; where questions are read, one question about each story
    addition, addition:4                          sums of numbers of 3 digits, or as many as named
    addition:train, addition-reversed:4:test      parts of them, as lines or as questions; with the digits of sums reversed
    anything else, and ./people                   a file

Knows nothing about what the data is used for.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnlab.corpora import addition, people, prose, stories
from attnlab.corpora.files import Question, numbered_lines, read_questions, record_form
from attnlab.corpora.library import Corpus
from attnlab.errors import DataError, unknown
from attnlab.machine import memory_free
from attnlab.reading import packaged_text
from attnlab.store.folders import write_folder

_SENTENCES = ("train", "dev", "test")
_PARTS = {"people": ("train", "dev", "calibration", "test"), "prose": _SENTENCES, "stories": _SENTENCES}
_SUMS = ("addition", "addition-reversed")
_PARTS |= dict.fromkeys(_SUMS, _SENTENCES)
_ASKED = ("stories", *_SUMS)  # parts that are text, or questions, where these are read
_TEXTS = ("people", *(f"{name}{part}" for name in ("prose", *_ASKED) for part in ("", ":train", ":dev", ":test")))
_LICENCES = {
    "people": "The text is made from the Lahman Baseball Database (SABR), CC BY-SA 3.0: share what you make of it under the"
    " same licence, and name the source.",
    "prose": "The text is that of Python itself, © Python Software Foundation, under its licence.",
    **dict.fromkeys(_ASKED, "The text is made by attnlab, and is under its licence."),
}
_UNKNOWN_LICENCE = "The licence of your own data is not known: check it before you share the model."
# Bytes of memory per byte of a file of lines: with what tasks make of them, and with their headings only.
_PER_BYTE, _PER_BYTE_OF_LOOKUP = 20, 4


@dataclass(frozen=True)
class _BuiltIn:
    """Built-in data: its name, how many people, sentences or stories (None: the usual), which part (None: all), forms."""

    name: str
    n: int | None
    part: str | None
    forms: int = 1


def _built_in(source: str | Path) -> _BuiltIn | None:
    """The built-in data that a source names, or None if it names a file."""
    if not str(source).strip():
        raise DataError("the name of the data is empty: name a file, or people, prose, stories or addition (built in)")
    name = "" if isinstance(source, Path) else source.split(":")[0]
    if isinstance(source, Path) or name not in _PARTS:
        return None
    number = "[0-9]{1,9}"
    match = re.fullmatch(rf"{name}(?::({number}))?(?::x({number}))?(?::({'|'.join(_PARTS[name])}))?", source)
    if match is None or (match[2] and name != "people"):
        size = re.match(rf"{name}:[0-9]+(?=:)", source)
        prefix = size.group() if size else name
        names = [prefix, *(f"{prefix}:{part}" for part in _PARTS[name])] + [f"{prefix}:x4"] * (name == "people")
        raise DataError(unknown("built-in data", source, names) + f" (a file of that name is ./{source})")
    n, forms, part = match.groups()
    if forms and not 1 <= int(forms) <= people.MOST_FORMS:
        raise DataError(f"{source}: a person is described in 1 to {people.MOST_FORMS} forms, not in {int(forms)}")
    return _BuiltIn(name, int(n) if n else None, part, int(forms or 1))


def is_built_in(source: str | Path) -> bool:
    """Whether a source names built-in data."""
    return _built_in(source) is not None


def check_name(source: str | Path, choices: Sequence[str]) -> None:
    """Refuse a missing file whose name looks like a mistyped name of built-in data."""
    name = str(source)
    head = name.split(":")[0]
    if not os.access(name, os.F_OK) and difflib.get_close_matches(head, _PARTS, cutoff=0.7):
        raise DataError(unknown("file or built-in data", name, choices))


def lines_of(source: str | Path) -> Iterator[str]:
    """Yield the lines of a corpus one at a time; those of a file are not kept in memory."""
    if is_built_in(source):
        return iter(load_corpus(source).lines)
    check_name(source, _TEXTS)
    return (line for _, line in numbered_lines(source))


def load_corpus(source: str | Path, *, lookup: bool = False) -> Corpus:
    """Load a corpus by name or path; only to look lines up in it takes less memory than training on them."""
    data = _built_in(source)
    if data is None:
        check_name(source, _TEXTS)
        if lookup:
            _require_memory(Path(source), _PER_BYTE_OF_LOOKUP, "split it")
        else:
            _require_memory(Path(source), _PER_BYTE, "train with --task.name text, which reads it from disk")
        return _from_file(source)
    if data.name == "prose":
        return Corpus(str(source), *zip(*prose.load_prose(data.n, data.part), strict=True))
    if data.name == "stories":
        return Corpus(str(source), tuple(story.text for story in stories.load_stories(data.n, data.part)))
    if data.name in _SUMS:
        return Corpus(str(source), tuple(f"{item.question}{item.answer}" for item in _sums(data)))
    if data.part is not None:
        corpus = str(source).removesuffix(f":{data.part}")
        raise DataError(f"{source} names questions, not a corpus; the corpus is {corpus}")
    return Corpus(str(source), people.biographies(people.load_people(data.n), forms=data.forms))


def _from_file(source: str | Path) -> Corpus:
    """The lines of a file; blank lines, if there are any, separate documents of several lines."""
    lines: list[str] = []
    blank: list[int] = []  # lines before each, plus 1
    for number, line in numbered_lines(source):
        blank.append(number - len(lines))
        lines.append(line)
    return Corpus(str(source), tuple(lines), tuple(blank) if blank[0] != blank[-1] else None)


def _require_memory(path: Path, per_byte: float, advice: str) -> None:
    """Refuse a file whose lines, with what is made of them, do not fit into memory."""
    free = memory_free()
    needed = per_byte * path.stat().st_size if path.is_file() else 0
    if free is not None and needed > free:
        raise DataError(
            f"{path} needs about {needed / 1e9:.1f} GB of memory line by line, and {free / 1e9:.1f} GB are free: {advice}"
        )


def load_questions(source: str | Path) -> tuple[Question, ...]:
    """Load questions by name or path."""
    data = _built_in(source)
    if data is None:
        check_name(source, [f"{name}:{part}" for name in ("people", *_ASKED) for part in _PARTS[name]])
        return read_questions(source)
    if data.name == "prose":
        raise DataError(f"{source} names sentences, and there are no questions about them; choose people:train")
    if data.part is None:
        choices = " or ".join(f"{source}:{part}" for part in _PARTS[data.name])
        raise DataError(f"{source} names a corpus, not questions; choose {choices}")
    if data.name == "stories":
        return stories.questions(stories.load_stories(data.n, data.part))
    if data.name in _SUMS:
        return _sums(data)
    return people.questions(people.split(people.load_people(data.n))[data.part])


def _sums(data: _BuiltIn) -> tuple[Question, ...]:
    """The sums that a source names."""
    return addition.problems(data.n, data.part, data.name == "addition-reversed")


def training_text(name: str) -> str:
    """Return the text to train on of built-in data: all people, since exams ask about what was read; else the part train."""
    return name if name.startswith("people") else f"{name}:train"


def has_questions(source: str | Path, *, text: bool = True) -> bool:
    """Whether held-out data are questions: a part of people, or a file whose first line has a tab.

    A part of stories or sums is text where a `text` is read, and questions elsewhere.
    """
    data = _built_in(source)
    if data is not None:
        return data.part is not None and (data.name == "people" or (data.name in _ASKED and not text))
    return Path(source).is_file() and not record_form(Path(source)) and "\t" in next(lines_of(source))


def as_table(questions: tuple[Question, ...]) -> tuple[str, ...]:
    """Return questions as lines of the user's file format."""
    return tuple(item.question if item.answer is None else f"{item.question}\t{item.answer}" for item in questions)


def export(source: str, folder: str | Path) -> tuple[Path, ...]:
    """Write built-in data and its licence as files in the user's format into a new folder; return their paths."""
    data = _built_in(source)
    if data is None:
        raise DataError(
            f"{source} is not built-in data; export people, people:300 for 300 of them, prose, stories or addition"
        )
    if data.name != "people" and data.part is not None:
        raise DataError(f"{source} is a part; export {source.removesuffix(f':{data.part}')}, which writes all parts")
    if data.name != "people":
        texts = {f"{part}.txt": load_corpus(f"{source}:{part}").lines for part in _SENTENCES}
        licence = prose.licence() if data.name == "prose" else f"# Licence\n\n{_LICENCES[data.name]}\n"
        if data.name in _ASKED:
            texts |= {f"{part}.tsv": as_table(load_questions(f"{source}:{part}")) for part in _SENTENCES}
    else:
        texts = {"corpus.txt": load_corpus(source).lines}
        texts |= {f"{part}.tsv": as_table(load_questions(f"{source}:{part}")) for part in _PARTS["people"]}
        licence = packaged_text("corpora", "data", "LICENSE-DATA.md")
    files = {name: "".join(f"{line}\n" for line in lines).encode() for name, lines in texts.items()}
    files["LICENSE-DATA.md"] = licence.encode()
    write_folder(Path(folder), "corpus", files, about="built-in data")
    return tuple(Path(folder) / name for name in files)


# For model cards


def licences_of(sources: Iterable[str]) -> list[str]:
    """Return what is known about the licences of data, each once."""
    names = (source.split(":")[0] if source and is_built_in(source) else "" for source in sources)
    return sorted({_LICENCES.get(name, _UNKNOWN_LICENCE) for name in names})


def public_name(source: str) -> str:
    """Return the name of data without the folders of this machine."""
    return source if is_built_in(source) else source.replace("\\", "/").rsplit("/", 1)[-1]
