"""Whole experiments: a plan, a check, training, a verdict, a report. A study is a folder, and can be resumed.

study      what all studies have in common
training   what studies share that train models on a corpus and questions
options    options that studies and commands share
workers    where runs are worked on: processes of this machine, or a Ray cluster
compare    variants that differ in one thing
ready      predefined comparisons

Every other module is a study of its own, found by the registry; `my_study.py:MyStudy` names one in a user's file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab.store import usercode

if TYPE_CHECKING:
    from rich.console import Console

    from attnlab.report.document import Document
    from attnlab.store.listing import Entry
    from attnlab.studies.study import Outcome

__all__ = ["document_of", "document_of_several", "resume"]


def resume(folder: Path, console: Console, *, trust_code: bool = False) -> Outcome[Any]:
    """Resume a study; code that its plan names by path runs only if the user has trusted it."""
    from attnlab.studies import study

    with usercode.trusting(trust_code):
        usercode.require_named(study.code_of(folder, to_train=True))
        return study.load(folder).resume(folder, console)


def document_of(folder: Path) -> Document:
    """The report of a finished study, from its stored result; a class in a user's file runs only if it is trusted."""
    from attnlab.studies import study

    usercode.require_named(study.code_of(folder, to_train=False))
    return study.load(folder).read_document(folder)


def document_of_several(entries: Sequence[Entry], names: Sequence[str]) -> Document:
    """Runs and studies side by side; of finished studies their results come first, then the runs."""
    from attnlab.report import runs

    whole = [entry for entry in entries if entry.kind == "study" and entry.state == "complete"]
    shown = runs.document(runs.side_by_side(entries, names))
    return runs.with_results(shown, whole, [document_of(entry.path) for entry in whole]) if whole else shown
