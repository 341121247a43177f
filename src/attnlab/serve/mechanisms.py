"""The view "mechanisms": the catalogue, cards, audits and costs, and audits of pasted classes.

Records of requests and answers, and the tasks that workers run. What was measured is kept in the cache folder, by the
content of this package and the installed plugins, so that it is shown again only for the code that it was measured on.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct, structs

from attnlab import sandbox
from attnlab.errors import AttnlabError, UserError
from attnlab.machine import cache_folder
from attnlab.reading import read_bytes
from attnlab.report.document import Facts, Section
from attnlab.report.html import as_fragment, pattern_cells
from attnlab.serve.routes import Forbidden, NotFound, Options, Query, Route
from attnlab.store.folders import digest, write_bytes
from attnlab.store.records import encode

if TYPE_CHECKING:
    from attnlab.measure.audit import Report
    from attnlab.registry import Entry

T = TypeVar("T")

LENGTHS = (128, 256, 512, 1024, 2048)  # of the texts on which costs are measured
_LOAD_SECONDS = 120.0  # the first request loads torch
_AUDIT_SECONDS = 300.0
_COST_SECONDS = 600.0
_STEP_SECONDS = 2.0  # longer texts are skipped where a step would take longer
_STEP_MEMORY = 1e9  # bytes
_CLASS_LENGTH = 150  # tokens of the longest text of its audit
_CLASS_TOKENS = 128  # of the text on which it is timed


class MechanismQuery(Query, frozen=True):
    """A registered mechanism; files of users are not reached from here."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]


class Mechanism(Struct, frozen=True):
    """A mechanism in the catalogue; `cells` is the picture of a pattern, and `verdict` that of an earlier audit."""

    name: str
    summary: str
    cost: str
    weights: str
    causal: bool
    defect: str
    paper: str
    link: str
    source: str
    cells: str = ""
    size: int = 0
    pattern: str = ""
    verdict: str | None = None


class Catalogue(Struct, frozen=True):
    """All mechanisms, and whether pasted code may run."""

    mechanisms: list[Mechanism]
    allow_code: bool


class Measured(Struct, frozen=True):
    """What was measured, as a part of a report, with the seconds that it took and the date."""

    html: str
    verdict: str | None = None
    seconds: float | None = None
    date: str | None = None


class Card(Struct, frozen=True):
    """The card of a mechanism as a report, and what was measured earlier."""

    mechanism: Mechanism
    html: str
    audit: Measured | None
    cost: Measured | None
    lengths: tuple[int, ...]


class Pasted(Query, frozen=True):
    """A class to audit; without a name, the last one in the code."""

    code: Annotated[str, Meta(min_length=1, max_length=100_000)]
    class_name: Annotated[str, Meta(max_length=100, pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")] = ""


# The cache


@functools.cache
def _fingerprint() -> str:
    """A digest of all code that decides what is measured."""
    whole, package = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        whole.update(f"{path.relative_to(package)} {digest(path.read_bytes())}\n".encode())
    for plugin in importlib.metadata.entry_points(group="attnlab.plugins"):
        version = plugin.dist.version if plugin.dist else ""
        whole.update(f"{plugin.name} {plugin.value} {version}\n".encode())
    return whole.hexdigest()[:16]


def _place(what: str) -> Path:
    return cache_folder() / "mechanisms" / _fingerprint() / f"{digest(what.encode())[:16]}.json"


def kept(what: str, kind: type[T]) -> T | None:
    """What was computed earlier with this code, if it is still there."""
    with suppress(OSError, AttnlabError, msgspec.MsgspecError):
        return msgspec.json.decode(read_bytes(_place(what)), type=kind)
    return None


def _keep(what: str, value: T) -> T:
    """Keep what was computed, in place of what other versions of the code left; without a cache it is lost."""
    with suppress(OSError, AttnlabError):
        folder = _place(what).parent
        if not folder.exists():
            shutil.rmtree(folder.parent, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(_place(what), encode(value))
    return value


# The catalogue


def catalogue(options: Options, _: Query) -> Catalogue:
    """All registered mechanisms."""
    from attnlab.measure import cards

    mechanisms = kept("catalogue", list[Mechanism])
    if mechanisms is None:
        _one_thread()
        mechanisms = _keep("catalogue", [_summary(entry) for entry in cards.entries()])
    return Catalogue([_with_verdict(mechanism) for mechanism in mechanisms], options.allow_code)


def card(_: Options, query: MechanismQuery) -> Card:
    """The card of a mechanism: what it does, its costs, limits, options and patterns."""
    from attnlab.measure import cards

    entry, name = _entry(query.name), query.name
    html = kept(f"card {name}", str)
    if html is None:
        _one_thread()
        html = _keep(f"card {name}", as_fragment(cards.illustrated(entry)))
    audited, timed = kept(f"audit {name}", Measured), kept(f"cost {name}", Measured)
    return Card(_with_verdict(_summary(entry)), html, audited, timed, LENGTHS)


def _entry(name: str) -> Entry:
    from attnlab import registry

    if name not in registry.names("mechanism"):
        raise NotFound(f"there is no mechanism {name!r}: the catalogue lists them")
    return registry.find("mechanism", name)


def _summary(entry: Entry) -> Mechanism:
    from attnlab.measure import cards

    declared = {key: getattr(entry, key) for key in ("name", "cost", "weights", "causal", "defect", "paper")}
    source = f"{entry.build.__module__.replace('.', '/')}.py"
    summary = Mechanism(**declared, summary=entry.parts.summary, link=cards.link(entry.paper), source=source)
    with suppress(UserError):  # a plugin may have no pattern
        block = cards.patterns(entry)
        head = block.heads[block.chosen or 0]
        cells, size = pattern_cells(head.pattern), 10 * len(head.pattern)
        return structs.replace(summary, cells=cells, size=size, pattern=head.name)
    return summary


def _with_verdict(mechanism: Mechanism) -> Mechanism:
    audited = kept(f"audit {mechanism.name}", Measured)
    return structs.replace(mechanism, verdict=audited.verdict) if audited else mechanism


# Measurements


def audit(_: Options, query: MechanismQuery) -> Measured:
    """Audit a mechanism."""
    from attnlab.measure.audit import audit_mechanism

    entry, began = _entry(query.name), time.monotonic()
    _one_thread()
    return _keep(f"audit {query.name}", _timed(_audited(audit_mechanism(entry.name)), began))


def cost(_: Options, query: MechanismQuery) -> Measured:
    """Measure time and memory of a mechanism over the length of the text, beside torch's fused attention."""
    from attnlab.measure.bench import timing
    from attnlab.measure.bench.cases import Case, choose_cases

    entry, began = _entry(query.name), time.monotonic()
    limits = timing.Limits(_STEP_SECONDS, min(_STEP_MEMORY, timing.spare_memory()))
    cases, _names = choose_cases([entry.name], Case("", causal=entry.causal), references=False)
    html = as_fragment(timing.measure(cases, LENGTHS, limits).document(), "cost")
    return _keep(f"cost {query.name}", _timed(Measured(html), began))


def _timed(measured: Measured, began: float) -> Measured:
    seconds = round(time.monotonic() - began, 1)
    return structs.replace(measured, seconds=seconds, date=time.strftime("%Y-%m-%d"))


def _one_thread() -> None:
    """Small tensors gain nothing from threads, and the server shares the machine with training."""
    import torch

    torch.set_num_threads(1)


def _audited(report: Report, part: str = "audit", more: Sequence[Section] = ()) -> Measured:
    """An audit as a report."""
    from attnlab.measure.audit import document

    shown = document([report])
    return Measured(as_fragment(replace(shown, sections=[*shown.sections, *more]), part), report.verdict)


# Pasted classes


def audit_pasted(options: Options, pasted: Pasted) -> Measured:
    """Audit a pasted class in a sandbox."""
    from attnlab.course import classes

    if not options.allow_code:
        raise Forbidden("this server runs no pasted code: start it with attnlab serve --allow-code")
    name = pasted.class_name or _last_class(pasted.code)
    if reason := sandbox.missing():
        raise Forbidden(f"pasted code needs a sandbox, and there is none ({reason}): use attnlab audit in a terminal")
    job = classes.Job(32, 2, _CLASS_LENGTH, tokens=_CLASS_TOKENS)
    measured = classes.measure(job, pasted.code.encode("utf-8", "replace"), "pasted.py", name)
    report = measured.report
    if report is None:
        raise UserError(f"{name} was not audited: {measured.ended}")
    more = []
    if measured.time_ratio is not None:
        words = f"{measured.time_ratio:.2f} times that of dot, for {_CLASS_TOKENS} tokens, forward and backward"
        more = [Section("Time", [Facts("", [("Time of a step", words)])])]
    return _audited(replace(report, name=name), "class", more)


def _last_class(code: str) -> str:
    """The name of the last class that the code defines."""
    try:
        names = [node.name for node in ast.parse(code).body if isinstance(node, ast.ClassDef)]
    except SyntaxError as error:
        raise UserError(f"the code cannot be read: {error.msg}, line {error.lineno}") from None
    except (ValueError, RecursionError, MemoryError):
        raise UserError(
            "the code cannot be read: it is nested too deeply, or has characters that no code has"
        ) from None
    if not names:
        raise UserError(
            "the code defines no class, so it was not run: paste one such as class MyAttention(nn.Module), with its imports"
        )
    return names[-1]


ROUTES = (
    Route("GET", "/mechanisms", Query, catalogue, "reports", _LOAD_SECONDS),
    Route("POST", "/mechanisms/pasted", Pasted, audit_pasted, "measures", _AUDIT_SECONDS),
    Route("GET", "/mechanisms/{name}", MechanismQuery, card, "reports", _LOAD_SECONDS),
    Route("POST", "/mechanisms/{name}/audit", MechanismQuery, audit, "measures", _AUDIT_SECONDS),
    Route("POST", "/mechanisms/{name}/cost", MechanismQuery, cost, "measures", _COST_SECONDS),
)
