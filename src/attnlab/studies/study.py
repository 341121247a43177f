"""What all studies share: a plan, a check before training, a folder that can be resumed, a typed result, a report.

A study is a class. Its fields are its plan: the options of its command, and the content of study.json. Its methods are
called in this order: `completed`, `check`, `train`, `judge`, `document`. Starting, locking, resuming and refusing changed
data are implemented here, once for all studies:

    @study("lengths")
    class Lengths(Study[LengthsResult]):
        '''Test how accuracy depends on the length of a name.'''

        corpus: Corpus = "people"

        def train(self, folder, console): ...
        def judge(self, folder, console) -> LengthsResult: ...
        def document(self, result): ...
"""

from __future__ import annotations

import shlex
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, cast, dataclass_transform, get_type_hints

import msgspec
from rich.console import Console

from attnlab import corpora, registry
from attnlab.config import Settings, code_named_in
from attnlab.corpora import Corpus, Question, RunningText
from attnlab.errors import ConfigError, DataError, Interrupted, UserError
from attnlab.lm import stages
from attnlab.lm.tokenizers import Tokenizer
from attnlab.reading import read_bytes
from attnlab.report import screen, write_document
from attnlab.report.document import Document
from attnlab.report.parts import StudyResult
from attnlab.store import records
from attnlab.store.folders import add_files, digest, is_written, locked, refuse_existing, write_folder
from attnlab.studies import options as opt

_STUDY, _RESULT = "study.json", "result.json"


R = TypeVar("R", bound=StudyResult)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def study(name: str, *, own_command: bool = False) -> Any:
    """Register a class as a study and make it a frozen dataclass.

    It becomes `attnlab run NAME`, unless a command of its own starts it.
    """

    def decorate(cls: Any) -> Any:
        registered = registry.study(name)(dataclass(frozen=True, kw_only=True)(cls))
        registered.name, registered.own_command = name, own_command
        # Types of inherited fields are names of the module that declares them, where the parser of commands does not look.
        registered.__init__.__annotations__ = get_type_hints(cls, include_extras=True)
        return registered

    return decorate


@dataclass(frozen=True)
class StoredStudy:
    """The content of study.json."""

    study: str  # its name, or the path of a user's file with the name of the class
    plan: msgspec.Raw
    fingerprints: dict[str, str]


@dataclass(frozen=True)
class Outcome(Generic[R]):
    """A finished study with its result; notebooks show it as its report."""

    study: Study[R]
    result: R

    @property
    def document(self) -> Document:
        """The report."""
        return self.study.document(self.result)

    def _repr_html_(self) -> str:
        return self.document._repr_html_()


@dataclass(frozen=True, kw_only=True)
class Study(Generic[R]):
    """A whole experiment; its fields are its plan."""

    quick: opt.Quick = False
    command: opt.Hidden[str] = ""  # as it was typed

    name: ClassVar[str]
    own_command: ClassVar[bool]
    sources: ClassVar[tuple[str, ...]] = ()  # fields that name data

    def completed(self) -> Self:
        """Return the plan with the defaults that depend on other options."""
        return self

    def check(self) -> None:
        """Raise an error for settings or data that cannot be used, before anything is trained."""

    @abstractmethod
    def train(self, folder: Path, console: Console) -> None:
        """Start or resume what is not trained yet."""

    @abstractmethod
    def judge(self, folder: Path, console: Console) -> R:
        """Measure and judge what is trained."""

    @abstractmethod
    def document(self, result: R) -> Document:
        """Return the report of a result."""

    def fingerprints(self) -> dict[str, str]:
        """Return checksums of the data and files that must not change before a resume."""
        return self.data.checksums({key: getattr(self, key) for key in self.sources})

    def complete_result(self, result: R, seconds: float) -> R:
        """Return the result of `judge` with what the study knows; it took so many seconds, unless it says otherwise."""
        return replace(result, kind=self.name, command=self.command, seconds=result.seconds or round(seconds, 1))

    def files(self) -> dict[str, bytes]:
        """Return files to store beside study.json."""
        return {}

    def hint(self, folder: Path, result: R) -> str:
        """Return what to try next, if there is something."""
        return ""

    @cached_property
    def data(self) -> Datasets:
        """What the study has read."""
        return Datasets()

    # Starting and resuming

    def begin(self, folder: Path, console: Console) -> Outcome[R]:
        """Start the study in a new folder; errors are found before the folder is created."""
        refuse_existing(folder)
        self._result_type()
        plan = self.completed().with_absolute_paths()
        plan.check()
        write_folder(folder, "study", {_STUDY: plan.study_json(), **plan.files()})
        return plan.resume(folder, console)

    def resume(self, folder: Path, console: Console) -> Outcome[R]:
        """Do what is not done yet and show the result; when stopped, say how to resume."""
        try:
            with locked(folder):
                outcome = Outcome(self, self._result(folder, console))
        except (Interrupted, KeyboardInterrupt):
            command = f"attnlab resume {shlex.quote(str(folder))}"
            raise Interrupted(f"stopped; everything is saved. Resume with: {command}") from None
        screen.show(outcome.document, console)
        console.print(f"report: {folder / 'report.html'}", soft_wrap=True)
        if hint := self.hint(folder, outcome.result):
            console.print(hint, soft_wrap=True, highlight=False)
        return outcome

    def read_result(self, folder: Path) -> R:
        """Read the result of a finished study."""
        return records.read(self._result_type(), folder / _RESULT)

    def read_document(self, folder: Path) -> Document:
        """Return the report of a finished study."""
        return self.document(self.read_result(folder))

    def _result_type(self) -> type[R]:
        """The record that `judge` declares to return."""
        kind = get_type_hints(type(self).judge).get("return")
        if not (isinstance(kind, type) and issubclass(kind, StudyResult)):
            raise ConfigError(
                f"judge of {type(self).__name__} must declare the record that it returns: def judge(...) -> MyResult,"
                " where MyResult is a StudyResult"
            )
        return cast("type[R]", kind)

    def _result(self, folder: Path, console: Console) -> R:
        """The stored result; a study without one is trained and judged first."""
        if not is_written(folder / _RESULT):
            self.refuse_changes(folder)
            self.train(folder, console)
            began = time.perf_counter()
            result = self.complete_result(self.judge(folder, console), time.perf_counter() - began)
            content = records.encode(result)
            # The report shows what is stored, so that one written again later cannot differ.
            write_document(self.document(records.decode(type(result), content, folder / _RESULT)), folder)
            add_files(folder, {_RESULT: content})
        return self.read_result(folder)

    def study_json(self) -> bytes:
        """Return the content of study.json."""
        plan = msgspec.Raw(records.encode(self))
        return records.encode(StoredStudy(_reference(type(self)), plan, self._all_fingerprints()))

    def refuse_changes(self, folder: Path) -> None:
        """Refuse to resume if data, settings or code have changed since the study began."""
        before, now = records.read(StoredStudy, folder / _STUDY).fingerprints, self._all_fingerprints()
        changed = [name for name in before if now.get(name) != before[name]]
        if changed:
            raise UserError(
                f"{', '.join(changed)} changed since this study began, and its runs would not belong together:"
                " restore what changed, or start a new study"
            )

    def with_absolute_paths(self) -> Self:
        """Return the plan with paths that are valid in any folder."""
        named: dict[str, Any] = {key: stages.absolute(name) for key in self.sources if (name := getattr(self, key))}
        return replace(self, **named)

    def _all_fingerprints(self) -> dict[str, str]:
        """The checksums of the study, and of the file that its class is in, if a user wrote it."""
        reference = _reference(type(self))
        files = [Path(reference.rpartition(":")[0])] if ".py:" in reference else []
        return self.fingerprints() | checksums_of_files(files)


def _reference(cls: type[Study[Any]]) -> str:
    """The name of a study, or the path of the user's file with the name of the class."""
    path = registry.file_of(cls)
    return f"{path}:{cls.__name__}" if path else cls.name


def find(name: str) -> type[Study[Any]]:
    """Return the study of this name, or the class `path.py:Name` of a user's file."""
    cls = registry.find("study", name).build
    if not (isinstance(cls, type) and issubclass(cls, Study) and hasattr(cls, "name")):
        raise ConfigError(f"{name} is not a study: make it a class of Study with the decorator @study(NAME)")
    return cls


def load(folder: Path) -> Study[Any]:
    """Read the plan of a study folder; the caller sees to it that code named in it may run."""
    stored = records.read(StoredStudy, folder / _STUDY)
    return records.decode(find(stored.study), bytes(stored.plan), folder / _STUDY)


def code_of(folder: Path, *, to_train: bool) -> list[str]:
    """List the classes in users' files that a stored study needs: its own, and to train those that its plan names."""
    stored = records.read(StoredStudy, folder / _STUDY)
    named = code_named_in(records.decode(dict, bytes(stored.plan), folder / _STUDY)) if to_train else []
    return [*named, *([stored.study] if ".py:" in stored.study else [])]


def files_named_in(config: Path | str | None, given: Settings) -> list[Path]:
    """List a settings file, and the users' files whose classes it or given settings name."""
    code = code_named_in({"file": str(config) if config else None, "given": given})
    return [*([Path(config)] if config else []), *(Path(name.rpartition(":")[0]).resolve() for name in code)]


def checksums_of_files(paths: list[Path]) -> dict[str, str]:
    """Return the checksums of users' files by path."""
    sums = {}
    for path in paths:
        try:
            sums[str(path)] = digest(read_bytes(path))
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}), and the study needs it: restore it") from None
    return sums


# Data


class Datasets:
    """Corpora and questions by name, each read once, with the tokenizers learned from them."""

    def __init__(self) -> None:
        self.corpus = cache(corpora.load_corpus)
        self.text = cache(corpora.open_text)
        self.questions = cache(corpora.load_questions)
        self._tokenizers: dict[Any, Tokenizer] = {}

    def answered(self, name: str) -> tuple[Question, ...]:
        """Return questions by name; one without an answer is an error."""
        blank = next((item.question for item in self.questions(name) if item.answer is None), None)
        if blank is not None:
            raise DataError(f"{name}: the question {blank!r} has no answer; write QUESTION<TAB>ANSWER on every line")
        return self.questions(name)

    def checksums(self, names: Mapping[str, str | None]) -> dict[str, str]:
        """Return the checksums of named data by use: `corpus` and `dev` are texts, all others are questions."""
        return {
            use: self.corpus(name).sha256 if use in ("corpus", "dev") else stages.checksum(self.questions(name))
            for use, name in names.items()
            if name
        }

    def sources(self, corpus: str | None, facts: str | None, running: bool = False) -> stages.Sources:
        """Return the training data of a stage, by name; running text is only opened."""
        text = None if corpus is None else self.text(corpus) if running else self.corpus(corpus)
        return self.in_memory(text, self.questions(facts) if facts is not None else (), facts)

    def in_memory(
        self, corpus: Corpus | RunningText | None, facts: tuple[Question, ...], source: str | None = None
    ) -> stages.Sources:
        """Return training data that is in memory."""
        return stages.Sources(corpus, facts, source, tokenizers=self._tokenizers)
