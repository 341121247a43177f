"""A command as a user gives it, in this process."""

from __future__ import annotations

from pathlib import Path

from attnlab import cli


def call(*arguments: str | Path) -> int:
    """The exit code of a command."""
    try:
        cli.main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0
