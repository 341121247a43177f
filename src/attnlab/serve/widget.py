"""The view "design" as a widget of notebooks, with the scripts of the page and the solver in the kernel."""

from __future__ import annotations

import math
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
_TOGETHER = "; to change both, set them in `with widget.hold_trait_notifications():`"
_DEFAULTS = {"index": 0, "indices": None, "weights": None, "target": None, "seconds": 5.0}
_Rows = Sequence[Sequence[float]]


def _widget_style() -> str:
    """The style of reports and of the page, for an element of its own instead of a whole page."""
    whole = style() + read("app.css") + read("views/design.css")
    whole = re.sub(r':root\[data-theme="(\w+)"\]', r':host([data-theme="\1"])', whole).replace(":root", ":host")
    return re.sub(r"^body \{", ".page {", whole, flags=re.MULTILINE)


class Refused(UserError, traitlets.TraitError):
    """Points that cannot be shown; as a TraitError, so that what was set together is taken back."""


def _rows(name: str, rows: Any, example: str = "rows of numbers, such as [[1, 0], [0, 1]]") -> list[list[float]]:
    """Numbers as plain lists, or an error that names the fix."""
    try:
        plain = [[float(one) for one in row] for row in rows]
    except (TypeError, ValueError):
        raise Refused(f"{name} must be {example}") from None
    if not all(math.isfinite(one) for row in plain for one in row):
        raise Refused(f"{name} must have finite numbers")
    if not 0 < len(plain) <= _MOST_ROWS or len({len(row) for row in plain}) != 1:
        raise Refused(f"{name} must be 1 to {_MOST_ROWS} rows of the same length")
    if not 0 < len(plain[0]) <= _MOST_COLUMNS:
        raise Refused(f"rows of {name} must have 1 to {_MOST_COLUMNS} numbers")
    return plain


class DesignWidget(anywidget.AnyWidget):
    """Keys and values as points that can be dragged; `key_points`, `value_points` and `query` follow, and can be set."""

    _esm = bundle("widget.js")
    _style = traitlets.Unicode(_widget_style()).tag(sync=True)
    key_points: Any = traitlets.Any().tag(sync=True)
    value_points: Any = traitlets.Any().tag(sync=True)
    query: Any = traitlets.Any().tag(sync=True)
    scaled = traitlets.Bool(False).tag(sync=True)
    verdict = traitlets.Dict(help="The last verdict of the solver.")

    def __init__(self, keys: _Rows, values: _Rows, query: Sequence[float] | None = None, scaled: bool = False) -> None:
        first = query if query is not None else _rows("keys", keys)[0]
        super().__init__(key_points=keys, value_points=values, query=first, scaled=scaled)
        self.on_msg(self._answer)

    @traitlets.validate("key_points", "value_points", "query")
    def _checked(self, proposal: Any) -> list[Any]:
        """What is set, if it fits the others; what is set together is checked together, so others may be unchecked."""
        given = {one: getattr(self, one) for one in ("key_points", "value_points", "query")}
        given[proposal["trait"].name] = proposal["value"]
        k, v = _rows("keys", given["key_points"]), _rows("values", given["value_points"])
        q = _rows("the query", [given["query"]], "numbers, such as [1, 0]")[0]
        if len(k) != len(v):
            raise Refused(f"there are {len(k)} keys and {len(v)} values: give one value for each key{_TOGETHER}")
        if len(q) != len(k[0]):
            raise Refused(f"the keys have {len(k[0])} numbers and the query {len(q)}: give as many{_TOGETHER}")
        plain: dict[str, list[Any]] = {"key_points": k, "value_points": v, "query": q}
        return plain[proposal["trait"].name]

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
