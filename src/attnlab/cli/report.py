"""The verb that writes what came out as a page: report."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnlab.cli.common import app, console, show_json
from attnlab.errors import AttnlabError, UserError

if TYPE_CHECKING:
    from attnlab.listing import Entry

WHOLE = ("study", "classifier")  # kinds whose result is a report's


@app.command
def report(
    *runs: str,
    out: Path | None = None,
    format: Literal["html", "md", "json", "csv", "latex", "all"] = "all",
    json: bool = False,
) -> None:
    """Write a report: of a study, comparison or classification again, or of any runs side by side.

    Parameters
    ----------
    runs
        One study, comparison or classification, or one or more runs: folders, or names in ./runs.
    out
        Folder for the report; must not exist. Default: the folder of what is finished, for runs runs/report-N.
    format
        What to write: the page, Markdown, JSON, the tables as CSV or LaTeX, or all of them.
    json
        Print the data and write nothing.
    """
    from jinja2 import TemplateError

    from attnlab.report import FORMATS, strict, write_report
    from attnlab.runs import free_name, interpreting, read_json, refuse_existing

    if not runs:
        raise UserError("a report of what? Name a study or some runs, as `attnlab runs` lists them")
    entries = chosen(runs)
    whole = len(entries) == 1 and entries[0].kind in WHOLE and entries[0].state == "complete"
    result = read_json(entries[0].path / "result.json") if whole else side_by_side(entries, runs)
    if whole and not any(isinstance(value, list | dict) for value in result.values()):
        raise UserError(f"{entries[0].path}/result.json holds no result: it is damaged, or of another version")
    if json:
        show_json(strict(result))
        return
    if out is not None:
        refuse_existing(out)
    folder = out or (entries[0].path if whole else free_name("report"))
    try:
        with interpreting(entries[0].path / "result.json"):
            path = write_report(result, folder, FORMATS if format == "all" else (format,))
    except TemplateError as error:
        raise UserError(f"{entries[0].path}/result.json lacks {error}: it is damaged, or of another version") from None
    console.print(f"report: {path}", soft_wrap=True)


def chosen(names: tuple[str, ...]) -> list[Entry]:
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


def side_by_side(entries: list[Entry], names: tuple[str, ...]) -> dict[str, Any]:
    """The runs with those inside studies, as the report takes them."""
    from attnlab.report.runs import gather

    alone = [one for one in entries if one.kind in WHOLE and one.state == "complete" and not one.runs]
    if alone:
        raise UserError(f"{alone[0].path} has no runs to lay beside others: name it alone, and it is written again")
    inner = [one for entry in entries for one in (entry.runs if entry.kind == "study" else (entry,))]
    runs = [one for one in inner if one.kind == "run"]
    if not runs:
        raise UserError(f"{', '.join(names)} has no runs yet: go on with `attnlab resume {shlex.quote(names[0])}`")
    stopped = [one for one in entries if one.kind == "study" and one.state != "complete"]
    note = "; ".join(
        f"the study {one.name} is not finished: attnlab resume {shlex.quote(str(one.path))}" for one in stopped
    )
    return gather(runs, shlex.join(["attnlab", "report", *names]), defects(runs), note[:1].upper() + note[1:])


def defects(runs: list[Entry]) -> dict[str, str]:
    """The defects that mechanisms declare; of users' files nothing is known, since a report runs nobody's code."""
    from attnlab import registry

    found = {}
    for name in {name for one in runs for name in (one.mechanism or "").split(",") if name and ":" not in name}:
        try:
            found[name] = registry.find("mechanism", name).defect
        except AttnlabError:
            continue  # a mechanism of another version
    return found
