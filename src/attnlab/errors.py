"""Errors for users: one line that names the mistake and the fix, and an exit code.

AttnlabError            1  something failed
├── UserError           2  the request is invalid (a ValueError)
│   ├── ConfigError        a setting
│   ├── DataError          a file's content
│   ├── NotARun            a folder that is not a run
│   ├── UntrustedCode      code in a folder that the user has not trusted
│   └── OutputExists       a folder that would be overwritten
├── CheckpointError     1  a damaged or incompatible checkpoint
├── StorageError        1  a disk error
├── Diverged            3  the loss of a training is not finite
├── PeerLost           75  another process of the same training has ended
└── Interrupted       130  stopped on request, with everything saved

Anything else is a bug: exit code 70, with the traceback in a file.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

UNEXPECTED = 70  # exit code of an unexpected error
USER_MODULE = "attnlab_user_"  # prefix of the module names of users' files


class AttnlabError(Exception):
    """Something failed; the message is one line for the person who ran the command."""

    exit_code = 1


class UserError(AttnlabError, ValueError):
    """The request is invalid."""

    exit_code = 2


class ConfigError(UserError):
    """A setting is unknown, of the wrong type, or out of range."""


class DataError(UserError):
    """A file is missing, empty, in the wrong encoding or malformed."""


class UntrustedCode(UserError):
    """A folder carries code that the user has not trusted."""


class NotARun(UserError):
    """A folder is missing, or is not a run; commands and pages may add what to do with it."""

    def __init__(self, message: str, folder: Path | None = None) -> None:
        super().__init__(message)
        self.folder = folder


class OutputExists(UserError):
    """The output folder exists already."""


class CheckpointError(AttnlabError):
    """A checkpoint is truncated, of another version, or holds numbers that are not finite."""


class StorageError(AttnlabError):
    """A file cannot be written."""


class Diverged(AttnlabError):
    """The loss of a training is not finite."""

    exit_code = 3


class PeerLost(AttnlabError):
    """Another process of the same training has ended."""

    exit_code = 75


class Interrupted(AttnlabError):
    """Stopped by the user or the system, with everything saved."""

    exit_code = 130


class AttnlabWarning(UserWarning):
    """A warning for users; the command line prints it as one line."""


def one_line(error: BaseException) -> str:
    """Return the kind of an error and its message on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def cut(text: str, most: int) -> str:
    """Cut a text to some number of characters for a message."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


@contextmanager
def named(where: str) -> Iterator[None]:
    """Put the place of a mistake before the message of an error for users."""
    try:
        yield
    except UserError as error:
        raise type(error)(f"{where}: {error}") from None


def refuse_twice(names: Iterable[str]) -> None:
    """Refuse what is given more than once."""
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise UserError(f"{twice[0]} is given twice: name it once")


def refuse(subject: str, reasons: Mapping[str, object]) -> None:
    """Raise UserError with the first of these reasons that applies, each with its condition."""
    for reason, applies in reasons.items():
        if applies:
            raise UserError(f"{subject} {reason}")


def unknown(kind: str, name: str, choices: Iterable[str], otherwise: str = "") -> str:
    """Return the message for an unknown name, with the closest valid names; if none is close, `otherwise` or all of them."""
    options = sorted(choices)
    alike = {option: difflib.SequenceMatcher(None, name, option).ratio() for option in options}
    best = max(alike.values(), default=0.0)
    near = [
        option for option in sorted(options, key=lambda option: -alike[option]) if alike[option] >= max(0.5, best - 0.1)
    ]
    hint = f"did you mean {' or '.join(near[:3])}?" if near else otherwise or f"choose from {', '.join(options)}"
    return f"unknown {kind} '{name}': {hint}"
