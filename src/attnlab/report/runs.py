"""Runs as they are stored: side by side as a report, as a list or one in full in the terminal, as TensorBoard events.

The report claims nothing about why runs differ: they may differ in many settings at once, and each was done once. A run that
was stopped is shown as far as it came.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

from msgspec import structs

from attnlab import registry
from attnlab.config import Settings
from attnlab.errors import AttnlabError, UserError
from attnlab.machine import environment
from attnlab.report import document as blocks
from attnlab.report import parts
from attnlab.report.document import Cell, Column, Document, Facts, Notice, Row, RowTone, Section, Table, Text, section
from attnlab.report.parts import (
    Accuracy,
    LossCurve,
    cell,
    columns,
    folded,
    joint_losses,
    plain_facts,
    text_column,
    validation_chart,
)
from attnlab.report.words import NOTHING, capital, count, duration, figure, flat, plain, plural, sized, span
from attnlab.store import records
from attnlab.store.folders import refuse_existing, reporting_damage, write_folder
from attnlab.store.listing import Details, Entry, share_done
from attnlab.store.runs import Run, Step

NO_CLAIM = "Differences between these runs are not tested for significance; use attnlab compare for that."
_LIVE_CURVES = 3  # runs whose curves are shown one by one: those that train, or the newest
_ALONE = "One run: how much another seed would change its numbers is not known."


# Side by side


@dataclass(frozen=True)
class ShownRun:
    """A run as the report shows it; one that was stopped, as far as it has come."""

    name: str
    entry: Entry  # with its data and its base among the settings
    defect: str
    steps: int | None
    tokens_per_second: float | None
    parameters: int | None
    peak_memory: int | None
    curve: LossCurve
    validation: LossCurve

    @property
    def mark(self) -> tuple[str, RowTone]:
        """Its mark in tables, and the tone of its row."""
        if self.defect:
            return "declared defect", "leaks"
        if self.entry.state == "complete":
            return "", ""
        return f"{'still training' if self.entry.state == 'active' else 'stopped'}{_reached(self.entry)}", "stopped"

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
        differs=tuple(differing([run.entry.settings for run in shown])),
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
        entry=replace(entry, settings={"stage": entry.what, **entry.settings, **data, "base": record.base}),
        defect="; ".join(_defects(entry)),
        steps=result.steps if result else steps[-1].step if steps else None,
        tokens_per_second=result.tokens_per_second if result else rate,
        parameters=result.parameters if result else None,
        peak_memory=result.peak_memory if result else None,
        curve=LossCurve.of(steps),
        validation=LossCurve.of_validation(steps),
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


_LOSS = Column("Loss", note="mean of the last steps: of about 20 while it trains, of a twentieth when done")
_FIGURES: tuple[tuple[Column, str, Callable[[ShownRun], float | None]], ...] = (  # of a run, with their kinds
    (_LOSS, "loss", lambda run: run.entry.loss),
    (Column("Lowest validation loss"), "loss", lambda run: run.validation.best[2] if run.validation.best else None),
    (Column("At step"), "count", lambda run: run.validation.best[0] if run.validation.best else None),
    (Column("Training"), "seconds", lambda run: run.entry.seconds),
    (Column("Tokens per second", largest_first=True), "rate", lambda run: run.tokens_per_second),
    (Column("Steps"), "count", lambda run: run.steps),
    (Column("Tokens"), "count", lambda run: run.entry.tokens),
    (Column("Parameters"), "count", lambda run: run.parameters),
    (Column("Peak memory"), "bytes", lambda run: run.peak_memory),
)


def _results_table(runs: Sequence[ShownRun]) -> Table:
    known = [figure for figure in _FIGURES if any(figure[2](run) is not None for run in runs)]
    rows = [Row(Cell(run.name), [cell(value(run), kind) for _, kind, value in known], *run.mark) for run in runs]
    titles = [column for column, _, _ in known]
    return Table("Results", NO_CLAIM if len(rows) > 1 else _ALONE, columns("Run", *titles), rows, brief=True)


def _differences_table(result: SideBySide) -> Table | None:
    """The settings in which the runs differ; runs are columns if there are more settings than runs."""
    names, runs = result.differs, result.runs
    if not names:
        return None

    def setting(run: ShownRun, name: str) -> Cell:
        value = run.entry.settings.get(name)
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
        settings = [(name, value) for name, value in plain_facts(run.entry.settings) if value != NOTHING]
        hidden.append(folded(f"Settings of {run.name}", Facts("Settings", settings)))
    hidden.append(folded("The machine that wrote this report", Facts("Machine", plain_facts(result.environment))))
    curves = [(run.title, [run.curve], run.mark[1] == "leaks") for run in result.runs]
    validated = validation_chart([(run.title, run.curve, run.validation) for run in result.runs])
    return Document(
        kind="runs",
        title=result.title,
        lead=[],
        sections=[
            *section("Results", _results_table(result.runs)),
            *section("Where they differ", _differences_table(result)),
            *section("Training", validated, *joint_losses(curves)),
            Section("Settings", hidden),
        ],
        notices=notices,
        about=f"Newest run: {result.finished}.",
        command=result.command,
    )


def with_results(shown: Document, studies: Sequence[Entry], reports: Sequence[Document]) -> Document:
    """The report of runs with the results of their studies first, in one table where the columns are the same."""
    tables: dict[tuple[str, ...], Table] = {}
    for name, report in zip(_distinct_names(studies), reports, strict=True):
        for table in [table for table in report.tables() if table.brief][:1]:
            rows = [replace(row, name=replace(row.name, text=f"{name}: {row.name.text}")) for row in table.rows]
            key = tuple(column.title for column in table.columns)
            before = tables[key].rows if key in tables else []
            caption = f"{table.caption} Differences between studies are not tested." if before else table.caption
            tables[key] = Table("Results of the studies", caption, table.columns, [*before, *rows], brief=True)
    others = [replace(part, title="The runs" if part.title == "Results" else part.title) for part in shown.sections]
    title = f"{count(len(studies))} studies side by side" if len(studies) > 1 else shown.title
    return replace(shown, title=title, sections=[*section("Results of the studies", *tables.values()), *others])


# While it trains


def live_document(entry: Entry) -> Document:
    """A run or study that is not complete: how far its runs have come, their curves, and what they wrote last."""
    runs = [run for run in (entry.runs or (entry,)) if run.kind == "run"]
    title = f"The {entry.kind} {entry.name}"
    if not runs:
        return Document("runs", title, ["No run with curves has begun yet."], [])
    whole = document(side_by_side([entry], [str(entry.path)]))
    names = {run.path: run.name if run is entry else str(run.path.relative_to(entry.path)) for run in runs}
    steps = {run.path: Run(run.path).metrics() for run in runs}
    newest = sorted(runs, key=lambda run: (run.state == "active", run.when), reverse=True)[:_LIVE_CURVES]
    samples = [
        Text([step.sample or ""], "samples", f"{names[run.path]}, after step {count(step.step)}")
        for run in runs
        for step in [step for step in steps[run.path] if step.sample][-1:]
    ]
    rows = [_progress(names[run.path], run, steps[run.path]) for run in runs]
    table = Table("Progress", "Runs that have begun.", columns("Run", *_PROGRESS), rows)
    curves = [_with_validation(names[run.path], steps[run.path]) for run in newest if steps[run.path]]
    drawn = section("Training and validation", *curves)
    first = [*section("Progress", table), *drawn, *section("Latest samples", *samples)]
    active = [row for row in rows if row.cells[0].text == "training"]
    lead = [f"{row.name.text} is at {row.cells[1].text}; time left: {row.cells[2].text}." for row in active]
    kept = [part for part in whole.sections if part.title in ("Where they differ", "Settings")]
    notices = [notice for notice in whole.notices if notice.tone]
    return replace(whole, title=title, lead=lead, sections=[*first, *kept], notices=notices, about="")


_PROGRESS = text_column("State"), "Done", "Time left", "Time so far", _LOSS, "Validation loss", "Best validation loss"


def _progress(name: str, run: Entry, steps: Sequence[Step]) -> Row:
    validated = [step.dev_loss for step in steps if step.dev_loss is not None]
    done = run.progress or 0.0
    left = run.seconds * (1 - done) / done if run.state == "active" and run.seconds and done else None
    state = Cell("training" if run.state == "active" else run.state)
    last = validated[-1] if validated else None
    losses = [cell(loss, "loss") for loss in (run.loss, last, min(validated, default=None))]
    times = [cell(seconds, "seconds") for seconds in (left, run.seconds)]
    return Row(Cell(name), [state, Cell(share_done(done), done), *times, *losses])


def _with_validation(name: str, steps: Sequence[Step]) -> blocks.Chart:
    """The losses of a run on training and validation data, over the tokens read."""
    curve = LossCurve.of(steps)
    chart = validation_chart([(name, curve, LossCurve.of_validation(steps))])
    return structs.replace(chart, title=name) if chart else parts.loss_chart(name, curve)


# In the terminal


def entries_table(entries: Sequence[Entry], folder: Path, titles: Collection[str] = ()) -> Table:
    """Entries as a table: all columns that are not empty, or those with some titles."""
    several_seeds = len({entry.seed for entry in entries} - {None}) > 1
    shown = [
        (column, written)
        for column, written in _LISTED
        if any(written(entry) for entry in entries)
        and (column.title in titles if titles else column.title != "seed" or several_seeds)
    ]
    rows = []
    for entry in entries:
        path = entry.path.relative_to(folder) if entry.path.is_relative_to(folder) else entry.path
        tone: RowTone = "" if entry.state == "complete" else "stopped"
        rows.append(Row(Cell(str(path)), [Cell(written(entry)) for _, written in shown], tone=tone))
    return Table("Runs", "", columns("name", *(column for column, _ in shown)), rows)


def _reached(entry: Entry) -> str:
    return f" at {share_done(entry.progress)}" if entry.progress is not None else ""


def _state(entry: Entry) -> str:
    if entry.kind == "output" or not entry.state:
        return entry.note
    return entry.state + (_reached(entry) if entry.state == "stopped" else "")


def _figure(entry: Entry) -> str:
    """The main figure of an entry; that of a classifier is named, because it measures something else."""
    if entry.accuracy is not None:
        return f"{100 * entry.accuracy:.1f} %{' on validation' if entry.kind == 'classifier' else ''}"
    if entry.loss is not None:
        return f"loss {entry.loss:.3f}"
    return ""


def _moment(entry: Entry) -> str:
    return datetime.fromtimestamp(entry.when).strftime("%Y-%m-%d %H:%M")


_LISTED: tuple[tuple[Column, Callable[[Entry], str]], ...] = (  # columns of a list, and what they show of an entry
    (text_column("what"), lambda entry: entry.what),
    (text_column("preset", minor=True), lambda entry: entry.preset or ""),
    (text_column("mechanism"), lambda entry: ", ".join(name.rsplit(os.sep, 1)[-1] for name in entry.mechanisms)),
    (Column("seed", minor=True), lambda entry: "" if entry.seed is None else str(entry.seed)),
    (text_column("task", minor=True), lambda entry: entry.task or ""),
    (Column("tokens", minor=True), lambda entry: "" if entry.tokens is None else count(entry.tokens)),
    (Column("time", minor=True), lambda entry: "" if entry.seconds is None else duration(entry.seconds)),
    (text_column("result"), _figure),
    (text_column("when", minor=True), _moment),
    (text_column("state"), _state),
)


def entry_document(details: Details) -> Document:
    """One entry in full."""
    entry, record, result = details.entry, details.record, details.result or {}
    what = f"{entry.kind}, {entry.what}" if entry.kind in ("run", "study") else entry.what
    title = [str(entry.path), what, entry.state, entry.note, _moment(entry)]
    simple = {name: value for name, value in result.items() if not isinstance(value, list | dict)}
    data = [(name, source.source) for name, source in record.data.items()] if record else []
    inner = entries_table(entry.runs, entry.path, ("what", "mechanism", "time", "result", "state"))
    facts = {
        "Result": [*_accuracies(details), *flat(simple)],
        "Settings": plain_facts(entry.settings),
        "Data": [*data, *([("base", record.base)] if record and record.base else [])],
        "Files": [(name, sized(size)) for name, size in details.files or ()],
    }
    return Document(
        "entry",
        "  ".join(part for part in title if part),
        [],
        [
            *section(f"Different from preset {entry.preset}", _preset_differences(details) if record else None),
            *section("Runs", inner if entry.runs else None),
            *(Section(name, [Facts("", pairs)]) for name, pairs in facts.items() if pairs),
        ],
    )


def _preset_differences(details: Details) -> Facts | Text:
    if not details.differences:
        unknown = details.differences is None
        return Text(["Unknown: this version has no such preset." if unknown else "Nothing."])
    pairs = details.differences.items()
    return Facts("", [(name, f"{plain(value)} instead of {plain(usual)}") for name, (usual, value) in pairs])


def _accuracies(details: Details) -> Iterable[tuple[str, str]]:
    """The accuracies of a classifier, in words."""
    if details.entry.kind != "classifier" or not details.result:
        return
    for name, key in (("validation", "dev"), ("test", "test")):
        if stored := details.result.get(key):
            part = records.convert(Accuracy, stored)
            interval = span(part.low, part.high, "share")
            score = f"{figure(part.accuracy, 'share')} (95 % interval {interval})"
            yield name, f"{score}, {part.right} of {part.texts}"


# TensorBoard

_CURVES = ("loss", "rate", "epoch", "tokens")


def write_events(run: Path, folder: Path) -> Path:
    """Write the metrics of a run as one event file into a new folder, and return its path."""
    try:
        from tensorboard.summary import Writer
    except ImportError:
        raise UserError("TensorBoard's package is not installed: pip install 'attnlab[tensorboard]'") from None
    steps = Run(run).metrics()
    if not steps:
        raise UserError(f"{run} has no steps to export: train it first")
    refuse_existing(folder)
    began = (run / "config.json").stat().st_mtime  # steps know their seconds since the start only
    with tempfile.TemporaryDirectory() as place:
        writer = Writer(place)
        for step in steps:
            for name in _CURVES:
                writer.add_scalar(f"train/{name}", getattr(step, name), step.step, wall_time=began + step.seconds)
        writer.close()
        (events,) = Path(place).iterdir()
        write_folder(folder, "tensorboard", {events.name: events.read_bytes()}, about="curves for TensorBoard")
    return folder / events.name
