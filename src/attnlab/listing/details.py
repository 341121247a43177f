"""One entry in full: its settings beside its preset's, its result, its files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from attnlab.config import flatten, resolve
from attnlab.errors import ConfigError
from attnlab.listing.entries import OURS, Entry
from attnlab.runs import is_written, read_json


def differences(entry: Entry) -> dict[str, tuple[Any, Any]] | None:
    """The settings in which a run differs from its preset, (preset's, run's); None where there is no such preset now."""
    try:
        stage = entry.what if entry.what in ("finetune", "scratch") else "pretrain"
        preset = dict(flatten(resolve(entry.preset or "", stage).to_dict()))  # type: ignore[arg-type]
    except ConfigError:
        return None
    # A run of an older version lacks what was added since, and an empty table is the same as none.
    there = {name: value for name, value in entry.settings.items() if value != {}}
    names = [name for name in there if preset.get(name) != there[name]]
    # Threads are chosen by the machine where the preset leaves them open.
    return {name: (preset.get(name), there[name]) for name in names if (name, preset.get(name)) != ("train.threads", 0)}


def details(entry: Entry) -> dict[str, Any]:
    """Everything about one entry, ready for JSON."""
    shown = entry.plain()
    if entry.kind == "run":
        stored = read_json(entry.path / "config.json")
        shown |= {"data": stored.get("data"), "base": stored.get("base"), "differences": differences(entry)}
    if is_written(entry.path / "result.json") and entry.kind in OURS:
        shown["result"] = read_json(entry.path / "result.json")
    if entry.kind != "link":
        shown["files"] = [{"name": name, "bytes": size} for name, size in _contents(entry.path)]
    return shown


def _contents(path: Path) -> list[tuple[str, int]]:
    """What lies directly in a folder, with sizes; of a folder that of everything in it."""
    inner = sorted(path.iterdir())
    return [
        (f"{one.name}/", folder_size(one)[1]) if _is_folder(one) else (one.name, one.lstat().st_size) for one in inner
    ]


def folder_size(path: Path) -> tuple[int, int]:
    """The number of files in a folder, and their bytes; links count for themselves."""
    sizes = [(Path(base) / name).lstat().st_size for base, _, names in os.walk(path) for name in names]
    return len(sizes), sum(sizes)


def _is_folder(path: Path) -> bool:
    """Whether this is a folder itself, not a link to one."""
    return path.is_dir() and not path.is_symlink()
