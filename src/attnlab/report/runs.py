"""The report of runs side by side: gathered from their folders, where they differ, what came out.

Nothing is claimed about why they differ: such runs may differ in many settings at once, and each was done once. A run that
was stopped is shown as far as it came. Knows run folders through `listing`, and nothing of models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from attnlab.folders import read_json, reporting_damage
from attnlab.listing import Entry
from attnlab.machine import environment
from attnlab.report.document import Cell, Chart, Column, Document, Facts, Notice, Row, Section, Table, section
from attnlab.report.parts import folded, joint_losses
from attnlab.report.words import NOTHING, figure, magnitude, plain, plural
from attnlab.runs import Run

Result = Mapping[str, Any]

NO_CLAIM = (
    "These runs merely lie side by side: whether they differ by more than chance is not tested here;"
    " attnlab compare makes runs that can be tested."
)
ALONE = "One run: how much another seed would change its numbers is not known."
FIGURES = (
    ("loss", "Loss", "loss", "mean over the last twentieth of the steps"),
    ("accuracy", "Accuracy", "share", ""),
    ("seconds", "Training", "seconds", ""),
    ("tokens_per_second", "Tokens per second", "rate", ""),
    ("steps", "Steps", "count", ""),
    ("tokens", "Tokens", "count", ""),
    ("parameters", "Parameters", "count", ""),
    ("peak_memory", "Peak memory", "bytes", ""),
)
LARGER_IS_BETTER = ("accuracy", "tokens_per_second")
DEFECT = "declared defect"


# Gathering


def gather(entries: Sequence[Entry], command: str, defects: Mapping[str, str], note: str = "") -> dict[str, Any]:
    """Everything the report of some runs needs, as plain data; `defects` are those that mechanisms declare, by name."""
    names = distinct_names(entries)
    runs = []
    for entry, name in zip(entries, names, strict=True):
        with reporting_damage(entry.path):
            runs.append(describe(entry, name, defects))
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


def distinct_names(entries: Sequence[Entry]) -> list[str]:
    """The shortest ends of the paths that tell all runs apart."""
    most = max(len(entry.path.parts) for entry in entries)
    for parts in range(1, most + 1):
        names = ["/".join(entry.path.parts[-parts:]) for entry in entries]
        if len(set(names)) == len(names):
            break
    return names


def describe(entry: Entry, name: str, defects: Mapping[str, str]) -> dict[str, Any]:
    """One run: what was asked, how far it came, what came out."""
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
        "values": values_of(result, metrics, entry),
        "settings": {"stage": entry.what, **entry.settings, **data, "base": stored.get("base")},
        "metrics": [{key: row.get(key) for key in ("step", "tokens", "loss", "seconds")} for row in metrics],
    }


def values_of(result: Result, metrics: Sequence[Result], entry: Entry) -> dict[str, Any]:
    """The figures of a run; those of one that was stopped come from its steps."""
    last = metrics[-1] if metrics else {}
    recent = [row["loss"] for row in metrics[-max(1, len(metrics) // 20) :] if row.get("loss") is not None]
    seconds, tokens = entry.seconds, entry.tokens
    so_far = {
        "loss": math.fsum(recent) / len(recent) if recent else None,
        "steps": last.get("step"),
        "tokens_per_second": tokens / seconds if tokens and seconds else None,
    }
    done = {"loss": result["final_loss"]} if "final_loss" in result else {}
    return {
        **so_far,
        "seconds": seconds,
        "tokens": tokens,
        **{key: result[key] for key, *_ in FIGURES if result.get(key) is not None},
        **done,
    }


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings that are not the same in all runs, in their order."""
    names = dict.fromkeys(name for one in settings for name in one)

    def same(one: Any, other: Any) -> bool:
        return bool(one == other) or not (
            one or other or isinstance(one, int | float) or isinstance(other, int | float)
        )

    return [name for name in names if any(not same(one.get(name), settings[0].get(name)) for one in settings)]


# Showing


def mark(run: Result) -> tuple[str, str]:
    """The word beside a run's name, and its tone."""
    if run["defect"]:
        return DEFECT, "leaks"
    if run["state"] == "complete":
        return "", ""
    reached = f" at {100 * run['progress']:.0f} %" if run["progress"] is not None else ""
    return f"{'still training' if run['state'] == 'active' else 'stopped'}{reached}", "stopped"


def results_table(result: Result) -> Table:
    """The runs by what came out."""
    there = [one for one in FIGURES if any(run["values"].get(one[0]) is not None for run in result["runs"])]
    rows = [
        Row(
            Cell(run["name"]),
            [Cell(figure(run["values"].get(key), kind), run["values"].get(key)) for key, _, kind, _ in there],
            *mark(run),
        )
        for run in result["runs"]
    ]
    columns = [Column(title, note=note, largest_first=key in LARGER_IS_BETTER) for key, title, _, note in there]
    caption = NO_CLAIM if len(rows) > 1 else ALONE
    return Table("Results", caption, [Column("Run", number=False), *columns], rows, brief=True)


def differences_table(result: Result) -> Table | None:
    """Where the runs differ: runs by settings, or the other way round where there are more settings than runs."""
    names, runs = result["differs"], result["runs"]
    if not names:
        return None

    def cell(run: Result, name: str) -> Cell:
        value = run["settings"].get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return Cell(plain(value) if name in run["settings"] else NOTHING, value if number else None)

    caption = "All other settings are the same." if len(runs) > 1 else ""
    if len(names) <= len(runs):
        columns = [Column(name, number=all(cell(run, name).value is not None for run in runs)) for name in names]
        rows = [Row(Cell(run["name"]), [cell(run, name) for name in names], *mark(run)) for run in runs]
        return Table("Differences", caption, [Column("Run", number=False), *columns], rows)
    titles = [f"{run['name']} ({mark(run)[0]})" if mark(run)[0] else run["name"] for run in runs]
    turned = [Row(Cell(name), [cell(run, name) for run in runs]) for name in names]
    columns = [Column("Setting", number=False), *(Column(one, number=False) for one in titles)]
    return Table("Differences", caption, columns, turned)


def curve_charts(result: Result) -> list[Chart]:
    """The loss curves of all runs together."""
    last = [run["metrics"][-1]["tokens"] for run in result["runs"] if run["metrics"]]
    size, unit = magnitude(max(last, default=0))
    named = []
    for run in result["runs"]:
        word, tone = mark(run)
        named.append((f"{run['name']} ({word})" if word else run["name"], [run["metrics"]], tone == "leaks"))
    return joint_losses(named, size, unit, band=False)


def document(result: Result) -> Document:
    """The whole report."""
    defects = dict.fromkeys(run["defect"] for run in result["runs"] if run["defect"])
    notices = [Notice("Declared defect.", f"{one}. Its numbers are invalid as a gain.", "leaks") for one in defects]
    if result["note"]:
        notices.append(Notice("Note:", result["note"]))
    settings = [
        folded(
            f"Settings of {run['name']}",
            Facts(
                "Settings", [(name, plain(value)) for name, value in run["settings"].items() if plain(value) != NOTHING]
            ),
        )
        for run in result["runs"]
    ]
    machine = [(name, plain(value)) for name, value in result["environment"].items()]
    settings.append(folded("The machine that wrote this report", Facts("Machine", machine)))
    return Document(
        kind="runs",
        title=result["title"],
        lead=[],
        sections=[
            *section("Results", results_table(result)),
            *section("Where they differ", differences_table(result)),
            *section("Training", *curve_charts(result)),
            Section("Settings", settings),
        ],
        notices=notices,
        about=f"The newest is of {result['finished']}.",
        command=result["command"],
    )
