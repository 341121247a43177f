"""Entries taken away: only what this program certainly made, nothing that a link leads to, nothing by halves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from attnlab.errors import StorageError, UserError
from attnlab.listing.entries import DEPTH, OURS, Entry, text
from attnlab.runs import read_json


def may_delete(entry: Entry) -> Entry:
    """The entry with its path made absolute, or a refusal: only what this program certainly made may go."""
    if entry.kind == "link":
        raise UserError(f"{entry.path} is a link, which is not followed: remove the link by hand")
    if entry.kind not in OURS:
        raise UserError(f"{entry.path} is {entry.what} ({entry.note}): remove it by hand if that is meant")
    real = entry.path.resolve()
    if Path.cwd().resolve().is_relative_to(real):
        raise UserError(f"{entry.path} is where you are: go elsewhere first")
    return replace(entry, path=real)


def outermost(entries: Sequence[Entry]) -> list[Entry]:
    """The entries without repetitions, and without those that lie in others."""
    found = {entry.path: entry for entry in entries}
    return [entry for path, entry in found.items() if not any(other in path.parents for other in found)]


def reasons_to_keep(entry: Entry, others: Iterable[Entry]) -> list[str]:
    """Why somebody may miss this entry: it is at work, part of a study, or where an unfinished run starts from."""
    reasons = []
    if entry.state == "active":
        reasons.append("it is being written now")
    above = list(entry.path.parents)[:DEPTH]
    reasons += [f"part of the study {folder.name}" for folder in above if (folder / "study.json").is_file()]
    for other in others:
        if other.kind == "run" and other.state != "complete" and entry.path != other.path.resolve():
            base = text(read_json(other.path / "config.json").get("base"))
            if base and (other.path / base).resolve().is_relative_to(entry.path):
                reasons.append(f"{other.name} starts from it and is not finished")
    return reasons


def delete(path: Path) -> None:
    """Take a folder away: first out of sight in one step, so that half a run is never taken for one."""
    number = 1
    while os.path.lexists(hidden := path.with_name(f".{path.name}.deleted-{number}")):
        number += 1
    try:
        path.rename(hidden)
    except OSError as error:
        raise StorageError(f"cannot delete {path} ({error.strerror}): check whose folder it is") from None
    try:
        shutil.rmtree(hidden)  # links inside are removed, not followed
    except OSError as error:
        raise StorageError(f"{path} is only partly deleted ({error.strerror}): remove {hidden} by hand") from None
