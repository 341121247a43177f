"""Pieces of SVG as text, and how wide words are in them. Colours are classes; knows nothing of data."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape

LETTER = 7.0  # average width of a letter of the charts' 13 px font
NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def finite(*values: float) -> bool:
    """Whether all of these can be drawn."""
    return all(math.isfinite(value) for value in values)


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start", extra: str = "") -> str:
    """A text element."""
    names = f' class="{kind}"' if kind else ""
    side = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{names}{side}{extra}>{clean(words)}</text>'


def clean(words: str) -> str:
    """Text that is safe in SVG: escaped, without characters that XML forbids."""
    return escape(NOT_XML.sub("\ufffd", words), quote=True)


def width_of(words: str) -> float:
    """About how wide words are, in pixels: m and w take more than an average letter, capitals a little more."""
    wide, capitals = sum(letter in "mwMW" for letter in words), sum(letter.isupper() for letter in words)
    return LETTER * len(words) + 5 * wide + 2 * capitals


def shorten(words: str, room: float) -> str:
    """The words, cut with an ellipsis where they do not fit into so many pixels."""
    most = max(4, int(room / LETTER))
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"


def svg(width: float, height: float, label: str, parts: Sequence[str], extra: str = "") -> str:
    """The frame of every chart; `--wide` tells the style sheet its width."""
    return (
        f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
        f' style="--wide: {width:g}px" role="img" aria-label="{clean(label)}"{extra}>' + "".join(parts) + "</svg>"
    )


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
