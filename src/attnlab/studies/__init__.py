"""Whole experiments: a typed plan, a check, training, a verdict, a report. A study is a folder, and can be resumed.

study      what all studies have in common
recall, reports, trust, why       studies that train models of their own
compare    variants that differ in one thing
ready      predefined comparisons

The studies of fine-tuning (optimizers, search) are in attnlab.hf.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab.config import code_named_in
from attnlab.errors import UserError, unknown
from attnlab.store import usercode
from attnlab.store.folders import note_without_manifest, read_json, reporting_damage
from attnlab.studies.ready import READY

if TYPE_CHECKING:
    from rich.console import Console

    from attnlab.studies.study import Result, Study

MODULES = {name: f"attnlab.studies.{name}" for name in ("recall", "reports", "trust", "why")}
MODULES |= {name: f"attnlab.hf.{name}" for name in ("optimizers", "search")}
MODULES |= dict.fromkeys(("compare", *READY), "attnlab.studies.compare")


def find(name: str) -> Study[Any]:
    """The study of this name; only its own module is imported."""
    if name not in MODULES:
        raise UserError(unknown("study", name, MODULES))
    study: Study[Any] = importlib.import_module(MODULES[name]).STUDY
    return study


def resume(folder: Path, console: Console, *, trust_code: bool = False) -> Result:
    """Resume a study; code that its plan names by path runs only if the user has trusted it."""
    with reporting_damage(folder / "study.json"):
        stored = read_json(folder / "study.json")
        study, plan = find(stored["study"]), stored["plan"]
        named = code_named_in(plan)
    note_without_manifest(folder)
    with usercode.trusting(trust_code):
        usercode.require_named(named)
        return study.resume(folder, plan, console)
