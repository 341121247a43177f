"""A command as a user gives it, in this process; and a run that says something else of itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attnlab import cli
from attnlab.store.folders import MANIFEST, Manifest, write_manifest


def call(*arguments: str | Path) -> int:
    """The exit code of a command."""
    try:
        cli.main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def change(run: Path, **settings: Any) -> None:
    """Change what a run says of itself."""
    stored = json.loads((run / "config.json").read_text())
    for name, value in settings.items():
        table, _, key = name.rpartition("__")
        (stored["settings"][table] if table else stored["settings"])[key] = value
    (run / "config.json").write_text(json.dumps(stored))
    reseal(run)


def reseal(folder: Path) -> None:
    """Bring the checksums in a folder, and in those inside it, up to date with files that a test has changed."""
    for manifest in folder.rglob(MANIFEST):
        stored = Manifest.read(manifest.parent)
        write_manifest(manifest.parent, stored.kind, stored.about)
