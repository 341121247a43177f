"""What reaches a terminal: text whose control characters are escaped, and one line for an unexpected error.

Names, files and models' texts come from others. An escape sequence in one of them could move the cursor, recolour or hide
what was printed before, or type into the terminal; such characters are shown as \\x1b and the like.
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
from attnlab.errors import UNEXPECTED, USER_MODULE

# C0 without tab and newline, DEL and C1, line separators and the direction controls of Unicode, surrogates.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """A text with its control characters written out; tabs and newlines stay."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def printable_json(text: str) -> str:
    """JSON of the same meaning in which control characters are escaped, those too that JSON allows."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class Terminal(Console):
    """A rich console that prints the control characters of what it is given as text; its own styles stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, with the texts escaped."""
        for segment in super().render(renderable, options):
            harmless = segment.control or not _CONTROL.search(segment.text)
            yield segment if harmless else Segment(printable(segment.text), segment.style)


def unexpected(error: BaseException) -> tuple[str, int]:
    """One line about an error that nobody expected, and the exit code; its traceback is saved to a file that the line names.

    An error in the code of a user's mechanism or task is said of that code.
    """
    said = " ".join(f"{type(error).__name__}: {error}".split())
    said = said if len(said) < 300 else f"{said[:300]}..."
    place = _save_traceback("".join(traceback.format_exception(error))) or "no file, since none could be written"
    if theirs := line_of_user(error):
        return f"{theirs}: {said}; the whole traceback is in {place}", 1
    return f"unexpected error ({said}): please report it with its traceback, saved in {place}", UNEXPECTED


def line_of_user(error: BaseException) -> str:
    """The last line of a user's own file that an error passed through, or nothing."""
    theirs = [
        f"{frame.f_code.co_filename}, line {line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).startswith(USER_MODULE)
    ]
    return theirs[-1] if theirs else ""


def _save_traceback(text: str) -> Path | None:
    """Write a traceback to a file that only this user can read: in the user's state folder, else in the temporary one."""
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
        except (OSError, RuntimeError):  # no home, or none that can be written
            continue
    return None
