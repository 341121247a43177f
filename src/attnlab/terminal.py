"""Terminal output: control characters are escaped, and an unexpected error is one line.

Names, files and generated texts are untrusted. An escape sequence in one of them could move the cursor, recolour or hide
earlier output, or type into the terminal; such characters are shown as \\x1b and the like.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from attnlab import __version__
from attnlab.errors import UNEXPECTED, USER_MODULE, cut

if not os.environ.get("COLUMNS", "unset").strip("0"):
    del os.environ["COLUMNS"]  # in 0 columns rich prints nothing

# C0 without tab and newline, DEL and C1, Unicode's line separators and direction controls, surrogates.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return a text with its control characters escaped, except tabs and newlines."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def printable_json(text: str) -> str:
    """Return equivalent JSON in which all control characters are escaped, even those that JSON allows."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class Terminal(Console):
    """A rich console that escapes the control characters in its input, but not its own styles."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, with texts escaped."""
        for segment in super().render(renderable, options):
            harmless = segment.control or not _CONTROL.search(segment.text)
            yield segment if harmless else Segment(printable(segment.text), segment.style)


def unexpected(error: BaseException) -> tuple[str, int]:
    """Return one line about an unexpected error, and the exit code; the line names the file with the traceback.

    For an error in a user's mechanism or task, the line names the place in the user's code.
    """
    message = cut(" ".join(f"{type(error).__name__}: {error}".split()), 300)
    place = _save_traceback("".join(traceback.format_exception(error))) or "no file, since none could be written"
    if line := line_of_user(error):
        return f"{line}: {message}; the whole traceback is in {place}", 1
    return f"unexpected error ({message}): please report it with its traceback, saved in {place}", UNEXPECTED


def line_of_user(error: BaseException) -> str:
    """Return the last line of a user's own file in the traceback of an error, or ""."""
    lines = [
        f"{frame.f_code.co_filename}, line {line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).startswith(USER_MODULE)
    ]
    return lines[-1] if lines else ""


def _save_traceback(text: str) -> Path | None:
    """Write a traceback to a file that only this user can read: in the user's state folder, else a temporary one."""
    told = f"attnlab {__version__}, Python {sys.version}\n{sys.argv!r}\n\n{text}"
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    for parent in (state, None):
        try:
            folder = Path(parent).expanduser() / "attnlab" / "crashes" if parent else None
            if folder:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(".txt", "attnlab-", folder)  # readable for this user only
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
                stream.write(told)
            return Path(name)
        except (OSError, RuntimeError):  # no home folder, or not writable
            continue
    return None
