"""Commands about what was run: runs, with show, delete and export; and report."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App

from attnlab.cli import options as opt
from attnlab.cli.common import COMPARE, app, console, show_json
from attnlab.cli.options import about, default
from attnlab.errors import AttnlabError, UserError

if TYPE_CHECKING:
    from attnlab.listing import Entry

WHOLE = ("study", "classifier")  # kinds whose result is a report of its own

runs_app = App(name="runs", help="List runs and studies, find them by any setting, show or delete them.", group=COMPARE)
app.command(runs_app)

RunName = Annotated[str, about("Folder, or name in ./runs.")]


@runs_app.default
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
    """List runs and studies, the newest last.

    --filter takes any column and any setting, by its dotted name or the last part of it:
    mechanism=dot, 'train.lr>=0.001', name=recall-*, state!=complete.
    """
    from attnlab import listing
    from attnlab.report.runs import table_of

    entries: list[listing.Entry] = []
    if folder != Path("runs") or folder.exists():
        entries = listing.read_all(folder)
    entries = listing.choose(entries, [listing.Filter.parse(one) for one in filter or ()])
    entries = listing.arrange(listing.with_inner(entries) if all else entries, sort, reverse)
    if json:
        show_json([entry.plain() for entry in entries])
        return
    if not entries:
        console.print(f"nothing in {folder} meets the conditions" if filter else f"no runs in {folder} yet")
        return
    table, hidden = table_of(entries, folder, console.width)
    console.print(table)
    if hidden:
        console.print(f"({', '.join(hidden)} left out, since the screen is narrow; --json shows everything)")


@runs_app.command
def show(run: RunName, /, *, json: opt.Json = False) -> None:
    """Show one run or study: settings, differences from its preset, results, files."""
    from attnlab import listing
    from attnlab.folders import reporting_damage
    from attnlab.report.runs import entry_document
    from attnlab.report.screen import show_all

    entry = listing.find(run)
    with reporting_damage(entry.path):
        found = listing.details(entry)
        shown = entry_document(found)
    if json:
        show_json(found.plain())
        return
    show_all(shown, console)
    if entry.state == "stopped":
        console.print(f"\nresume it with: attnlab resume {shlex.quote(str(entry.path))}", soft_wrap=True)


@runs_app.command
def delete(
    *folders: Annotated[str, about("Folders, or names in ./runs.")],
    yes: Annotated[bool, about("Do not ask, for scripts.")] = False,
) -> None:
    """Delete runs and studies, after asking.

    Links, and folders that attnlab has not written, are refused."""
    from attnlab import listing
    from attnlab.report.words import sized

    if not folders:
        raise UserError("which? Name at least one run, as `attnlab runs` lists them")
    chosen = listing.outermost([listing.may_delete(listing.find(name)) for name in folders])
    if not yes and not sys.stdin.isatty():
        raise UserError("delete asks before it deletes, and nobody is there to answer: in a script, add --yes")
    total = 0
    for entry in chosen:
        files, size = listing.folder_size(entry.path)
        total += size
        around = listing.with_inner(listing.read_all(entry.path.parent))
        reasons = "".join(f"; {reason}" for reason in listing.reasons_to_keep(entry, around))
        counts = f"{files:,} file{'' if files == 1 else 's'}, {sized(size)}"
        console.print(f"{entry.path}  ({entry.what}, {counts}{reasons})", soft_wrap=True)
    if not yes and not _agreed(
        f"Delete {'this' if len(chosen) == 1 else f'these {len(chosen)}'}, {sized(total)}? [y/N] "
    ):
        console.print("nothing was deleted")
        return
    for entry in chosen:
        listing.delete(entry.path)
    console.print(f"deleted: {sized(total)} freed")


@runs_app.command
def export(run: RunName, /, *, tensorboard: Annotated[Path, about("Folder for TensorBoard's event files.")]) -> None:
    """Export the curves of a run, or of all runs of a study, one folder per run."""
    from attnlab import listing
    from attnlab.report.runs import write_events

    entry = listing.find(run)
    inner = entry.runs if entry.kind == "study" else (entry,)
    chosen = [one for one in inner if one.kind == "run"]
    if entry.kind in ("classifier", "encoder"):
        raise UserError(
            f"{run} has no curve of steps to export: what its epochs came to is in {entry.path / 'result.json'}"
        )
    if not chosen:
        raise UserError(f"{run} has no runs to export: {entry.note or 'nothing was trained yet'}")
    for one in chosen:
        name = Path(entry.name) / one.path.relative_to(entry.path)
        console.print(f"written: {write_events(one.path, tensorboard / name)}", soft_wrap=True)


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
    json: Annotated[opt.Json, about("Print JSON and write nothing.")] = False,
) -> None:
    """Write the report of a study again, or of runs side by side."""
    from attnlab.folders import read_json, refuse_existing, reporting_damage
    from attnlab.report import FORMATS, strict, write_report
    from attnlab.runs import unused_path

    if not runs:
        raise UserError("a report of what? Name a study or some runs, as `attnlab runs` lists them")
    entries = _chosen(runs)
    whole = len(entries) == 1 and entries[0].kind in WHOLE and entries[0].state == "complete"
    result = read_json(entries[0].path / "result.json") if whole else _side_by_side(entries, runs)
    if whole and not any(isinstance(value, list | dict) for value in result.values()):
        raise UserError(f"{entries[0].path}/result.json holds no result: it is damaged, or of another version")
    if json:
        show_json(strict(result))
        return
    if out is not None:
        refuse_existing(out)
    folder = out or (entries[0].path if whole else unused_path("report"))
    with reporting_damage(entries[0].path / "result.json"):
        path = write_report(result, folder, FORMATS if format == "all" else (format,))
    console.print(f"report: {path}", soft_wrap=True)


def _chosen(names: tuple[str, ...]) -> list[Entry]:
    """The runs and studies of these names; what is neither, or damaged, is refused."""
    from attnlab import listing

    entries = []
    for name in dict.fromkeys(names):
        entry = listing.find(name)
        if entry.kind == "link":
            entry = listing.read(entry.path.resolve())
        if entry.kind == "encoder":
            raise UserError(
                f"{name} is an encoder, which has no curves to show: {entry.path / 'README.md'} tells about it"
            )
        if entry.kind not in ("run", *WHOLE):
            raise UserError(f"{name} is neither a run nor a study ({entry.note or entry.what}): see `attnlab runs`")
        entries.append(entry)
    return entries


def _side_by_side(entries: list[Entry], names: tuple[str, ...]) -> dict[str, Any]:
    """The runs with those inside studies, as the report takes them."""
    from attnlab.report.runs import gather

    alone = [one for one in entries if one.kind in WHOLE and one.state == "complete" and not one.runs]
    if alone:
        raise UserError(f"{alone[0].path} has no runs to lay beside others: name it alone, and it is written again")
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
    """The defects that mechanisms declare; of users' files nothing is known, since a report runs nobody's code."""
    from attnlab import registry

    found = {}
    for name in {name for one in runs for name in one.mechanisms if ":" not in name}:
        try:
            found[name] = registry.find("mechanism", name).defect
        except AttnlabError:
            continue  # a mechanism of another version
    return found
