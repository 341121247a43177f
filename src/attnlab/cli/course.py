"""Commands for teachers: check, course new, course sheet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App

from attnlab.cli.common import DESIGN, app, console, errors, say, show_json
from attnlab.errors import UserError
from attnlab.store.folders import folders_above, refuse_existing, write_bytes, write_folder
from attnlab.studies import options as opt
from attnlab.studies.options import about


@app.command(group=DESIGN)
def check(
    sheet: Annotated[Path, about("TOML file with the tasks.")],
    /,
    *answers: Annotated[Path, about("Answer files, or a folder with one entry per student.")],
    out: Annotated[opt.Out | None, about("Folder to write: a page for the class, feedback per student.")] = None,
    csv: Annotated[Path | None, about("Also write the marks to this file; must not exist.")] = None,
    trust_code: Annotated[bool, about("Run the classes that students hand in, in a sandbox.")] = False,
    no_sandbox: Annotated[bool, about("Run them with all your permissions instead; read them first.")] = False,
    json: opt.Json = False,
) -> None:
    """Mark the answers of a student or a course; or check a sheet.

    Without answers, the sheet is checked, and its tasks about attention are solved. With --out, a page
    for the class and the feedback for every student are written.
    An answer passes if it has the property that the sheet asks for. A malformed answer fails its
    task, an unreadable file all of them, and the rest is marked. Exit code 1 if a task of a file
    that is named fails, or if somebody could not be marked; marking a folder is 0, whoever fails.
    """
    from attnlab.course import mark, review
    from attnlab.report.screen import show_all
    from attnlab.report.text import as_csv

    if not answers:
        if out or csv or json or trust_code:
            raise UserError("there are no answers to mark; name answer files, or a folder of them")
        with errors.status("checking the sheet"):
            document = review(sheet)
        show_all(document, console)
        return
    if no_sandbox and not trust_code:
        raise UserError("--no-sandbox needs --trust-code, which runs the classes")
    for target in filter(None, (out, csv)):
        refuse_existing(target)
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
        show_all(marks.summary(), console)
    if out is not None:
        write_folder(out, "marks", marks.files(), about="marks")
        if not json:
            say(f"page: {out / 'class.html'}", f"feedback: {out / 'feedback'}")
    elif len(marks.students) > 1 and not json:
        say("--out FOLDER writes the reasons: a page for the class, and feedback for every student")
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
