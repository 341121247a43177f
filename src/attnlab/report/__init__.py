"""Reports: a result becomes a Document, and a Document becomes a page, Markdown, JSON, tables, or lines of the terminal.

    recall, trust, why, comparison, search, classification, runs, look    what a Document of each kind says
    document             the blocks that a Document is made of
    parts, curves, words what several of them share
    html, text, screen   who shows a Document: one HTML file; Markdown, CSV and LaTeX; the terminal
    charts, heat, svg    drawing

Plain data in, files out: a report must not know about models, tensors or how a result came about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from attnlab.folders import write_bytes, write_folder
from attnlab.report import classification, comparison, recall, runs, screen, search, trust, why
from attnlab.report.document import Document, as_json, strict
from attnlab.report.html import as_html
from attnlab.report.text import as_csv, as_latex, as_markdown, named_tables

__all__ = ["FORMATS", "document_of", "show_result", "strict", "write_report"]

FORMATS = ("md", "json", "csv", "latex", "html")  # the page last: it says that all is there
DOCUMENTS: dict[str, Callable[[Mapping[str, Any]], Document]] = {
    "classification": classification.document,
    "comparison": comparison.document,
    "recall": recall.document,
    "runs": runs.document,
    "search": search.document,
    "trust": trust.document,
    "why": why.document,
}
# Results of older versions do not say their kind; these keys are in no other.
OLDER = {
    "space": "search",
    "best_epoch": "classification",
    "specimens": "comparison",
    "groups": "trust",
    "differs": "runs",
    "cells": "why",
}


def document_of(result: Mapping[str, Any]) -> Document:
    """The Document of a result."""
    guessed = next((kind for key, kind in OLDER.items() if key in result), "recall")
    return DOCUMENTS[result.get("kind", guessed)](result)


def show_result(result: Mapping[str, Any], console: Console) -> None:
    """Print the brief tables of a result and its sentences."""
    screen.show(document_of(result), console)


def files_of(document: Document, formats: Sequence[str]) -> dict[str, str]:
    """The files of a report by name."""
    files: dict[str, str] = {}
    if "md" in formats:
        files["report.md"] = as_markdown(document)
    if "json" in formats:
        files["report.json"] = as_json(document)
    if "csv" in formats:
        files |= {f"report-{name}.csv": as_csv(one) for name, one in named_tables(document)}
    if "latex" in formats:
        files["report.tex"] = as_latex(document)
    if "html" in formats:
        files["report.html"] = as_html(document)
    return files


def write_report(result: Mapping[str, Any], folder: Path, formats: Sequence[str] = ("md", "html")) -> Path:
    """Write the report of a result into a folder; the path of the page, without one that of the only file, or the folder."""
    # Half a surrogate pair can occur in JSON but not in UTF-8.
    texts = files_of(document_of(result), formats)
    files = {name: text.encode("utf-8", errors="replace") for name, text in texts.items()}
    if folder.exists():
        for name, content in files.items():
            write_bytes(folder / name, content)
    else:
        write_folder(folder, "report", files)
    return folder / list(files)[-1] if "html" in formats or len(files) == 1 else folder
