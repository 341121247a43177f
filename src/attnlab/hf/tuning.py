"""What the studies of fine-tuning share: the model, the tables and the settings, and what must not change before a resume."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from attnlab.corpora.labelled import Column, Tables, built_in_tables, read_tables
from attnlab.errors import UserError
from attnlab.hf import BAG_OF_WORDS, FineTuning
from attnlab.hf.classify import TablesSummary, environment_with_packages, short_name
from attnlab.hf.documents import data_blocks, warnings_of
from attnlab.hf.loading import PACKAGES, load_encoder, locate, need_extra
from attnlab.report.document import Document, Facts, Section, section
from attnlab.report.parts import StudyResult, report_of, reproduce
from attnlab.studies.study import Study, checksums_of_files


@dataclass(frozen=True)
class TableFiles:
    """The files of labelled texts; without files, the built-in sentences."""

    train: Path | None = None
    dev: Path | None = None
    test: Path | None = None
    column: Column | None = None
    names: dict[str, str] = field(default_factory=dict)  # new names by the labels of the files

    @cached_property
    def tables(self) -> Tables:
        """The tables, read once and checked."""
        if self.train and self.dev:
            return read_tables(self.train, self.dev, self.test, self.column, self.names)
        return built_in_tables()


@dataclass(frozen=True, kw_only=True)
class TuningResult(StudyResult):
    """What the results of such studies have in common."""

    tables: TablesSummary
    verdict: tuple[str, ...]
    environment: dict[str, Any] = field(default_factory=environment_with_packages)


R = TypeVar("R", bound=TuningResult)


@dataclass(frozen=True, kw_only=True)
class Tuning(Study[R]):
    """A study that fine-tunes an encoder several times and judges on the validation table."""

    model: str
    texts: TableFiles
    settings: FineTuning

    packages: ClassVar[tuple[str, ...]] = PACKAGES

    @property
    def tables(self) -> Tables:
        """The tables of the study."""
        return self.texts.tables

    @property
    def judged(self) -> Tables:
        """The tables that a trial may see: all but the test table."""
        return replace(self.tables, test=None)

    def with_absolute_paths(self) -> Self:
        """Return the plan with paths that are valid in any folder."""
        folder, texts = Path(self.model).expanduser(), self.texts
        train, dev, test = (path.resolve() if path else None for path in (texts.train, texts.dev, texts.test))
        model = str(folder.resolve()) if folder.is_dir() else self.model
        return replace(self, model=model, texts=replace(texts, train=train, dev=dev, test=test))

    def check(self) -> None:
        """Refuse a model that cannot be fine-tuned."""
        if self.model == BAG_OF_WORDS:
            raise UserError(f"{BAG_OF_WORDS} has no optimizer and no epochs: name an encoder, or leave the option out")
        need_extra(*self.packages)
        load_encoder(self.model, self.tables.labels)

    def fingerprints(self) -> dict[str, str]:
        """Return checksums of the tables, and of the model's files if it is a folder; models of the hub are not checked."""
        sums = {f"{part} ({table.source})": table.sha256 for part, table in self.tables.parts.items()}
        place = Path(locate(self.model))
        files = [path for path in place.iterdir() if path.is_file()] if place.is_dir() else []
        return sums | checksums_of_files(files)

    def report(self, result: TuningResult, *sections: Section) -> Document:
        """Return the report: verdict, sections, the tables, and how to reproduce it."""
        facts = Facts("Study", [("Model", short_name(self.model)), ("Labels", ", ".join(result.tables.labels))])
        last = reproduce(result, facts, {"the study": asdict(self.settings)})
        data, notices = section("Data", *data_blocks(result.tables)), warnings_of(result.tables.warnings)
        return report_of(self.name, result, result.verdict, [*sections, *data, last], notices, "all trainings took")
