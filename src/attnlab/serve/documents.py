"""Folders of runs as reports: what the worker of reports does. Everything in and out is plain data.

Every report is made by the function that makes the static one, from what is stored. A folder for which there is none is
shown as `attnlab runs show` does.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attnlab import studies
from attnlab.errors import AttnlabError, AttnlabWarning, UserError
from attnlab.measure import bench
from attnlab.report import document_of, upgrade
from attnlab.report.document import Document, Notice
from attnlab.report.html import as_fragment
from attnlab.report.runs import entry_document, side_by_side
from attnlab.store import listing
from attnlab.store.folders import read_json, reporting_damage
from attnlab.store.listing import Entry
from attnlab.store.records import read

_COLUMNS = (
    *("kind", "what", "state", "preset", "mechanism", "task", "seed", "progress", "tokens", "seconds"),
    *("loss", "accuracy", "note"),
)
_BENCHES = ("bench.json", "reach.json")
_PAGES = ("report.html", "look.html", "heads.png", "patterns.png", "README.md", "predictions.txt", "losses.csv")


def readable(text: str) -> str:
    """A text without halves of surrogate pairs, which names of files may hold and JSON may not."""
    return text.encode("utf-8", "replace").decode()


def plain(entry: Entry, root: Path) -> dict[str, Any]:
    """An entry as the page shows it, named by its path below the folder of runs."""
    values = {name: getattr(entry, name) for name in _COLUMNS}
    return {
        **{name: readable(value) if isinstance(value, str) else value for name, value in values.items()},
        "name": readable(entry.path.relative_to(root).as_posix()),
        "when": datetime.fromtimestamp(entry.when, UTC).isoformat(timespec="seconds"),
        "runs": [plain(one, root) for one in entry.runs],
    }


def list_runs(root: Path, conditions: Sequence[str]) -> list[dict[str, Any]]:
    """All folders that meet the conditions, the newest first, as `attnlab runs` finds them."""
    if not root.is_dir():
        return []
    entries = listing.choose(listing.read_all(root), [listing.Filter.parse(one) for one in conditions])
    return [plain(entry, root) for entry in listing.arrange(entries, "when", reverse=True)]


def report_of(root: Path, name: str) -> dict[str, Any]:
    """One folder and its report."""
    entry = listing.read(root / name)
    document, markup = _of_entry(entry)
    pages = [] if entry.kind == "link" else [one for one in _PAGES if (entry.path / one).is_file()]
    return {
        "entry": plain(entry, root),
        "markup": readable(markup),
        "command": readable(document.command),
        "files": [readable(str(entry.path / one)) for one in pages],
        "path": readable(str(entry.path)),
    }


def compare_runs(root: Path, names: Sequence[str]) -> dict[str, Any]:
    """The report of several runs side by side."""
    entries = [listing.read(root / name) for name in dict.fromkeys(names)]
    for entry in entries:
        if entry.kind not in ("run", "study"):
            raise UserError(f"{entry.name} is neither a run nor a study: choose others")
    with reporting_damage(entries[0].path):
        document = document_of(side_by_side(entries, [str(entry.path) for entry in entries]))
        markup = as_fragment(document)
    return {"markup": readable(markup), "command": readable(document.command)}


def of_folder(folder: Path) -> Document:
    """The report of a folder, for notebooks."""
    return _of_entry(listing.read(folder))[0]


def _of_entry(entry: Entry) -> tuple[Document, str]:
    """The report of an entry with its markup, or what is known about it with the reason why there is no report."""
    notice = None
    try:
        with reporting_damage(entry.path):
            found = _reported(entry)
            if found:
                return found, as_fragment(found)
    except AttnlabError as error:
        notice = Notice("No report.", str(error))
    except RecursionError:
        notice = Notice("No report.", "What is stored is nested too deeply.")
    found = _in_full(entry, notice)
    return found, as_fragment(found)


def _reported(entry: Entry) -> Document | None:
    path = entry.path
    if entry.kind == "study" and entry.state == "complete":
        return studies.document_of(path)
    if entry.kind == "classifier" and entry.state == "complete":
        return document_of(upgrade(read_json(path / "result.json")))
    if entry.kind in ("study", "run"):
        return document_of(side_by_side([entry], [str(path)]))
    if entry.kind == "output":
        stored = next((path / one for one in _BENCHES if (path / one).is_file()), None)
        if stored:
            return bench.restored(read_json(stored)).document()
        if (path / "report.json").is_file():
            return read(Document, path / "report.json")
    return None


def _in_full(entry: Entry, notice: Notice | None) -> Document:
    """An entry as `attnlab runs show` shows it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttnlabWarning)
        try:
            with reporting_damage(entry.path):
                document = entry_document(listing.details(entry))
        except (AttnlabError, OSError) as error:
            document = Document("entry", "", [], [], [Notice("Damaged.", str(error))])
    is_sound = entry.kind in ("run", "study", "classifier", "output")
    first = entry.note if is_sound else f"attnlab cannot read this folder: {entry.note or entry.what}."
    notices = [*document.notices, *([notice] if notice else [])]
    lead = [first[:1].upper() + first[1:]] if first else []
    return replace(document, kind=entry.what, title=entry.name, lead=lead, notices=notices)
