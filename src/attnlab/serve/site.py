"""The page as plain files, without a server: Design, Mechanisms and chosen reports, for any folder of any host.

Every address of the page is a folder with an index.html, and every answer that the page asks a server for is a JSON file that
the same task has written. What is not among these files, the page does without, and says so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from msgspec import structs

from attnlab.errors import UserError
from attnlab.report.html import script, style
from attnlab.serve import design, mechanisms, runs
from attnlab.serve.routes import POLICY, VIEWS, Options, Query
from attnlab.store import listing
from attnlab.store.records import encode_line

_STATIC = Path(__file__).with_name("static")
_FOLDERS = re.compile(r"(?<=[\s>(=,'\"])(?:/[\w.@+-]+)+/(?=[\w.@+-])")  # those of an absolute path, such as of a corpus
# The script and style of reports, which those of the page are based on; the script as a module.
SHARED = {"report.js": lambda: script() + "export { enhancements };\n", "report.css": style}


def site_files(names: Sequence[str]) -> dict[str, bytes]:
    """The files of a site with the reports of these runs and studies, by their path."""
    entries = [listing.find(name) for name in dict.fromkeys(names)]
    for entry in entries:
        if entry.kind not in ("run", "study", "classifier", "output"):
            raise UserError(f"{entry.path} has no report ({entry.note or entry.what}): leave it out")
    paths = [entry.path.absolute() for entry in entries]
    root = Path(os.path.commonpath([path.parent for path in paths])) if paths else Path()
    inside = [path.relative_to(root).as_posix() for path in paths]
    static = [path for path in _STATIC.rglob("*.*") if path.suffix != ".html"]
    files = {f"static/{path.relative_to(_STATIC).as_posix()}": path.read_bytes() for path in static}
    files |= {f"static/{name}": text().encode() for name, text in SHARED.items()}
    answers = _views() | _reports(Options(root), inside)
    files |= {f"api/{name}.json": encode_line(answer) for name, answer in answers.items()}
    pages = ["", *(f"{place}/" for place in (*VIEWS, *(f"runs/{name}" for name in inside)))]
    return files | {f"{page}index.html": _index(page) for page in pages}


def _views() -> dict[str, Any]:
    """The answers to what Design and Mechanisms ask."""
    from attnlab.design.theorems import DERIVATIONS

    options = Options()
    catalogue, sheets = mechanisms.catalogue(options, Query()), design.examples(options, Query())
    answers: dict[str, Any] = {"mechanisms": catalogue, "design/sheets": sheets}
    answers["design/noise"] = design.noise(options, design.NoiseSettings())
    for one in catalogue.mechanisms:
        answers[f"mechanisms/{one.name}"] = mechanisms.card(options, mechanisms.MechanismQuery(one.name))
    for sheet in sheets:
        answers[f"design/sheet/{sheet.name}"] = design.read_sheet(options, design.SheetContent(sheet.text))
    return answers | {f"design/proof/{name}": design.prove(options, design.ProofQuery(name)) for name in DERIVATIONS}


def _reports(options: Options, names: Sequence[str]) -> dict[str, Any]:
    """The list of runs and their reports, without the folders of this machine."""
    reports = {name: runs.report(options, runs.RunQuery(name)) for name in names}
    answers: dict[str, Any] = {
        "runs": runs.Listing("", [replace(report.entry, runs=()) for report in reports.values()])
    }
    for name, report in reports.items():
        markup = report.markup
        for folder in (options.root, options.root.parent):
            markup = markup.replace(escape(f"{folder}/"), "") if folder.name else markup
        markup = _FOLDERS.sub("", markup)
        answers[f"runs/{name}/report"] = structs.replace(report, markup=markup, command="", path=Path(name), files=[])
    return answers


def _index(page: str) -> bytes:
    """The page for a folder of the site: its addresses are relative, and it says what it may load."""
    up, policy = "../" * page.count("/") or "./", POLICY.replace("; frame-ancestors 'none'", "")  # for servers only
    text = (_STATIC / "index.html").read_text(encoding="utf-8")
    text = re.sub(r'(src|href)="/', rf'\1="{up}', text).replace("<html", "<html data-static", 1)
    head = '<meta charset="utf-8">\n'
    return text.replace(head, f'{head}<meta http-equiv="Content-Security-Policy" content="{policy}">\n').encode()
