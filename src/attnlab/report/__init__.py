"""Reports: a result becomes a Document, and a Document becomes a page, Markdown, JSON, tables, or lines of the terminal.

    score, why, runs, look    what a Document of each kind says
    document             the blocks that a Document is made of
    parts, words         shared builders; numbers and names in words
    html, text, screen   renderers: one HTML file; Markdown, CSV and LaTeX; the terminal
    charts               drawing

Results are plain data: a report knows nothing about models or tensors. Only `runs` reads run folders itself, because runs
side by side have no stored result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from attnlab.errors import CheckpointError
from attnlab.report import screen, why
from attnlab.report.document import Document, strict
from attnlab.report.html import as_html
from attnlab.report.legacy_parts import Result
from attnlab.report.text import as_csv, as_latex, as_markdown, named_tables
from attnlab.store.folders import write_bytes, write_folder
from attnlab.store.records import encode

__all__ = ["FORMATS", "Shown", "document_of", "show_result", "strict", "write_document", "write_report"]

FORMATS = ("md", "json", "csv", "latex", "html")  # the page last: it says that all is there
_DOCUMENTS: dict[str, Callable[[Result], Document]] = {
    "comparison": lambda result: import_module("attnlab.studies.compare").STUDY.document(result),
    "why": why.document,
}


class Shown(dict[str, Any]):
    """A result that notebooks show as its report."""

    def _repr_html_(self) -> str:
        return document_of(self)._repr_html_()


def document_of(result: Result) -> Document:
    """The Document of a result."""
    kind = result.get("kind", "")
    if kind not in _DOCUMENTS:
        raise CheckpointError(f"a result of the kind {kind!r} has no report here: use the version that wrote it")
    return _DOCUMENTS[kind](result)


def show_result(result: Result, console: Console) -> None:
    """Print the brief tables of a result and its sentences."""
    screen.show(document_of(result), console)


def _files_of(document: Document, formats: Sequence[str]) -> dict[str, str]:
    files: dict[str, str] = {}
    if "md" in formats:
        files["report.md"] = as_markdown(document)
    if "json" in formats:
        files["report.json"] = encode(document).decode()
    if "csv" in formats:
        files |= {f"report-{name}.csv": as_csv(one) for name, one in named_tables(document)}
    if "latex" in formats:
        files["report.tex"] = as_latex(document)
    if "html" in formats:
        files["report.html"] = as_html(document)
    return files


def write_report(result: Result, folder: Path, formats: Sequence[str] = ("md", "html")) -> Path:
    """Write the report of a result into a folder; the path of the page, without one that of the only file, or the folder."""
    return write_document(document_of(result), folder, formats)


def write_document(document: Document, folder: Path, formats: Sequence[str] = ("md", "html")) -> Path:
    """Write a Document into a folder; the path as in `write_report`."""
    # Half a surrogate pair can occur in JSON but not in UTF-8.
    texts = _files_of(document, formats)
    files = {name: text.encode("utf-8", errors="replace") for name, text in texts.items()}
    if folder.exists():
        for name, content in files.items():
            write_bytes(folder / name, content)
    else:
        write_folder(folder, "report", files, about="a report")
    return folder / list(files)[-1] if "html" in formats or len(files) == 1 else folder
