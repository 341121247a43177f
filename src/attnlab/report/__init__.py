"""A result as a page to read: one HTML file that needs nothing else, and the same numbers in Markdown and JSON.

    a study ──────── outcome   the sentence at the top, from the intervals
                     curves    losses, smoothed and thinned
                     answers   what was right, wrong, and nearly        ── page, markdown
                     attention, heads: the heads of one answer
    a comparison ─── compared, compared_pairs, compared_texts: tables
                     compared_charts, compared_epochs                   ── compared_page, _markdown, _screen
    trust ────────── trusting, trusting_charts                          ── trusting_page
    several runs ─── beside    what lies side by side                   ── beside_page
    study why ────── why       exposures and forms, charts and tables   ── why_page
    classification ─ classified tables and charts                       ── classified_page, _screen
    a search ─────── searched  trials, charts and tables                ── searched_page

Plain data in, files out: the report must not know about models, tensors or how a result came about.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.report.beside_page import runs_markdown, runs_page
from attnlab.report.classified_page import classified_markdown, classified_page
from attnlab.report.compared_markdown import comparison_markdown
from attnlab.report.compared_page import comparison_page
from attnlab.report.markdown import markdown
from attnlab.report.page import page
from attnlab.report.searched_page import search_markdown, search_page
from attnlab.report.trusting_page import trust_markdown, trust_page
from attnlab.report.why_page import why_markdown, why_page
from attnlab.runs import write_bytes, write_folder

__all__ = ["FORMATS", "strict", "write_report"]

FORMATS = ("md", "json", "html")  # the page last: it says that all is there
Writer = Callable[[Mapping[str, Any]], str]


def strict(value: Any) -> Any:
    """The same without numbers that JSON does not know."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: strict(item) for key, item in value.items()}
    return [strict(item) for item in value] if isinstance(value, list | tuple) else value


def as_json(result: Mapping[str, Any]) -> str:
    """The result for other programs, as JSON that all of them can read."""
    return json.dumps(strict(result), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def writers(result: Mapping[str, Any]) -> dict[str, Writer]:
    """Who writes a result of this shape, by format."""
    if "space" in result:
        return {"md": search_markdown, "json": as_json, "html": search_page}
    if "best_epoch" in result:
        return {"md": classified_markdown, "json": as_json, "html": classified_page}
    if "specimens" in result:
        return {"md": comparison_markdown, "json": as_json, "html": comparison_page}
    if "groups" in result:
        return {"md": trust_markdown, "json": as_json, "html": trust_page}
    if "differs" in result:
        return {"md": runs_markdown, "json": as_json, "html": runs_page}
    if "cells" in result:
        return {"md": why_markdown, "json": as_json, "html": why_page}
    return {"md": markdown, "json": as_json, "html": page}


def write_report(result: Mapping[str, Any], folder: Path, formats: Sequence[str] = ("md", "html")) -> Path:
    """Write the report of a study, a comparison or several runs into the folder and return the path of the page.

    Without a page among the formats it is the path of the last that was written.
    """
    by_format = writers(result)
    texts = {f"report.{name}": by_format[name](result) for name in FORMATS if name in formats}
    # Half a surrogate pair can stand in JSON but not in UTF-8.
    files = {name: text.encode("utf-8", errors="replace") for name, text in texts.items()}
    if folder.exists():
        for name, content in files.items():
            write_bytes(folder / name, content)
    else:
        write_folder(folder, "report", files)
    return folder / list(files)[-1]
