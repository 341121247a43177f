"""The view "design" as a widget of notebooks, with the scripts of the page and the solver in the kernel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import anywidget
import traitlets

from attnlab.errors import AttnlabError, UserError
from attnlab.report.html import style
from attnlab.serve import design_tasks
from attnlab.serve.bundle import bundle, read

_MOST_ROWS, _MOST_COLUMNS = 40, 8  # that the planes show
_DEFAULTS = {"index": 0, "indices": None, "weights": None, "target": None, "seconds": 5.0}
_Rows = Sequence[Sequence[float]]


def _widget_style() -> str:
    """The style of reports and of the page, for an element of its own instead of a whole page."""
    whole = style() + read("app.css") + read("views/design.css")
    whole = re.sub(r':root\[data-theme="(\w+)"\]', r':host([data-theme="\1"])', whole).replace(":root", ":host")
    return re.sub(r"^body \{", ".page {", whole, flags=re.MULTILINE)


def _rows(name: str, rows: _Rows) -> list[list[float]]:
    """Numbers as plain lists, or an error that names the fix."""
    try:
        plain = [[float(one) for one in row] for row in rows]
    except (TypeError, ValueError):
        raise UserError(f"{name} must be rows of numbers, such as [[1, 0], [0, 1]]") from None
    if not 0 < len(plain) <= _MOST_ROWS or len({len(row) for row in plain}) != 1:
        raise UserError(f"{name} must be 1 to {_MOST_ROWS} rows of the same length")
    if not 0 < len(plain[0]) <= _MOST_COLUMNS:
        raise UserError(f"rows of {name} must have 1 to {_MOST_COLUMNS} numbers")
    return plain


class DesignWidget(anywidget.AnyWidget):
    """Keys and values as points that can be dragged; `key_points`, `value_points` and `query` follow, and can be set."""

    _esm = bundle("widget.js")
    _style = traitlets.Unicode(_widget_style()).tag(sync=True)
    key_points: Any = traitlets.List().tag(sync=True)
    value_points: Any = traitlets.List().tag(sync=True)
    query: Any = traitlets.List().tag(sync=True)
    scaled = traitlets.Bool(False).tag(sync=True)
    verdict = traitlets.Dict(help="The last verdict of the solver.")

    def __init__(self, keys: _Rows, values: _Rows, query: Sequence[float] | None = None, scaled: bool = False) -> None:
        k, v = _rows("keys", keys), _rows("values", values)
        if len(k) != len(v):
            raise UserError(f"there are {len(k)} keys and {len(v)} values: give one value for each key")
        q = _rows("query", [query if query is not None else k[0]])[0]
        if len(q) != len(k[0]):
            raise UserError(f"the query must have {len(k[0])} numbers, as the keys have")
        super().__init__(key_points=k, value_points=v, query=q, scaled=scaled)
        self.on_msg(self._answer)

    def _answer(self, _: Any, asked: Any, __: Any) -> None:
        """Solve what the widget asks, and send the verdict or one line."""
        number = asked.get("number")
        try:
            if asked.get("path") != "design/solve":
                raise UserError("the widget can only ask the solver")
            self.verdict = design_tasks.solve({**_DEFAULTS, **asked["body"]})
            self.send({"number": number, "value": self.verdict})
        except AttnlabError as error:
            self.send({"number": number, "error": str(error)})
