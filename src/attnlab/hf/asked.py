"""What the studies of fine-tuning share: model, tables and settings as they were asked for, kept so that a study can go on
from any folder, and checksums that tell when something has changed under it. It must not know what is compared or searched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from attnlab.corpora.labelled import Column, Tables, built_in_tables, read_tables
from attnlab.errors import UserError
from attnlab.hf import FineTuning
from attnlab.hf.models import PACKAGES, load_encoder
from attnlab.hf.places import locate, need_extra
from attnlab.hf.results import short_name
from attnlab.hf.settings import BAG_OF_WORDS, from_given


@dataclass(frozen=True)
class Asked:
    """What is fine-tuned, on what, and how; without files the built-in sentences."""

    model: str
    settings: FineTuning
    train: str | None = None
    dev: str | None = None
    test: str | None = None
    column: Column | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    command: str = ""

    @classmethod
    def stored(cls, values: Mapping[str, Any]) -> Asked:
        """What to_dict gave."""
        return cls(**{**values, "settings": from_given(values["settings"])})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)

    def absolute(self) -> Asked:
        """The same with names that mean the same from any folder."""
        files: dict[str, Any] = {
            name: str(Path(path).resolve()) for name in ("train", "dev", "test") if (path := getattr(self, name))
        }
        folder = Path(self.model).expanduser()
        return replace(self, **files, model=str(folder.resolve()) if folder.is_dir() else self.model)

    @property
    def called(self) -> str:
        """The model as it is called in sentences."""
        return short_name(self.model)

    def tables(self) -> Tables:
        """The tables, read and checked."""
        if self.train and self.dev:
            return read_tables(self.train, self.dev, self.test, self.column, self.names)
        return built_in_tables()


def check(asked: Asked, tables: Tables, why_no_bag: str, packages: tuple[str, ...] = PACKAGES) -> None:
    """Find mistakes before a folder is made: packages that are missing, a model that cannot be loaded."""
    if asked.model == BAG_OF_WORDS:
        raise UserError(f"{BAG_OF_WORDS} {why_no_bag}: name an encoder, or leave the option out")
    need_extra(*packages)
    load_encoder(asked.model, tables.labels)


def fingerprints(asked: Asked, tables: Tables) -> dict[str, str]:
    """Checksums of the tables, and of the model where it is a folder; the hub's models are its own affair."""
    found = {f"{part} ({table.source})": table.sha256 for part, table in tables.parts.items()}
    place = Path(locate(asked.model))
    if place.is_dir():
        digest = hashlib.sha256()
        for path in sorted(one for one in place.iterdir() if one.is_file()):
            with path.open("rb") as stream:
                digest.update(path.name.encode() + hashlib.file_digest(stream, "sha256").digest())
        found[asked.model] = digest.hexdigest()
    return found


def data_of(asked: Asked, tables: Tables) -> dict[str, Any]:
    """The model and the tables in a few words, for a report."""
    sizes = {name: f"{table.source}, {len(table.rows):,} texts" for name, table in tables.parts.items()}
    meanings = {"train": "learned_from", "dev": "judged_on", "test": "measured_once"}
    return {
        "model": asked.called,
        **{meanings[name]: said for name, said in sizes.items()},
        "labels": list(tables.labels),
    }
