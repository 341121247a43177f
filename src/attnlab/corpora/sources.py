"""Where text comes from: the name of built-in data, or the path of a file.

Why: every command and every setting names its data with one string, and this is the one place that understands it.
It must not know what the data is used for.

    people, people:300                            the corpus, all of it or 300 people
    people:train, people:dev, people:300:test     the questions about them
    anything else, and ./people                   a file
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from attnlab.corpora import people
from attnlab.corpora.files import Question, read_corpus, read_questions
from attnlab.corpora.library import Corpus
from attnlab.errors import DataError, OutputExists, StorageError, unknown

BUILT_IN = "people"
PARTS = ("train", "dev", "test")


@dataclass(frozen=True)
class BuiltIn:
    """Built-in data: how many people (None for all) and which part of the questions (None for the corpus)."""

    n: int | None
    part: str | None

    def people(self) -> tuple[people.Person, ...]:
        """Everybody in this world, whichever part is asked for."""
        return people.load_people(self.n)


def built_in(source: str | Path) -> BuiltIn | None:
    """The built-in data that a source names, or None where it names a file."""
    if isinstance(source, Path) or source.split(":")[0] != BUILT_IN:
        return None
    match = re.fullmatch(rf"{BUILT_IN}(?::([0-9]+))?(?::({'|'.join(PARTS)}))?", source)
    if match is None:
        size = re.match(rf"{BUILT_IN}:[0-9]+(?=:)", source)
        prefix = size.group() if size else BUILT_IN
        names = [prefix, *(f"{prefix}:{part}" for part in PARTS)]
        raise DataError(unknown("built-in data", source, names) + f" (a file of that name is ./{source})")
    n, part = match.groups()
    return BuiltIn(int(n) if n else None, part)


def is_built_in(source: str | Path) -> bool:
    """Whether a source names built-in data."""
    return built_in(source) is not None


def check_name(source: str | Path, choices: list[str]) -> None:
    """Refuses a path that does not exist and looks like a mistyped name of built-in data."""
    name = str(source)
    head = name.split(":")[0]
    if not Path(name).exists() and difflib.get_close_matches(head, [BUILT_IN], cutoff=0.7):
        raise DataError(unknown("file or built-in data", name, choices))


def load_corpus(source: str | Path) -> Corpus:
    """The corpus that a source names."""
    data = built_in(source)
    if data is None:
        check_name(source, [BUILT_IN])
        return Corpus(str(source), read_corpus(source))
    if data.part is not None:
        corpus = str(source).removesuffix(f":{data.part}")
        raise DataError(f"{source} names questions, not a corpus; the corpus is {corpus}")
    return Corpus(str(source), people.biographies(data.people()))


def load_questions(source: str | Path) -> tuple[Question, ...]:
    """The questions that a source names."""
    data = built_in(source)
    if data is None:
        check_name(source, [f"{BUILT_IN}:{part}" for part in PARTS])
        return read_questions(source)
    if data.part is None:
        choices = " or ".join(f"{source}:{part}" for part in PARTS)
        raise DataError(f"{source} names a corpus, not questions; choose {choices}")
    parts = people.split(data.people())
    return people.questions({"train": parts.train, "dev": parts.dev, "test": parts.test}[data.part])


def as_table(questions: tuple[Question, ...]) -> tuple[str, ...]:
    """Questions as lines of the users' format."""
    return tuple(one.question if one.answer is None else f"{one.question}\t{one.answer}" for one in questions)


def export(source: str, folder: str | Path) -> tuple[Path, ...]:
    """Writes a built-in corpus, its questions and its licence as files of the users' format; returns their paths."""
    data = built_in(source)
    if data is None:
        raise DataError(f"{source} is not built-in data; export {BUILT_IN}, or {BUILT_IN}:300 for 300 people")
    folder = Path(folder)
    texts = {"corpus.txt": load_corpus(source).lines}
    texts |= {f"{part}.tsv": as_table(load_questions(f"{source}:{part}")) for part in PARTS}
    licence = resources.files("attnlab.corpora").joinpath("data", "LICENSE-DATA.md").read_text(encoding="utf-8")
    texts["LICENSE-DATA.md"] = tuple(licence.removesuffix("\n").split("\n"))
    if folder.exists() and not folder.is_dir():
        raise OutputExists(f"{folder} is a file; name a new folder")
    taken = [name for name in texts if (folder / name).exists()]
    if taken:
        raise OutputExists(f"{folder} already holds {', '.join(taken)}; name a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, lines in texts.items():
            (folder / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
    except OSError as error:
        raise StorageError(f"{folder} cannot be written ({error.strerror}); choose another folder") from None
    return tuple(folder / name for name in texts)
