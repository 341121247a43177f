"""The errors users meet: one line that names the mistake and the fix, and an exit code.

AttnlabError            1  something failed
├── UserError           2  the request cannot be done as given (a ValueError)
│   ├── ConfigError        a setting
│   ├── DataError          a file's content
│   ├── UntrustedCode      code of a folder that the user has not trusted
│   └── OutputExists       a folder that would be overwritten
├── CheckpointError     1  a checkpoint cannot be trusted
├── StorageError        1  the disk refused
└── Interrupted       130  stopped on request, with everything saved

Anything else is a mistake in the program: exit code 70, and the traceback in a file.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

UNEXPECTED = 70  # the exit code of an error that nobody expected
USER_MODULE = "attnlab_user_"  # how the names of modules that users wrote begin


class AttnlabError(Exception):
    """Something failed; the message is one line for the person who ran the command."""

    exit_code = 1


class UserError(AttnlabError, ValueError):
    """The request cannot be done as given."""

    exit_code = 2


class ConfigError(UserError):
    """A setting is unknown, of the wrong type, or out of range."""


class DataError(UserError):
    """A file is missing, empty, in the wrong encoding or malformed."""


class UntrustedCode(UserError):
    """Code that came with a folder would be run, and the user has not trusted it."""


class OutputExists(UserError):
    """A folder that would be overwritten."""


class CheckpointError(AttnlabError):
    """A checkpoint is truncated, of another version, or holds numbers that are not finite."""


class StorageError(AttnlabError):
    """The disk refused to take what had to be written."""


class Interrupted(AttnlabError):
    """Stopped by the user or the system, with everything saved."""

    exit_code = 130


class AttnlabWarning(UserWarning):
    """Something that a user should know and that stops nothing; the command line prints it as one line."""


def unknown(kind: str, name: str, choices: Iterable[str]) -> str:
    """The message for a name that does not exist, with the nearest ones that do."""
    options = sorted(choices)
    alike = {option: difflib.SequenceMatcher(None, name, option).ratio() for option in options}
    best = max(alike.values(), default=0.0)
    near = [option for option in sorted(options, key=lambda one: -alike[one]) if alike[option] >= max(0.5, best - 0.1)][
        :3
    ]
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(options)}"
    return f"unknown {kind} '{name}': {hint}"
