"""In a notebook: reports in a frame, and the view "design" as a widget."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab.errors import UserError
from attnlab.report.document import Document
from attnlab.store.runs import Run

if TYPE_CHECKING:
    from attnlab.serve.widget import DesignWidget


def show(what: Run | Document | Mapping[str, Any] | Path | str) -> None:
    """Show the report of a run, of a study or its result, of a folder, or a Document: in a notebook, or as text."""
    document = _document(what)
    if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
        sys.modules["IPython"].display.display(document)
        return
    from rich.console import Console

    from attnlab.report.screen import show_all

    show_all(document, Console())


def _document(what: Any) -> Document:
    if isinstance(what, Document):
        return what
    if isinstance(what, Mapping) and "kind" in what:
        from attnlab.report import document_of

        return document_of(dict(what))
    from attnlab.serve.documents import of_folder

    path = what.path if isinstance(what, Run) else what
    if not isinstance(path, Path | str):
        raise UserError(f"cannot show {type(what).__name__}: give a run, a result, a Document, or the path of a folder")
    if not Path(path).is_dir():
        raise UserError(f"there is no folder {path}: give the path of a run or study")
    return of_folder(Path(path))


def design_widget(
    keys: Sequence[Sequence[float]],
    values: Sequence[Sequence[float]],
    query: Sequence[float] | None = None,
    scaled: bool = False,
) -> DesignWidget:
    """Keys, values and a query to drag, with the solver; its `key_points`, `value_points` and `query` follow."""
    try:
        from attnlab.serve.widget import DesignWidget
    except ModuleNotFoundError as error:
        raise UserError(f"the widget needs {error.name}: pip install 'attnlab[notebook]'") from None
    return DesignWidget(keys, values, query, scaled)
