"""Whole experiments: a plan, a check, training, a verdict, a report. A study is a folder, and can be resumed.

study      what all studies have in common
options    options that studies and commands share
compare    variants that differ in one thing
ready      predefined comparisons

Every other module is a study of its own, found by the registry; `my_study.py:MyStudy` names one in a user's file.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab import registry
from attnlab.config import code_named_in
from attnlab.errors import UserError, unknown
from attnlab.store import usercode
from attnlab.store.folders import read_json, reporting_damage
from attnlab.studies.ready import READY

if TYPE_CHECKING:
    from rich.console import Console

    from attnlab.report.document import Document
    from attnlab.studies.legacy import Study

# Studies that are not classes yet.
MODULES = {name: f"attnlab.studies.{name}" for name in ("why",)}
MODULES |= dict.fromkeys(("compare", *READY), "attnlab.studies.compare")


def find(name: str) -> Study[Any]:
    """The study of this name; only its own module is imported."""
    if name not in MODULES:
        raise UserError(unknown("study", name, [*MODULES, *registry.listings("study")]))
    study: Study[Any] = importlib.import_module(MODULES[name]).STUDY
    return study


def resume(folder: Path, console: Console, *, trust_code: bool = False) -> Any:
    """Resume a study; code that its plan names by path runs only if the user has trusted it."""
    with reporting_damage(folder / "study.json"):
        stored = read_json(folder / "study.json")
        name, plan = stored["study"], stored["plan"]
    with usercode.trusting(trust_code):
        if name in MODULES:
            usercode.require_named(code_named_in(plan))
            return find(name).resume(folder, plan, console)
        from attnlab.studies import study

        usercode.require_named(study.code_of(folder))
        return study.load(folder).resume(folder, console)


def document_of(folder: Path) -> Document:
    """The report of a finished study, from its stored result."""
    from attnlab import report
    from attnlab.studies import study

    with reporting_damage(folder / "result.json"):
        stored = read_json(folder / "study.json")
        if stored["study"] in MODULES:
            return report.document_of(read_json(folder / "result.json"))
        return study.load(folder).read_document(folder)


__all__ = ["document_of", "find", "resume"]
