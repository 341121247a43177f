"""A study's result as a page to read: one HTML file that needs nothing else, and the same numbers in Markdown.

    result ─┬─ outcome   the sentence at the top, from the intervals
            ├─ curves    losses, smoothed and thinned        ─┐
            ├─ answers   what was right, wrong, and nearly    ├─ page ── report.html
            ├─ attention, heads: the heads of one answer      ─┘
            └─ markdown                                      ── report.md

Plain data in, files out: the report must not know about models, tensors or how a result came about.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.report.markdown import markdown
from attnlab.report.page import page
from attnlab.runs import disk, write_bytes

__all__ = ["write_report"]


def write_report(result: Mapping[str, Any], folder: Path) -> Path:
    """Write report.md and report.html into the folder and return the path of the page."""
    with disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.html"
    written = {folder / "report.md": markdown(result), path: page(result)}
    for target, text in written.items():
        # Half a surrogate pair can stand in JSON but not in UTF-8.
        write_bytes(target, text.encode("utf-8", errors="replace"))
    return path
