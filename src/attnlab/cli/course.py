"""Commands for teachers: check, course new, course sheet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App

from attnlab.cli.common import DESIGN, app, console, errors, say, show_json
from attnlab.errors import UserError
from attnlab.store.folders import folders_above, refuse_existing, write_bytes
from attnlab.studies import options as opt
from attnlab.studies.options import about


@app.command(group=DESIGN)
def check(
    sheet: Annotated[Path, about("TOML file with the tasks.")],
    /,
    *answers: Annotated[Path, about("Answer files, or a folder with one entry per student.")],
    csv: Annotated[Path | None, about("Also write the marks to this file; must not exist.")] = None,
    trust_code: Annotated[bool, about("Run the classes that students hand in, in a sandbox.")] = False,
    no_sandbox: Annotated[bool, about("Run them with all your permissions instead; read them first.")] = False,
    json: opt.Json = False,
) -> None:
    """Mark the answers of one student or of a whole course.

    An answer passes if it has the property that the sheet asks for. A malformed answer fails its
    task, an unreadable file all of them, and the rest is marked. Exit code 1 if a task of a file
    that is named fails, or if somebody could not be marked; marking a folder is 0, whoever fails.
    """
    from attnlab.course import mark
    from attnlab.report.screen import show_all
    from attnlab.report.text import as_csv

    if not answers:
        raise UserError("there are no answers to mark; name answer files, or a folder of them")
    if no_sandbox and not trust_code:
        raise UserError("--no-sandbox needs --trust-code, which runs the classes")
    if csv is not None:
        refuse_existing(csv)
    with errors.status("marking") as status:
        marks = mark(
            sheet,
            *answers,
            trust_code=trust_code,
            sandbox=not no_sandbox,
            tell=lambda text: status.update(f"marking: {text}"),
        )
    if json:
        show_json(marks.to_dict())
    else:
        show_all(marks.document(), console)
    if csv is not None:
        with folders_above(csv):
            write_bytes(csv, as_csv(marks.table()).encode())
        if not json:
            say(f"written: {csv}")
    if not marks.complete or not (marks.passed or any(path.is_dir() for path in answers)):
        raise SystemExit(1)


_course_app = App(name="course", help="Make an assignment for a course.", group=DESIGN)
app.command(_course_app)


@_course_app.command(name="new")
def course_new(folder: Annotated[Path, about("Folder to write; must not exist.")], /) -> None:
    """Write a ready assignment: sheet, data, notebook with gaps, example answers."""
    from attnlab.course.assignment import write_course

    say(*map(str, write_course(folder)), f"how to use it: {folder / 'README.md'}")


@_course_app.command(name="sheet")
def course_sheet(
    sheet: Annotated[Path, about("TOML file with the tasks.")],
    out: Annotated[Path, about("File to write; must not exist.")],
    /,
) -> None:
    """Write a sheet for students: without solutions, and without comments."""
    from attnlab.course.handout import students_sheet
    from attnlab.course.sheets import sheet_of
    from attnlab.design.check import read_toml

    settings = read_toml(sheet)
    sheet_of(settings, sheet)  # says what is wrong
    refuse_existing(out)
    with folders_above(out):
        write_bytes(out, students_sheet(settings).encode())
    say(f"written: {out}")
