"""Runs as they are stored: side by side as a report, as a list or one in full in the terminal, as TensorBoard events.

The report claims nothing about why runs differ: they may differ in many settings at once, and each was done once. A run that
was stopped is shown as far as it came.
"""

from __future__ import annotations

import io
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from rich import box
from rich import table as rich_table
from rich.text import Text

from attnlab import registry
from attnlab.config import Settings
from attnlab.errors import AttnlabError, UserError
from attnlab.machine import environment
from attnlab.report.document import (
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Notice,
    Row,
    RowTone,
    Section,
    Table,
    section,
)
from attnlab.report.document import Text as Paragraphs
from attnlab.report.parts import LossCurve, cell, columns, folded, joint_losses, plain_facts, text_column
from attnlab.report.words import NOTHING, capital, count, duration, flat, interval, percent, plain, plural, sized
from attnlab.store.folders import refuse_existing, reporting_damage, write_folder
from attnlab.store.listing import Details, Entry, share_done
from attnlab.store.runs import Run, Step

NO_CLAIM = "Differences between these runs are not tested for significance; use attnlab compare for that."
_ALONE = "One run: how much another seed would change its numbers is not known."
_FIGURES = (  # attributes of ShownRun, with their titles, units and notes
    ("loss", "Loss", "loss", "mean of the last steps: of about 20 while it trains, of a twentieth when done"),
    ("seconds", "Training", "seconds", ""),
    ("tokens_per_second", "Tokens per second", "rate", ""),
    ("steps", "Steps", "count", ""),
    ("tokens", "Tokens", "count", ""),
    ("parameters", "Parameters", "count", ""),
    ("peak_memory", "Peak memory", "bytes", ""),
)
_DEFECT = "declared defect"


# Side by side


@dataclass(frozen=True)
class ShownRun:
    """A run as the report shows it; one that was stopped, as far as it has come."""

    name: str
    path: str
    state: str
    progress: float | None
    defect: str
    loss: float | None
    seconds: float | None
    tokens: int | None
    tokens_per_second: float | None
    steps: int | None
    parameters: int | None
    peak_memory: int | None
    settings: Settings
    curve: LossCurve

    @property
    def mark(self) -> tuple[str, RowTone]:
        """Its mark in tables, and the tone of its row."""
        if self.defect:
            return _DEFECT, "leaks"
        if self.state == "complete":
            return "", ""
        reached = f" at {share_done(self.progress)}" if self.progress is not None else ""
        return f"{'still training' if self.state == 'active' else 'stopped'}{reached}", "stopped"

    @property
    def title(self) -> str:
        """Its name with its mark."""
        return f"{self.name} ({self.mark[0]})" if self.mark[0] else self.name


@dataclass(frozen=True)
class SideBySide:
    """Several runs, with the settings in which they differ."""

    title: str
    command: str
    finished: str
    note: str
    differs: tuple[str, ...]
    runs: tuple[ShownRun, ...]
    environment: dict[str, Any]


def side_by_side(entries: Sequence[Entry], names: Sequence[str]) -> SideBySide:
    """The runs of these entries, with those inside studies, as the report needs them."""
    alone = [
        entry
        for entry in entries
        if entry.kind in ("study", "classifier") and entry.state == "complete" and not entry.runs
    ]
    if alone:
        raise UserError(f"{alone[0].path} has no runs to compare with others: name it alone to write its report again")
    inner = [run for entry in entries for run in (entry.runs if entry.kind == "study" else (entry,))]
    runs = [run for run in inner if run.kind == "run"]
    if not runs:
        raise UserError(f"{', '.join(names)} has no runs yet: resume with `attnlab resume {shlex.quote(names[0])}`")
    note = "; ".join(
        f"the study {entry.name} is not finished: attnlab resume {shlex.quote(str(entry.path))}"
        for entry in entries
        if entry.kind == "study" and entry.state != "complete"
    )
    shown = []
    for run, name in zip(runs, _distinct_names(runs), strict=True):
        with reporting_damage(run.path):
            shown.append(_describe(run, name))
    return SideBySide(
        title=f"{plural(len(shown), 'run')} side by side" if len(shown) > 1 else f"The run {shown[0].name}",
        command=shlex.join(["attnlab", "report", *names]),
        finished=date.fromtimestamp(max(run.when for run in runs)).isoformat(),
        note=capital(note),
        differs=tuple(differing([run.settings for run in shown])),
        runs=tuple(shown),
        environment=environment(),
    )


def _distinct_names(entries: Sequence[Entry]) -> list[str]:
    """The shortest ends of the paths that differ, without the folder that all have in common."""
    paths = [entry.path.absolute() for entry in entries]
    common = len(Path(os.path.commonpath([path.parent for path in paths])).parts)
    for length in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[max(common, len(path.parts) - length) :]) for path in paths]
        if len(set(names)) == len(names):
            break
    return names


def _describe(entry: Entry, name: str) -> ShownRun:
    run = Run(entry.path)
    record, steps, result = run.record, run.metrics(), run.result if run.complete else None
    data = {f"data.{part}": f"{source.source} ({source.sha256[:8]})" for part, source in record.data.items()}
    rate = entry.tokens / entry.seconds if entry.tokens and entry.seconds else None
    return ShownRun(
        name=name,
        path=str(entry.path),
        state=entry.state,
        progress=entry.progress,
        defect="; ".join(_defects(entry)),
        loss=entry.loss,
        seconds=entry.seconds,
        tokens=entry.tokens,
        tokens_per_second=result.tokens_per_second if result else rate,
        steps=result.steps if result else steps[-1].step if steps else None,
        parameters=result.parameters if result else None,
        peak_memory=result.peak_memory if result else None,
        settings={"stage": entry.what, **entry.settings, **data, "base": record.base},
        curve=LossCurve([step.step for step in steps], [step.tokens for step in steps], [step.loss for step in steps]),
    )


def _defects(entry: Entry) -> Iterable[str]:
    """The defects that its mechanisms declare; not those in users' files, because a report runs no user code."""
    for name in dict.fromkeys(name for name in entry.mechanisms if ":" not in name):
        try:
            if defect := registry.find("mechanism", name).defect:
                yield f"{name}: {defect}"
        except AttnlabError:
            continue  # a mechanism that is not installed


def differing(settings: Sequence[Settings]) -> list[str]:
    """The settings that are not the same in all runs, in their order; empty values of all kinds are the same."""
    names = dict.fromkeys(name for values in settings for name in values)

    def same(value: Any, other: Any) -> bool:
        return bool(value == other) or not (
            value or other or isinstance(value, int | float) or isinstance(other, int | float)
        )

    return [name for name in names if any(not same(values.get(name), settings[0].get(name)) for values in settings)]


def _results_table(runs: Sequence[ShownRun]) -> Table:
    known = [part for part in _FIGURES if any(getattr(run, part[0]) is not None for run in runs)]
    rows = [
        Row(Cell(run.name), [cell(getattr(run, name), kind) for name, _, kind, _ in known], *run.mark) for run in runs
    ]
    titles = [Column(title, note=note, largest_first=name == "tokens_per_second") for name, title, _, note in known]
    return Table("Results", NO_CLAIM if len(rows) > 1 else _ALONE, columns("Run", *titles), rows, brief=True)


def _differences_table(result: SideBySide) -> Table | None:
    """The settings in which the runs differ; runs are columns if there are more settings than runs."""
    names, runs = result.differs, result.runs
    if not names:
        return None

    def setting(run: ShownRun, name: str) -> Cell:
        value = run.settings.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return Cell(plain(value), value if number else None)

    caption = "All other settings are the same." if len(runs) > 1 else ""
    if len(names) <= len(runs):
        titles = [Column(name, number=all(setting(run, name).value is not None for run in runs)) for name in names]
        rows = [Row(Cell(run.name), [setting(run, name) for name in names], *run.mark) for run in runs]
        return Table("Differences", caption, columns("Run", *titles), rows)
    rows = [Row(Cell(name), [setting(run, name) for run in runs]) for name in names]
    return Table("Differences", caption, columns("Setting", *(text_column(run.title) for run in runs)), rows)


def document(result: SideBySide) -> Document:
    """The whole report."""
    defects = dict.fromkeys(run.defect for run in result.runs if run.defect)
    notices = [
        Notice("Declared defect.", f"{defect}. Its numbers do not count as an improvement.", "leaks")
        for defect in defects
    ]
    if result.note:
        notices.append(Notice("Note:", result.note))
    hidden = []
    for run in result.runs:
        settings = [(name, value) for name, value in plain_facts(run.settings) if value != NOTHING]
        hidden.append(folded(f"Settings of {run.name}", Facts("Settings", settings)))
    hidden.append(folded("The machine that wrote this report", Facts("Machine", plain_facts(result.environment))))
    curves = [(run.title, [run.curve], run.mark[1] == "leaks") for run in result.runs]
    return Document(
        kind="runs",
        title=result.title,
        lead=[],
        sections=[
            *section("Results", _results_table(result.runs)),
            *section("Where they differ", _differences_table(result)),
            *section("Training", *joint_losses(curves, band=False)),
            Section("Settings", hidden),
        ],
        notices=notices,
        about=f"Newest run: {result.finished}.",
        command=result.command,
    )


# In the terminal

_DROPPED = (
    "tokens",
    "preset",
    "task",
    "time",
    "when",
    "seed",
)  # columns that a narrow screen leaves out, in this order
_GAP = 3  # between columns


def table_of(entries: Sequence[Entry], folder: Path, width: int) -> tuple[rich_table.Table, list[str]]:
    """Entries as a table, and the columns that do not fit."""
    rows = [_cells(entry, folder) for entry in entries]
    names = [name for name in rows[0] if name == "name" or any(row[name] for row in rows)]
    if len({row["seed"] for row in rows} - {""}) < 2 and "seed" in names:
        names.remove("seed")
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) + _GAP for name in names}
    hidden: list[str] = []
    for name in _DROPPED:
        if name in names and sum(widths[name] for name in names) > width:
            names.remove(name)
            hidden.append(name)
    table = rich_table.Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for name in names:
        right, fixed = name in ("tokens", "time", "seed"), name in ("tokens", "time", "when", "result")
        fixed = fixed or (name == "name" and widths[name] <= width // 2)
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=fixed)
    for row, entry in zip(rows, entries, strict=True):
        style = "" if entry.state == "complete" else "yellow" if entry.state else "dim"
        table.add_row(*(Text(row[name]) for name in names), style=style)
    return table, hidden


def _cells(entry: Entry, folder: Path) -> dict[str, str]:
    reached = f" at {share_done(entry.progress)}" if entry.state == "stopped" and entry.progress is not None else ""
    inside = entry.path.is_relative_to(folder)
    return {
        "name": str(entry.path.relative_to(folder)) if inside else str(entry.path),
        "what": entry.what,
        "preset": entry.preset or "",
        "mechanism": ", ".join(name.rsplit(os.sep, 1)[-1] for name in entry.mechanisms),
        "seed": "" if entry.seed is None else str(entry.seed),
        "task": entry.task or "",
        "tokens": count(entry.tokens) if entry.tokens is not None else "",
        "time": duration(entry.seconds) if entry.seconds is not None else "",
        "result": _figure(entry),
        "when": _moment(entry.when),
        "state": f"{entry.state}{reached}" if entry.kind != "output" and entry.state else entry.note,
    }


def _figure(entry: Entry) -> str:
    """The main figure of an entry; that of a classifier is named, because it measures something else."""
    if entry.accuracy is not None:
        return f"{100 * entry.accuracy:.1f} %{' on validation' if entry.kind == 'classifier' else ''}"
    if entry.loss is not None:
        return f"loss {entry.loss:.3f}"
    return ""


def _moment(when: float) -> str:
    return datetime.fromtimestamp(when).strftime("%Y-%m-%d %H:%M")


def entry_document(details: Details) -> Document:
    """One entry in full."""
    entry, record, result = details.entry, details.record, details.result or {}
    what = f"{entry.kind}, {entry.what}" if entry.kind in ("run", "study") else entry.what
    title = [str(entry.path), what, entry.state, entry.note, _moment(entry.when)]
    simple = {name: value for name, value in result.items() if not isinstance(value, list | dict)}
    data = [(name, source.source) for name, source in record.data.items()] if record else []
    facts = {
        "Result": [*_measured(entry, result), *flat(simple)],
        "Settings": plain_facts(entry.settings),
        "Data": [*data, *([("base", record.base)] if record and record.base else [])],
        "Files": [(name, sized(size)) for name, size in details.files or ()],
    }
    return Document(
        "entry",
        "  ".join(part for part in title if part),
        [],
        [
            *(section(f"Different from preset {entry.preset}", _differences(details)) if record else []),
            *section("Runs", _inner_table(entry) if entry.runs else None),
            *(Section(name, [Facts("", pairs)]) for name, pairs in facts.items() if pairs),
        ],
    )


def _differences(details: Details) -> Block:
    if not details.differences:
        unknown = details.differences is None
        return Paragraphs(["Unknown: this version has no such preset." if unknown else "Nothing."])
    pairs = details.differences.items()
    return Facts("", [(name, f"{plain(value)} instead of {plain(usual)}") for name, (usual, value) in pairs])


def _inner_table(entry: Entry) -> Table:
    names = ("what", "mechanism", "time", "result", "state")
    inner = [_cells(run, entry.path) for run in entry.runs]
    rows = [Row(Cell(cells["name"]), [Cell(cells[name]) for name in names]) for cells in inner]
    return Table("Runs", "", columns("name", *(text_column(name) for name in names)), rows)


def _measured(entry: Entry, result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The accuracies of a classifier, which its result keeps in tables."""
    if entry.kind != "classifier":
        return []
    parts = [(name, result.get(part)) for part, name in (("dev", "validation"), ("test", "test"))]
    return [
        (
            name,
            f"{percent(part['accuracy'])} (95 % interval {interval(part['low'], part['high'])}),"
            f" {part['right']} of {part['texts']}",
        )
        for name, part in parts
        if part
    ]


# TensorBoard

_CURVES = ("loss", "rate", "epoch", "tokens")


def write_events(run: Path, folder: Path) -> Path:
    """Write the metrics of a run as one event file into a new folder, and return its path."""
    steps = Run(run).metrics()
    if not steps:
        raise UserError(f"{run} has no steps to export: train it first")
    refuse_existing(folder)
    began = (run / "config.json").stat().st_mtime  # steps know their seconds since the start only
    name = f"events.out.tfevents.{int(began)}.attnlab"
    write_folder(folder, "tensorboard", {name: _event_file(steps, began)}, about="curves for TensorBoard")
    return folder / name


def _event_file(steps: Iterable[Step], began: float) -> bytes:
    """The steps in the format of TensorBoard: one record per step, with every curve in it."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError:
        raise UserError("TensorBoard's package is not installed: pip install 'attnlab[tensorboard]'") from None
    stream = io.BytesIO()
    writer = RecordWriter(stream)
    writer.write(Event(wall_time=began, file_version="brain.Event:2").SerializeToString())
    for step in steps:
        values = [Summary.Value(tag=f"train/{name}", simple_value=getattr(step, name)) for name in _CURVES]
        event = Event(wall_time=began + step.seconds, step=step.step, summary=Summary(value=values))
        writer.write(event.SerializeToString())
    writer.flush()
    return stream.getvalue()
