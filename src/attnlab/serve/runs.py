"""The view "runs": the list, reports, runs side by side, and what changes while they train.

Every report is made by the function that makes the static one, from what is stored. A folder for which there is none is
shown as `attnlab runs show` does. Reports are rendered in a worker; the list and the events only look at the disk.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from attnlab import studies
from attnlab.errors import AttnlabError, AttnlabWarning, UserError
from attnlab.measure import bench
from attnlab.report.document import Document, Notice
from attnlab.report.html import as_fragment
from attnlab.report.runs import document as document_of_runs
from attnlab.report.runs import entry_document, live_document, side_by_side
from attnlab.report.words import capital
from attnlab.serve.routes import Options, Query, Route, RunName
from attnlab.serve.worker import in_thread
from attnlab.store import listing
from attnlab.store.folders import is_locked, read_json, reporting_damage
from attnlab.store.listing import Entry
from attnlab.store.records import read

_RUN_PAUSE = 1.0  # seconds between looks at a run that trains
_LIST_PAUSE = 2.0  # and at all of them
_SECONDS = 120.0  # for a report
_PAGES = ("report.html", "look.html", "heads.png", "patterns.png", "README.md", "predictions.txt", "losses.csv")
_WATCHED = (
    *("result.json", "metrics.jsonl", "config.json", "study.json", "manifest.json"),
    *("bench.json", "reach.json", "report.json", "calibration.json"),
)
_PARTS = ("checkpoints", "model", "best", "code")  # folders inside a run that are not runs
_DEPTH = 4


# The list


class Conditions(Query, frozen=True):
    """Conditions that entries must meet, such as mechanism=dot or train.lr>=0.001."""

    filter: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...], Meta(max_length=20)] = ()


class Listing(Struct, frozen=True):
    """The folder of runs, and the entries below it, the newest first; their paths are relative to it."""

    root: str
    entries: list[Entry]


def list_runs(options: Options, query: Conditions) -> Listing:
    """All runs and studies that meet the conditions, as `attnlab runs` finds them."""
    root = options.root
    if not root.is_dir():
        return Listing(str(root), [])
    entries = listing.choose(listing.read_all(root), [listing.Filter.parse(text) for text in query.filter])
    ordered = listing.arrange(entries, "when", reverse=True)
    return Listing(str(root), [_relative(entry, root) for entry in ordered])


def _relative(entry: Entry, root: Path) -> Entry:
    """An entry for the page: its path below the folder of runs, and without its settings, which are long."""
    inside = tuple(_relative(run, root) for run in entry.runs)
    return replace(entry, path=entry.path.relative_to(root), settings={}, runs=inside)


# Reports


class RunQuery(Query, frozen=True):
    """A run or study by its path below the folder of runs."""

    name: RunName


class RunsQuery(Query, frozen=True):
    """Several runs or studies."""

    name: Annotated[list[RunName], Meta(min_length=1, max_length=20)]


class Report(Struct, frozen=True):
    """The report of one folder as markup, the command that writes it, and files that are there already."""

    entry: Entry
    markup: str
    command: str
    path: Path
    files: list[Path]


class Comparison(Struct, frozen=True):
    """The report of several runs, and the command that writes it."""

    markup: str
    command: str


def report(options: Options, query: RunQuery) -> Report:
    """The report of a run, study or other folder, as far as it has come."""
    entry = listing.read(options.folder(query.name))
    document, markup = _rendered(options, entry)
    files = [] if entry.kind == "link" else [path for name in _PAGES if (path := entry.path / name).is_file()]
    return Report(_relative(entry, options.root), markup, document.command, entry.path, files)


def compare(options: Options, query: RunsQuery) -> Comparison:
    """Runs side by side: the report of `attnlab report RUN RUN`."""
    entries = [listing.read(options.folder(name)) for name in dict.fromkeys(query.name)]
    for entry in entries:
        if entry.kind not in ("run", "study"):
            raise UserError(f"{entry.name} is neither a run nor a study: choose others")
    with reporting_damage(entries[0].path):
        document = studies.document_of_several(entries, [str(entry.path) for entry in entries])
        return Comparison(as_fragment(document), document.command)


def _rendered(options: Options, entry: Entry) -> tuple[Document, str]:
    """The report of an entry with its markup, or what is known about it with the reason why there is no report."""
    notices = []
    try:
        with reporting_damage(entry.path):
            if document := _stored_report(options, entry):
                return document, as_fragment(document)
    except AttnlabError as error:
        notices = [Notice("No report.", str(error))]
    except RecursionError:
        notices = [Notice("No report.", "What is stored is nested too deeply.")]
    document = _in_full(entry)
    document = replace(document, notices=[*document.notices, *notices])
    return document, as_fragment(document)


def _stored_report(options: Options, entry: Entry) -> Document | None:
    path = entry.path
    if entry.kind == "study" and entry.state == "complete":
        for run in read_json(path / "study.json")["plan"].get("runs", {}).values():  # of others, in a comparison
            options.folder(os.path.relpath(run, options.root.resolve()))
        return studies.document_of(path)
    if entry.kind == "classifier" and entry.state == "complete":
        from attnlab.hf.documents import read_classification  # which imports numpy

        return read_classification(path)
    if entry.kind in ("study", "run") and entry.state != "complete":
        return live_document(entry)
    if entry.kind == "run":
        return document_of_runs(side_by_side([entry], [str(path)]))
    if entry.kind == "output":
        if (path / "bench.json").is_file():
            return read(bench.BenchResult, path / "bench.json").document()
        if (path / "reach.json").is_file():
            return read(bench.ReachResult, path / "reach.json").document()
        if (path / "report.json").is_file():
            return read(Document, path / "report.json")
    return None


def _in_full(entry: Entry) -> Document:
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
    return replace(document, kind=entry.what, title=entry.name, lead=[capital(first)] if first else [])


# What changes


class Change(Struct, frozen=True):
    """How far a run or study has come."""

    state: str
    progress: float | None
    loss: float | None
    when: float


class Version(Struct, frozen=True):
    """A number that grows when anything changes."""

    version: int


async def follow(options: Options, query: RunQuery) -> AsyncGenerator[Change | None]:
    """A message, at most one per second, when a run or study has changed; the last when it is complete."""
    folder = options.folder(query.name)
    async for changed in _changes(folder, _RUN_PAUSE):
        if not changed:
            yield None
            continue
        entry = await in_thread(listing.read, folder)
        yield Change(entry.state, entry.progress, entry.loss, entry.when)
        if entry.state == "complete":
            return


async def follow_all(options: Options, _: Query) -> AsyncGenerator[Version | None]:
    """A message when a run is created, trains, stops or ends."""
    number = 0
    async for changed in _changes(options.root, _LIST_PAUSE):
        number += changed
        yield Version(number) if changed else None


async def _changes(folder: Path, pause: float) -> AsyncGenerator[bool]:
    """True at first and after every change of a run below a folder, False where nothing changed for a while."""
    before: object = None
    while True:
        now = await in_thread(lambda: tuple(_signature(folder, _DEPTH)))
        yield now != before
        before = now
        await asyncio.sleep(pause)


def _signature(folder: Path, depth: int) -> Iterator[tuple[object, ...]]:
    """What changes when a run below a folder is created, trains, stops or is completed."""
    try:
        inside = list(os.scandir(folder))
    except OSError:
        return
    for item in sorted(inside, key=lambda entry: entry.name):
        hidden = item.name.startswith(".") or item.name in _PARTS
        try:
            if item.name in _WATCHED:
                status = item.stat(follow_symlinks=False)
                yield item.path, status.st_mtime_ns, status.st_size
            elif item.name == ".lock":
                yield item.path, is_locked(folder)
            elif depth and not hidden and item.is_dir(follow_symlinks=False):
                yield (item.path,)
                yield from _signature(Path(item.path), depth - 1)
        except OSError:  # it was deleted meanwhile
            continue


ROUTES = (
    Route("GET", "/runs", Conditions, list_runs),
    Route("GET", "/comparison", RunsQuery, compare, "reports", _SECONDS),
    Route("GET", "/runs/{name:path}/report", RunQuery, report, "reports", _SECONDS),
    Route("GET", "/runs/{name:path}/events", RunQuery, follow),
    Route("GET", "/events/runs", Query, follow_all),
)
