"""One whole classification: what was asked for, a model trained, measured and written into a folder, whole or not at all.

Also what the studies of fine-tuning share: the request as they store it, and checksums that tell when something has changed.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attnlab.corpora.labelled import Column, Tables, built_in_tables, read_tables
from attnlab.errors import Interrupted, UserError
from attnlab.folders import disk, folders_above, refuse_existing, to_json, write_bytes, write_manifest
from attnlab.hf import bag
from attnlab.hf.loading import PACKAGES, load_encoder, locate, need_extra
from attnlab.hf.outcome import Epoch, Outcome, make_result, predictions, short_name
from attnlab.hf.settings import BAG_OF_WORDS, FineTuning, from_given
from attnlab.machine import environment
from attnlab.report import strict, write_report
from attnlab.stages import QUIET, Show, silent


def fine_tune(
    model: str,
    tables: Tables,
    settings: FineTuning,
    folder: Path | None = None,
    show: Show = QUIET,
    after_epoch: Callable[[Epoch], None] = silent,
) -> Outcome:
    """Fine-tune a model on tables; with a folder its best epoch is saved there and measured once on the test table.

    Without one nothing is written and the test table is not touched: so it can be called as often as a search likes. Whoever
    raises in `after_epoch` ends it there.
    """
    need_extra(*PACKAGES)
    if folder is not None:
        with disk(folder):
            folder.mkdir(parents=True, exist_ok=True)
    if model == BAG_OF_WORDS:
        return bag.run(tables, settings, folder, show)
    from attnlab.hf import fine_tuning

    return fine_tuning.run(model, tables, settings, folder, show, after_epoch)


def make_classifier(
    model: str, tables: Tables, settings: FineTuning, out: Path, show: Show = QUIET, command: str = ""
) -> dict[str, Any]:
    """Train, measure and report; the folder holds model/, result.json, predictions.tsv and the report."""
    refuse_existing(out)
    need_extra(*PACKAGES)
    with _staged(out) as folder:
        (folder / "model").mkdir()
        outcome = fine_tune(model, tables, settings, folder / "model", show)
        found = {
            **make_result(model, tables, settings, outcome),
            "command": command,
            "finished": time.strftime("%Y-%m-%d %H:%M"),
            "environment": {**environment(), **versions()},
        }
        result: dict[str, Any] = strict(found)
        write_bytes(folder / "predictions.tsv", ("\n".join(predictions(tables, outcome)) + "\n").encode())
        write_report(result, folder)
        write_bytes(folder / "result.json", to_json(result))
        write_manifest(folder / "model", "model")
        write_manifest(folder, "classifier")
    return result


def versions() -> dict[str, str]:
    """The versions of what classification stands on, by the name one installs."""
    names = ("scikit-learn" if name == "sklearn" else name for name in PACKAGES)
    return {name: importlib.metadata.version(name) for name in names}


@contextmanager
def _staged(out: Path) -> Iterator[Path]:
    """A folder to be filled, which gets its name when all is there; what was stopped leaves nothing behind."""
    try:
        with folders_above(out), tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as work:
            filled = Path(work) / "filled"
            filled.mkdir()
            yield filled
            refuse_existing(out)
            with disk(out):
                filled.rename(out)
    except KeyboardInterrupt:
        raise Interrupted(f"stopped: nothing was written to {out}; give the command again to start anew") from None


# What studies share


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
    def restore(cls, values: Mapping[str, Any]) -> Asked:
        """The request from what study.json holds."""
        return cls(**{**values, "settings": from_given(values["settings"])})

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
