"""What the view "mechanisms" shows, computed in a worker: cards, patterns, audits, costs, and audits of pasted classes.

Everything here returns plain data. What was measured is kept in the cache folder, by the content of this package and the
installed plugins, so that it is shown again only for the code that it was measured on.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab.errors import AttnlabError, UserError
from attnlab.machine import cache_folder
from attnlab.store.folders import digest, to_json, write_bytes

if TYPE_CHECKING:
    from attnlab.measure.audit import Report
    from attnlab.registry import Entry
    from attnlab.report.document import Document, Section

LENGTHS = (128, 256, 512, 1024, 2048)  # of the texts on which costs are measured
_STEP_SECONDS = 2.0  # longer texts are skipped where a step would take longer
_STEP_MEMORY = 1e9  # bytes
_CLASS_SECONDS, _CLASS_MEMORY = 60.0, 2e9  # limits of a pasted class
_CLASS_LENGTH = 150  # tokens of the longest text of its audit
_CLASS_TOKENS = 128  # of the text on which it is timed
_Kept = dict[str, Any]


# What is kept


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


def kept(what: str) -> _Kept | None:
    """What was measured earlier with this code, if it is still there."""
    with suppress(OSError, ValueError, AttnlabError):
        stored = json.loads(_place(what).read_bytes())
        if isinstance(stored, dict):
            return stored
    return None


def _keep(what: str, found: _Kept) -> _Kept:
    """Keep what was measured, in place of what other versions of the code left; without a cache it is lost."""
    with suppress(OSError, AttnlabError):
        folder = _place(what).parent
        if not folder.exists():
            shutil.rmtree(folder.parent, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(_place(what), to_json(found))
    return found


# Tasks


def catalogue() -> _Kept:
    """All mechanisms with a small picture of their patterns."""
    from attnlab.measure import cards

    _one_thread()
    return _keep("catalogue", {"mechanisms": [_summary(entry) for entry in cards.entries()]})


def card(name: str) -> _Kept:
    """The card of a mechanism with its patterns, as a report."""
    from attnlab import registry
    from attnlab.measure import cards, patterns
    from attnlab.report.document import Section

    _one_thread()
    entry = registry.find("mechanism", name)
    report = cards.document(cards.card(entry))
    with suppress(UserError):  # a plugin may have no pattern
        about, *rest = report.sections  # what it does, where its card says more than one sentence
        shown = Section("Patterns", [patterns.heads(entry)])
        report = replace(report, sections=[about, shown, *rest] if entry.parts.body else [shown, about, *rest])
    return _keep(f"card {name}", {"html": _markup(report)})


def audit(name: str) -> _Kept:
    """The audit of a mechanism, as a report."""
    from attnlab.measure.audit import audit_mechanism

    _one_thread()
    return _keep(f"audit {name}", _measured(lambda: _audit_found(audit_mechanism(name))))


def cost(name: str) -> _Kept:
    """Time and memory of a mechanism beside torch's fused attention, as a report."""
    return _keep(f"cost {name}", _measured(lambda: _cost_found(name)))


def pasted(code: str, class_name: str) -> _Kept:
    """The audit of a class that someone pasted, in a process with limits."""
    from attnlab.course import classes

    name = class_name or _last_class(code)
    with tempfile.TemporaryDirectory(prefix="attnlab-pasted-") as folder:
        path = Path(folder) / "pasted.py"
        path.write_bytes(code.encode("utf-8", "replace"))
        job = classes.Job(
            f"{path}:{name}",
            32,
            2,
            _CLASS_LENGTH,
            tokens=_CLASS_TOKENS,
            seconds=_CLASS_SECONDS,
            memory=_CLASS_MEMORY,
            report=True,
        )
        found = classes.run([job], 1)[job]
        found = json.loads(json.dumps(found).replace(json.dumps(folder)[1:-1] + "/", ""))
    if "ended" in found:
        raise UserError(f"{name} was not audited: {found['ended']}")
    return _class_found(name, found)


# Parts


def _one_thread() -> None:
    """Small tensors gain nothing from threads, and the server shares the machine with training."""
    import torch

    torch.set_num_threads(1)


def _measured(compute: Callable[[], _Kept]) -> _Kept:
    """What was found, with the date and the seconds that it took."""
    began = time.monotonic()
    found = compute()
    return {**found, "seconds": round(time.monotonic() - began, 1), "date": time.strftime("%Y-%m-%d")}


def _markup(report: Document, part: str = "") -> str:
    from attnlab.report.html import as_fragment

    return as_fragment(report, part)


def _summary(entry: Entry) -> _Kept:
    from attnlab.measure import cards, patterns
    from attnlab.report.html import pattern_cells

    picture, words, size = "", "", 0
    with suppress(UserError):
        block = patterns.heads(entry)
        head = block.heads[block.chosen or 0]
        picture, words, size = pattern_cells(head.pattern), head.name, 10 * len(head.pattern)
    return {
        "name": entry.name,
        "summary": entry.parts.summary,
        "cost": entry.cost,
        "weights": entry.weights,
        "causal": entry.causal,
        "defect": entry.defect,
        "paper": entry.paper,
        "link": cards.link(entry.paper),
        "source": f"{entry.build.__module__.replace('.', '/')}.py",
        "cells": picture,
        "size": size,
        "pattern": words,
    }


def _audit_found(report: Report, part: str = "audit", more: Sequence[Section] = ()) -> _Kept:
    from attnlab.measure.audit import document

    shown = document([report])
    return {"verdict": report.verdict, "html": _markup(replace(shown, sections=[*shown.sections, *more]), part)}


def _cost_found(name: str) -> _Kept:
    from attnlab import registry
    from attnlab.measure.bench import timing
    from attnlab.measure.bench.cases import Case, choose_cases
    from attnlab.report.document import Section

    limits = timing.Limits(_STEP_SECONDS, min(_STEP_MEMORY, timing.spare_memory()))
    like = Case("", causal=registry.find("mechanism", name).causal)
    cases, _ = choose_cases([name], like, references=False)
    result = timing.measure(cases, LENGTHS, limits)
    report = result.document()
    sections = [Section("Curves", result.charts()), *report.sections]
    return {"html": _markup(replace(report, sections=sections), "cost")}


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


def _class_found(name: str, found: _Kept) -> _Kept:
    from attnlab.measure.audit import Check, Report
    from attnlab.report.document import Facts, Section

    try:
        told, more = found["report"], []
        shared = {key: tuple(told[key]) for key in ("lengths", "forms", "notes")}
        report = Report(name, tuple(Check(**one) for one in told["checks"]), told["defect"], **shared)
        if "time_ratio" in found:
            words = f"{found['time_ratio']:.2f} times that of dot, for {_CLASS_TOKENS} tokens, forward and backward"
            more = [Section("Time", [Facts("", [("Time of a step", words)])])]
        return _audit_found(report, "class", more)
    except (KeyError, TypeError, ValueError, AttributeError):  # a class may write an answer of its own
        raise UserError(f"{name} was not audited: its answer cannot be read") from None
