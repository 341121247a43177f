"""What the views share: the options of the server, and the declaration of a route.

A route names a task: a module-level function of the options and of one record, which msgspec reads from the request. It
returns a record, or yields several. Most tasks run in a worker process, so this module must not import a web framework.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec

from attnlab.errors import AttnlabError

VIEWS = ("design", "ask", "runs", "mechanisms")
POLICY = (  # what the page may load and run
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
RunName = Annotated[str, msgspec.Meta(min_length=1, max_length=500)]  # a path below the folder of runs
WorkerName = Literal["models", "solver", "reports", "measures"]


class NotFound(AttnlabError):
    """What was asked for does not exist."""

    status = 404


class Forbidden(AttnlabError):
    """It may not be done with the options of this server."""

    status = 403


@dataclass(frozen=True)
class Options:
    """How the server was started: the folder of runs, and whether code of runs and of visitors may be executed."""

    root: Path = Path("runs")
    trust_code: bool = False
    allow_code: bool = False
    warm_up: bool = False  # whether workers import what their first task needs right after the start

    def folder(self, name: str) -> Path:
        """The folder of a run or study by its path below the folder of runs; anything else is not found."""
        root = self.root.resolve()
        try:
            path = (root / name).resolve()
            known = path != root and path.is_relative_to(root) and path.is_dir()
        except (OSError, ValueError):  # too long, or with a null byte
            known = False
        if not known or any(part.startswith(".") for part in Path(name).parts):
            raise NotFound(f"there is no run {name!r}: the list of runs shows those of this folder")
        return self.root / path.relative_to(root)


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a request asks for: the body of a POST, or the path and query of its address. Without fields, nothing."""


Q = TypeVar("Q", bound=Query)


@dataclass(frozen=True)
class Route(Generic[Q]):
    """A task at an address of the API, where it runs, and the seconds after which it is ended.

    Without a worker it runs in a thread of the server: right for what mostly waits for the disk. A generator answers with
    lines of JSON, an asynchronous generator, which runs in the server itself, with server-sent events.
    """

    method: Literal["GET", "POST"]
    path: str
    query: type[Q]
    task: Callable[[Options, Q], Any]
    worker: WorkerName | None = None
    seconds: float = 60.0
