"""Whole experiments as recipes: plan, train, examine, report. A study is a folder; stopped, it goes on where it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from attnlab import comparing, usercode
from attnlab.config import code_named_in
from attnlab.errors import UserError, unknown
from attnlab.runs import interpreting, read_json
from attnlab.studies import optimizers, ready, recall, search, trust, why

Recipe = Callable[[Path, dict[str, Any], Console], dict[str, Any]]

STUDIES: dict[str, Recipe] = {
    "optimizers": optimizers.run,
    "recall": recall.run,
    "search": search.run,
    "trust": trust.run,
    "why": why.run,
    **dict.fromkeys(("compare", *ready.READY), comparing.run),
}


def find(name: str) -> Recipe:
    """The recipe of this name."""
    if name not in STUDIES:
        raise UserError(unknown("study", name, STUDIES))
    return STUDIES[name]


def resume(folder: Path, console: Console, *, trust_code: bool = False) -> dict[str, Any]:
    """Go on with a study that was stopped; code that its plan names by path runs only if the user has trusted it."""
    with interpreting(folder / "study.json"):
        stored = read_json(folder / "study.json")
        recipe, plan = find(stored["study"]), stored["plan"]
        named = code_named_in(plan)
    with usercode.trusting(trust_code):
        usercode.require_named(named)
        return recipe(folder, plan, console)
