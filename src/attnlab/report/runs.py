"""Runs as they are stored: side by side as a report, as a list or one in full in the terminal, as TensorBoard events.

The report claims nothing about why runs differ: they may differ in many settings at once, and each was done once. A run that
was stopped is shown as far as it came.
"""

from __future__ import annotations

import io
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

from rich import box
from rich import table as rich_table
from rich.text import Text

from attnlab import registry
from attnlab.errors import AttnlabError, UserError
from attnlab.machine import environment
from attnlab.report.document import (
    Block,
    Cell,
    Chart,
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
from attnlab.report.legacy_parts import Result, cell, columns, folded, joint_losses, plain_facts, text_column
from attnlab.report.words import NOTHING, count, duration, flat, interval, percent, plain, plural, sized
from attnlab.store.folders import read_json, refuse_existing, reporting_damage, write_folder
from attnlab.store.listing import Details, Entry, as_number, as_table, share_done
from attnlab.store.runs import Run

NO_CLAIM = "Differences between these runs are not tested for significance; use attnlab compare for that."
_ALONE = "One run: how much another seed would change its numbers is not known."
_FIGURES = (
    ("loss", "Loss", "loss", "mean of the last steps: of about 20 while it trains, of a twentieth when done"),
    ("accuracy", "Accuracy", "share", ""),
    ("seconds", "Training", "seconds", ""),
    ("tokens_per_second", "Tokens per second", "rate", ""),
    ("steps", "Steps", "count", ""),
    ("tokens", "Tokens", "count", ""),
    ("parameters", "Parameters", "count", ""),
    ("peak_memory", "Peak memory", "bytes", ""),
)
_LARGER_IS_BETTER = ("accuracy", "tokens_per_second")
_DEFECT = "declared defect"


# Side by side


def side_by_side(entries: Sequence[Entry], names: Sequence[str]) -> dict[str, Any]:
    """The runs, with those inside studies, as the report needs them."""
    alone = [one for one in entries if one.kind in ("study", "classifier") and one.state == "complete" and not one.runs]
    if alone:
        raise UserError(f"{alone[0].path} has no runs to compare with others: name it alone to write its report again")
    inner = [one for entry in entries for one in (entry.runs if entry.kind == "study" else (entry,))]
    runs = [one for one in inner if one.kind == "run"]
    if not runs:
        raise UserError(f"{', '.join(names)} has no runs yet: resume with `attnlab resume {shlex.quote(names[0])}`")
    stopped = [one for one in entries if one.kind == "study" and one.state != "complete"]
    note = "; ".join(
        f"the study {one.name} is not finished: attnlab resume {shlex.quote(str(one.path))}" for one in stopped
    )
    return gather(runs, shlex.join(["attnlab", "report", *names]), _defects(runs), note[:1].upper() + note[1:])


def _defects(runs: list[Entry]) -> dict[str, str]:
    """The defects that mechanisms declare; not those in users' files, because a report runs no user code."""
    found = {}
    for name in {name for one in runs for name in one.mechanisms if ":" not in name}:
        try:
            found[name] = registry.find("mechanism", name).defect
        except AttnlabError:
            continue  # a mechanism of another version
    return found


def gather(entries: Sequence[Entry], command: str, defects: Mapping[str, str], note: str = "") -> dict[str, Any]:
    """The result that the report of some runs shows; `defects` are those that mechanisms declare, by name."""
    names = _distinct_names(entries)
    runs = []
    for entry, name in zip(entries, names, strict=True):
        with reporting_damage(entry.path):
            runs.append(_describe(entry, name, defects))
    title = f"{plural(len(runs), 'run')} side by side" if len(runs) > 1 else f"The run {names[0]}"
    return {
        "kind": "runs",
        "study": "runs",
        "title": title,
        "command": command,
        "finished": date.fromtimestamp(max(entry.when for entry in entries)).isoformat(),
        "note": note,
        "differs": differing([run["settings"] for run in runs]),
        "runs": runs,
        "environment": environment(),
    }


def _distinct_names(entries: Sequence[Entry]) -> list[str]:
    """The shortest ends of the paths that differ, without the folder that all have in common."""
    whole = [entry.path.absolute() for entry in entries]
    common, paths = len(Path(os.path.commonpath([one.parent for one in whole])).parts), [one.parts for one in whole]
    for parts in range(1, max(map(len, paths)) + 1):
        names = ["/".join(one[max(common, len(one) - parts) :]) for one in paths]
        if len(set(names)) == len(names):
            break
    return names


def _describe(entry: Entry, name: str, defects: Mapping[str, str]) -> Result:
    stored, run = read_json(entry.path / "config.json"), Run(entry.path)
    metrics = run.metrics()
    result = run.result if run.complete else {}
    sources = {f"data.{key}": one for key, one in (stored.get("data") or {}).items() if isinstance(one, dict)}
    data = {key: f"{one.get('source')} ({str(one.get('sha256', ''))[:8]})" for key, one in sources.items()}
    return {
        "name": name,
        "path": str(entry.path),
        "state": entry.state,
        "progress": entry.progress,
        "defect": "; ".join(f"{one}: {defects[one]}" for one in dict.fromkeys(entry.mechanisms) if defects.get(one)),
        "values": _values_of(result, metrics, entry),
        "settings": {"stage": entry.what, **entry.settings, **data, "base": stored.get("base")},
        "metrics": [{key: row.get(key) for key in ("step", "tokens", "loss", "seconds")} for row in metrics],
    }


def _values_of(result: Result, metrics: Sequence[Result], entry: Entry) -> Result:
    """The figures of a run; for one that was stopped, as far as it has come."""
    last = metrics[-1] if metrics else {}
    seconds, tokens = entry.seconds, entry.tokens
    so_far = {
        "loss": entry.loss,
        "steps": last.get("step"),
        "tokens_per_second": tokens / seconds if tokens and seconds else None,
    }
    return {
        **so_far,
        "seconds": seconds,
        "tokens": tokens,
        **{key: result[key] for key, *_ in _FIGURES if key != "loss" and result.get(key) is not None},
    }


def differing(settings: Sequence[Result]) -> list[str]:
    """The settings that are not the same in all runs, in their order."""
    names = dict.fromkeys(name for one in settings for name in one)

    def same(one: Any, other: Any) -> bool:
        return bool(one == other) or not (
            one or other or isinstance(one, int | float) or isinstance(other, int | float)
        )

    return [name for name in names if any(not same(one.get(name), settings[0].get(name)) for one in settings)]


def _mark(run: Result) -> tuple[str, RowTone]:
    """The mark of a run, and its tone."""
    if run["defect"]:
        return _DEFECT, "leaks"
    if run["state"] == "complete":
        return "", ""
    reached = f" at {share_done(run['progress'])}" if run["progress"] is not None else ""
    return f"{'still training' if run['state'] == 'active' else 'stopped'}{reached}", "stopped"


def _results_table(result: Result) -> Table:
    there = [one for one in _FIGURES if any(run["values"].get(one[0]) is not None for run in result["runs"])]
    rows = [
        Row(
            Cell(run["name"]),
            [cell(run["values"].get(key), kind) for key, _, kind, _ in there],
            *_mark(run),
        )
        for run in result["runs"]
    ]
    titles = [Column(title, note=note, largest_first=key in _LARGER_IS_BETTER) for key, title, _, note in there]
    return Table("Results", NO_CLAIM if len(rows) > 1 else _ALONE, columns("Run", *titles), rows, brief=True)


def _differences_table(result: Result) -> Table | None:
    """The settings in which the runs differ; runs are columns if there are more settings than runs."""
    names, runs = result["differs"], result["runs"]
    if not names:
        return None

    def setting(run: Result, name: str) -> Cell:
        value = run["settings"].get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return Cell(plain(value), value if number else None)

    caption = "All other settings are the same." if len(runs) > 1 else ""
    if len(names) <= len(runs):
        titles = [Column(name, number=all(setting(run, name).value is not None for run in runs)) for name in names]
        rows = [Row(Cell(run["name"]), [setting(run, name) for name in names], *_mark(run)) for run in runs]
        return Table("Differences", caption, columns("Run", *titles), rows)
    rows = [Row(Cell(name), [setting(run, name) for run in runs]) for name in names]
    return Table("Differences", caption, columns("Setting", *(text_column(_titled(run)) for run in runs)), rows)


def _titled(run: Result) -> str:
    word = _mark(run)[0]
    return f"{run['name']} ({word})" if word else str(run["name"])


def _curve_charts(result: Result) -> list[Chart]:
    named = [(_titled(run), [run["metrics"]], _mark(run)[1] == "leaks") for run in result["runs"]]
    return joint_losses(named, band=False)


def document(result: Result) -> Document:
    """The whole report."""
    defects = dict.fromkeys(run["defect"] for run in result["runs"] if run["defect"])
    notices = [
        Notice("Declared defect.", f"{one}. Its numbers do not count as an improvement.", "leaks") for one in defects
    ]
    if result["note"]:
        notices.append(Notice("Note:", result["note"]))
    hidden = []
    for run in result["runs"]:
        settings = [(name, value) for name, value in plain_facts(run["settings"]) if value != NOTHING]
        hidden.append(folded(f"Settings of {run['name']}", Facts("Settings", settings)))
    machine = Facts("Machine", plain_facts(result["environment"]))
    hidden.append(folded("The machine that wrote this report", machine))
    return Document(
        kind="runs",
        title=result["title"],
        lead=[],
        sections=[
            *section("Results", _results_table(result)),
            *section("Where they differ", _differences_table(result)),
            *section("Training", *_curve_charts(result)),
            Section("Settings", hidden),
        ],
        notices=notices,
        about=f"Newest run: {result['finished']}.",
        command=result["command"],
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


def entry_document(found: Details) -> Document:
    """One entry in full."""
    entry, result, base = found.entry, found.result or {}, found.stored.get("base")
    what = f"{entry.kind}, {entry.what}" if entry.kind in ("run", "study") else entry.what
    title = [str(entry.path), what, entry.state, entry.note, _moment(entry.when)]
    simple = {name: value for name, value in result.items() if not isinstance(value, list | dict)}
    sources = as_table(found.stored.get("data"))
    data = {name: value.get("source") for name, value in sources.items() if isinstance(value, dict)}
    facts = {
        "Result": [*_measured(entry, result), *flat(simple)],
        "Settings": plain_facts(entry.settings),
        "Data": [*flat(data), *([("base", str(base))] if base else [])],
        "Files": [(name, sized(size)) for name, size in found.files or ()],
    }
    return Document(
        "entry",
        "  ".join(part for part in title if part),
        [],
        [
            *(section(f"Different from preset {entry.preset}", _differences(found)) if entry.kind == "run" else []),
            *section("Runs", _inner_table(entry) if entry.runs else None),
            *(Section(name, [Facts("", pairs)]) for name, pairs in facts.items() if pairs),
        ],
    )


def _differences(found: Details) -> Block:
    if not found.differences:
        unknown = found.differences is None
        return Paragraphs(["Unknown: this version has no such preset." if unknown else "Nothing."])
    pairs = found.differences.items()
    return Facts("", [(name, f"{plain(mine)} instead of {plain(theirs)}") for name, (theirs, mine) in pairs])


def _inner_table(entry: Entry) -> Table:
    names = ("what", "mechanism", "time", "result", "state")
    inner = [_cells(one, entry.path) for one in entry.runs]
    rows = [Row(Cell(one["name"]), [Cell(one[name]) for name in names]) for one in inner]
    return Table("Runs", "", columns("name", *(text_column(name) for name in names)), rows)


def _measured(entry: Entry, result: Result) -> list[tuple[str, str]]:
    """The figures of a classifier, which its result keeps in tables."""
    if entry.kind == "classifier":
        parts = [(name, as_table(result.get(part))) for part, name in (("dev", "validation"), ("test", "test"))]
        return [(name, _share_right(one)) for name, one in parts if one]
    return []


def _share_right(one: Result) -> str:
    found = [value for name in ("accuracy", "low", "high") if (value := as_number(one.get(name))) is not None]
    if len(found) < 3:
        return "unknown"
    return f"{percent(found[0])} (95 % interval {interval(*found[1:])}), {one.get('right')} of {one.get('texts')}"


# TensorBoard

_CURVES = ("loss", "rate", "epoch", "tokens")


def write_events(run: Path, folder: Path) -> Path:
    """Write the metrics of a run as one event file into a new folder, and return its path."""
    opened = Run(run)
    rows = opened.metrics()
    if not rows:
        raise UserError(f"{run} has no steps to export: train it first")
    refuse_existing(folder)
    began = (run / "config.json").stat().st_mtime  # steps know their seconds since the start only
    name = f"events.out.tfevents.{int(began)}.attnlab"
    write_folder(folder, "tensorboard", {name: _event_file(rows, began)})
    return folder / name


def _event_file(rows: Iterable[Result], began: float) -> bytes:
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
    before = 0.0
    for row in rows:
        curves = {name: row[name] for name in _CURVES if isinstance(row.get(name), int | float)}
        seconds = row.get("seconds", before)
        values = [Summary.Value(tag=f"train/{name}", simple_value=value) for name, value in curves.items()]
        event = Event(wall_time=began + seconds, step=row["step"], summary=Summary(value=values))
        writer.write(event.SerializeToString())
        before = seconds
    writer.flush()
    return stream.getvalue()
