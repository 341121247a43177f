"""The verb that keeps order among runs: runs, with show, delete and export."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from cyclopts import App
from rich.table import Table
from rich.text import Text

from attnlab.cli.common import app, console, show_json
from attnlab.errors import UserError

runs_app = App(name="runs", help="List what was run, find it by any setting, show it, delete it.")
app.command(runs_app)


@runs_app.default
def runs(
    folder: Path = Path("runs"),
    /,
    *,
    filter: list[str] | None = None,
    sort: str = "when",
    reverse: bool = False,
    all: bool = False,
    json: bool = False,
) -> None:
    """List runs and studies, the newest last.

    Parameters
    ----------
    folder
        Where they lie.
    filter
        A condition such as mechanism=dot, train.lr>=0.001, name=recall-* or state!=complete; may be given several times.
        Any column and any setting will do, by its dotted name or the last part of it; quote < and >.
    sort
        Column or setting to sort by.
    reverse
        Largest first.
    all
        Also the runs inside studies.
    json
        Print for programs, with all settings.
    """
    from attnlab import listing
    from attnlab.report.run_list import table_of

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
def show(run: str, /, *, json: bool = False) -> None:
    """Show one run or study: settings, differences from its preset, results, files.

    Parameters
    ----------
    run
        Its folder, or its name in ./runs.
    json
        Print for programs.
    """
    from attnlab import listing
    from attnlab.report.run_list import headline, sections
    from attnlab.runs import interpreting

    entry = listing.find(run)
    with interpreting(entry.path):
        found = listing.details(entry)
        shown = sections(entry, found)
    if json:
        show_json(found)
        return
    console.print(headline(entry), soft_wrap=True)
    for title, rows in shown:
        table = Table(title=title, title_justify="left", box=None, show_header=False, pad_edge=False)
        for row in rows:
            table.add_row(*(Text(cell, overflow="fold") for cell in row))
        console.print()
        console.print(table)
    if entry.state == "stopped":
        console.print(f"\ngo on with: attnlab resume {shlex.quote(str(entry.path))}", soft_wrap=True)


@runs_app.command
def delete(*folders: str, yes: bool = False) -> None:
    """Delete runs and studies, after asking.

    Parameters
    ----------
    folders
        Their folders, or their names in ./runs. What attnlab has not made, is damaged or is a link is refused.
    yes
        Do not ask; for scripts.
    """
    from attnlab import listing
    from attnlab.report.words import sized

    if not folders:
        raise UserError("which? Name at least one run, as `attnlab runs` lists them")
    chosen = listing.outermost([listing.may_delete(listing.find(name)) for name in folders])
    if not yes and not sys.stdin.isatty():
        raise UserError("delete asks before it deletes, and nobody is there to answer: in a script, add --yes")
    total = 0
    for entry in chosen:
        files, size = listing.weigh(entry.path)
        total += size
        around = listing.with_inner(listing.read_all(entry.path.parent))
        reasons = "".join(f"; {reason}" for reason in listing.leans_on(entry, around))
        counts = f"{files:,} file{'' if files == 1 else 's'}, {sized(size)}"
        console.print(f"{entry.path}  ({entry.what}, {counts}{reasons})", soft_wrap=True)
    if not yes and not agreed(
        f"Delete {'this' if len(chosen) == 1 else f'these {len(chosen)}'}, {sized(total)}? [y/N] "
    ):
        console.print("nothing was deleted")
        return
    for entry in chosen:
        listing.delete(entry.path)
    console.print(f"deleted: {sized(total)} are free")


@runs_app.command
def export(run: str, /, *, tensorboard: Path) -> None:
    """Write the curves of a run, or of all runs of a study, for another program to show.

    Parameters
    ----------
    run
        Its folder, or its name in ./runs.
    tensorboard
        Folder for TensorBoard's event files, one folder a run; then: tensorboard --logdir DIR.
    """
    from attnlab import listing
    from attnlab.report.events import write_events

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


def agreed(question: str) -> bool:
    """Whether the person at the terminal says yes; no answer is a no."""
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        console.print()
        return False
