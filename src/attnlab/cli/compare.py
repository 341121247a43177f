"""Commands that compare: compare, runs with show, delete and export, and report."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from attnlab import studies
from attnlab.cli.common import COMPARE, app, console, errors, say, show_json
from attnlab.errors import UserError
from attnlab.machine import require_single_process
from attnlab.registry import listings
from attnlab.store import listing, usercode
from attnlab.store.folders import read_json, refuse_existing, reporting_damage
from attnlab.store.runs import unused_path
from attnlab.studies import options as opt
from attnlab.studies.options import NONE, SETTINGS_HINT, about, collect, default, typed_command

if TYPE_CHECKING:
    from attnlab.studies.compare import Plan

_REPORTED = ("study", "classifier")  # kinds whose result is a whole report

_runs_app = App(
    name="runs",
    help="""List runs and studies, find them by any setting, show or delete them.

--filter takes any column and any setting, by its dotted name or the last part of it:
mechanism=dot, 'train.lr>=0.001', name=recall-*, state!=complete.""",
    group=COMPARE,
)
app.command(_runs_app)

_RunName = Annotated[str, about("Folder, or name in ./runs.")]


def _compare_command() -> Callable[..., None]:
    """Make the command `compare`, whose options are the fields of the study."""
    from attnlab.studies.compare import Compare

    usual = Compare()

    def compare(
        *variants: Annotated[str, about("What to compare; the first is the baseline.")],
        study: Compare = usual,
        out: Annotated[opt.Out | None, default("runs/compare-N")] = None,
        mechanism: Annotated[opt.Mechanism | None, about("Mechanism shared by all values of --vary.")] = None,
        plan: Annotated[bool, about("Dry run: report the statistical power.")] = False,
        pilot: Annotated[str | None, about("With --plan: finished comparison that shows how much seeds vary.")] = None,
        trust_code: opt.TrustCode = False,
        json: opt.Json = False,
        given: opt.Settings = NONE,
    ) -> None:
        require_single_process("a comparison")
        if pilot and not plan:
            raise UserError("--pilot needs --plan: add --plan, or leave it out")
        asked = replace(study, names=variants, given=collect(given, mechanism), command=typed_command())
        with usercode.trusting(trust_code):
            if plan:
                _show_plan(asked.completed(), pilot, json)
                return
            outcome = asked.begin(out or unused_path("compare"), errors if json else console)
        if json:
            show_json(outcome.result)

    compare.__annotations__["study"] = Annotated[Compare, Parameter(name="*")]
    compare.__doc__ = Compare.__doc__
    return compare


def __getattr__(name: str) -> Callable[..., None]:
    if name != "compare":
        raise AttributeError(name)
    return _compare_command()


app.command(
    f"{__name__}:compare",
    name="compare",
    group=COMPARE,
    help=listings("study")["compare"].card,
    help_epilogue=SETTINGS_HINT,
)


def _show_plan(plan: Plan, pilot: str | None, json: bool) -> None:
    from attnlab.report.screen import as_rich
    from attnlab.studies.compare import plan_from_pilot

    plan.check()
    outlooks, names = plan_from_pilot(plan, pilot), [variant.name for variant in plan.variants]
    if json:
        known = {"variants": names, "varied": plan.varied, "order": plan.order(), "workers": plan.workers}
        show_json({**known, **vars(outlooks)})
        return
    runs = ", ".join(f"{name} {seed}" for name, seed in plan.order())
    say(
        f"{', '.join(names)} differ in {plan.varied} only",
        f"{len(plan.order())} runs, {f'{plan.workers} at a time' if plan.at_a_time else plan.workers}: {runs}",
        *(f"- {note}" for note in outlooks.notes),
    )
    if outlooks.outlooks:
        table = outlooks.table()
        say(f"- {table.caption}")
        console.print(as_rich(table, console.width)[0])
        say(*filter(None, [outlooks.closing()]))


@_runs_app.default
def runs(
    folder: Annotated[Path, about("Folder that holds the runs.")] = Path("runs"),
    /,
    *,
    filter: Annotated[list[str] | None, about("Condition, such as mechanism=dot; repeatable.")] = None,
    sort: Annotated[str, about("Column or setting to sort by.")] = "when",
    reverse: Annotated[bool, about("Sort in descending order.")] = False,
    all: Annotated[bool, about("Also list the runs inside studies.")] = False,
    json: Annotated[opt.Json, about("Print JSON, with all settings.")] = False,
) -> None:
    """List runs and studies, the newest last."""
    from attnlab.report.runs import entries_table
    from attnlab.report.screen import as_rich

    entries: list[listing.Entry] = []
    if folder != Path("runs") or folder.exists():
        entries = listing.read_all(folder)
    entries = listing.choose(entries, [listing.Filter.parse(text) for text in filter or ()])
    entries = listing.arrange(listing.with_inner(entries) if all else entries, sort, reverse)
    if json:
        show_json([entry.plain() for entry in entries])
        return
    if not entries:
        say(f"nothing in {folder} meets the conditions" if filter else f"no runs in {folder} yet")
        return
    table, hidden = as_rich(entries_table(entries, folder), console.width)
    console.print(table)
    if hidden:
        console.print(f"(columns left out because the screen is narrow: {', '.join(hidden)}; --json shows everything)")


@_runs_app.command
def show(run: _RunName, /, *, json: opt.Json = False) -> None:
    """Show one run or study: settings, differences from its preset, results, files."""
    from attnlab.report.runs import entry_document
    from attnlab.report.screen import show_all

    entry = listing.find(run)
    with reporting_damage(entry.path):
        details = listing.details(entry)
        shown = entry_document(details)
    if json:
        show_json(details.plain())
        return
    show_all(shown, console)
    if entry.state == "stopped":
        say(f"\nresume it with: attnlab resume {shlex.quote(str(entry.path))}")


@_runs_app.command
def delete(
    *folders: Annotated[str, about("Folders, or names in ./runs.")],
    yes: Annotated[bool, about("Skip confirmation.")] = False,
) -> None:
    """Delete runs and studies, after asking.

    Links, and folders that attnlab has not written, are refused."""
    from attnlab.report.words import sized

    if not folders:
        raise UserError("name at least one run to delete, as `attnlab runs` lists them")
    chosen = listing.outermost([listing.may_delete(listing.find(name)) for name in folders])
    if not yes and not sys.stdin.isatty():
        raise UserError("delete asks for confirmation, which needs a terminal: in a script, add --yes")
    total = 0
    for entry in chosen:
        files, size = listing.folder_size(entry.path)
        total += size
        around = listing.with_inner(listing.read_all(entry.path.parent))
        reasons = "".join(f"; {reason}" for reason in listing.reasons_to_keep(entry, around))
        counts = f"{files:,} file{'' if files == 1 else 's'}, {sized(size)}"
        say(f"{entry.path}  ({entry.what}, {counts}{reasons})")
    if not yes and not _agreed(
        f"Delete {'this' if len(chosen) == 1 else f'these {len(chosen)}'}, {sized(total)}? [y/N] "
    ):
        say("nothing was deleted")
        return
    for entry in chosen:
        listing.delete(entry.path)
    say(f"deleted: {sized(total)} freed")


@_runs_app.command
def export(run: _RunName, /, *, tensorboard: Annotated[Path, about("Folder for TensorBoard's event files.")]) -> None:
    """Export the curves of a run, or of all runs of a study, one folder per run."""
    from attnlab.report.runs import write_events

    entry = listing.find(run)
    inner = entry.runs if entry.kind == "study" else (entry,)
    chosen = [child for child in inner if child.kind == "run"]
    if entry.kind == "classifier":
        raise UserError(f"{run} has no curves to export: the results of its epochs are in {entry.path / 'result.json'}")
    if not chosen:
        raise UserError(f"{run} has no runs to export: {entry.note or 'nothing was trained yet'}")
    for child in chosen:
        name = Path(entry.name) / child.path.relative_to(entry.path)
        say(f"written: {write_events(child.path, tensorboard / name)}")


def _agreed(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        console.print()
        return False


@app.command(group=COMPARE)
def report(
    *runs: Annotated[str, about("One study, comparison or classification, or runs: folders, or names in ./runs.")],
    out: Annotated[opt.Out | None, default("the study, or runs/report-N")] = None,
    format: Annotated[Literal["html", "md", "json", "csv", "latex", "all"], about("Format to write.")] = "all",
    json: Annotated[opt.Json, about("Print result.json and write nothing.")] = False,
) -> None:
    """Write the report of a study again, or of runs side by side."""
    from attnlab.report import FORMATS, write_document
    from attnlab.report.runs import side_by_side

    if not runs:
        raise UserError("name a study or some runs, as `attnlab runs` lists them")
    entries = _chosen(runs)
    first = entries[0]
    whole = len(entries) == 1 and first.kind in _REPORTED and first.state == "complete"
    if json:
        stored = read_json(first.path / "result.json") if whole else side_by_side(entries, runs)
        show_json(stored)
        return
    if out is not None:
        refuse_existing(out)
    folder = out or (first.path if whole else unused_path("report"))
    if whole and first.kind == "classifier":
        from attnlab.hf.documents import read_classification

        document = read_classification(first.path)
    elif whole:
        document = studies.document_of(first.path)
    else:
        document = studies.document_of_several(entries, runs)
    path = write_document(document, folder, FORMATS if format == "all" else (format,))
    say(f"report: {path}")


def _chosen(names: tuple[str, ...]) -> list[listing.Entry]:
    """The runs and studies of these names; refuses anything else, and damaged ones."""
    entries = []
    for name in dict.fromkeys(names):
        entry = listing.find(name)
        if entry.kind == "link":
            entry = listing.read(entry.path.resolve())
        if entry.kind == "output":
            raise UserError(f"{name} is {entry.note or entry.what}, which already holds its report")
        if entry.kind not in ("run", *_REPORTED):
            raise UserError(f"{name} is neither a run nor a study ({entry.note or entry.what}): see `attnlab runs`")
        entries.append(entry)
    return entries
