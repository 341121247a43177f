"""Reports: a result becomes a Document, and a Document becomes a page, Markdown, JSON, tables, or lines of the terminal.

    document             the blocks that a Document is made of
    parts, words         shared builders, and the report of `attnlab score`; numbers and names in words
    runs                 runs side by side, as a list, and one in full
    html, text, screen   renderers: one HTML file; Markdown, CSV and LaTeX; the terminal
    charts               drawing

Results are plain data: a report knows nothing about models or tensors. Only `runs` reads run folders itself, because runs
side by side have no stored result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from attnlab.report.document import Document
from attnlab.report.html import as_html
from attnlab.report.text import as_csv, as_latex, as_markdown, named_tables
from attnlab.store.folders import write_bytes, write_folder
from attnlab.store.records import encode

__all__ = ["FORMATS", "write_document"]

FORMATS = ("md", "json", "csv", "latex", "html")  # the page last: it says that all is there


def _files_of(document: Document, formats: Sequence[str]) -> dict[str, str]:
    makers: dict[str, Callable[[], dict[str, str]]] = {
        "md": lambda: {"report.md": as_markdown(document)},
        "json": lambda: {"report.json": encode(document).decode()},
        "csv": lambda: {f"report-{name}.csv": as_csv(table) for name, table in named_tables(document)},
        "latex": lambda: {"report.tex": as_latex(document)},
        "html": lambda: {"report.html": as_html(document)},
    }
    return {name: text for kind in FORMATS if kind in formats for name, text in makers[kind]().items()}


def write_document(document: Document, folder: Path, formats: Sequence[str] = ("md", "html")) -> Path:
    """Write a Document into a folder; the path of the page, without one that of the only file, or the folder."""
    # Half a surrogate pair can occur in JSON but not in UTF-8.
    texts = _files_of(document, formats)
    files = {name: text.encode("utf-8", errors="replace") for name, text in texts.items()}
    if folder.exists():
        for name, content in files.items():
            write_bytes(folder / name, content)
    else:
        write_folder(folder, "report", files, about="a report")
    return folder / list(files)[-1] if "html" in formats or len(files) == 1 else folder
