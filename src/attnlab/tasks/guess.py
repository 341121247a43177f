"""Guess the task for a text from its beginning: recall of documents with titles, or next tokens of running text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from attnlab.config import Settings, TaskConfig, merge
from attnlab.corpora.files import record_form
from attnlab.corpora.library import title_of
from attnlab.corpora.running import open_text, read_blocks
from attnlab.corpora.sources import is_built_in
from attnlab.errors import DataError
from attnlab.tasks import task_class

_LINES = 200  # lines that are read
_MOST = 0.8  # share of the lines from which on a property is that of the text
_LONG = 60  # characters; lines that are broken to a width end within sentences
_NAME = 8  # most words of a title
_ENDS = (".", "!", "?", '"', "”", "’", ")", "…")
_SHARE = 0.05  # of running text that is held out unless other data are given
_SHORT = 2000  # bytes of text of which no share is held out
_DOCUMENTS = {"file": "one document per file", "lines": "each a document", "blank": "blank lines separate documents"}


@dataclass(frozen=True)
class Guess:
    """A task with its options, and what it was guessed from."""

    task: str
    options: dict[str, str]
    reason: str


def guess_task(source: str | Path) -> Guess:
    """Guess the task for a text from its name and its first lines."""
    if is_built_in(source):
        if str(source).startswith("people"):
            return Guess("recall", {}, "each line is a document with a title")
        if str(source).startswith("addition"):
            return Guess("addition", {}, "each line is a sum")
        if str(source).startswith("stories"):
            return Guess("text", {"documents": "lines"}, "a complete text per line")
        return Guess("text", {"documents": "blank"}, "running text")
    text = open_text(source)
    first, empty = text.files[0], f"{source} is empty; it needs at least one line of text"
    if not text.size:
        raise DataError(empty)
    if form := record_form(first):
        return Guess("text", {}, f"{form}, each record a document")
    block = next(read_blocks(first), "")
    if not block.strip() and len(text.files) == 1:
        raise DataError(empty)
    lines = block.strip("\n").split("\n")[:_LINES]
    one_per_line = all(map(str.strip, lines))  # there are no blank lines
    if one_per_line and not Path(source).is_dir() and fmean(map(_is_titled, lines)) >= _MOST:
        return Guess("recall", {}, "each line is a document that begins with a title")
    if one_per_line and len(lines) > 1 and fmean(map(_is_complete, lines)) >= _MOST:
        return Guess("text", {"documents": "lines"}, "a complete text per line")
    return Guess("text", {"documents": "file"}, "running text")


def guess_settings(source: str, given: Settings, share: bool = True) -> tuple[str, Settings, str]:
    """Guess the preset and the task for a text, hold out a share of running text, and return a sentence that says so."""
    guess = guess_task(source)
    task = task_class(TaskConfig(guess.task))
    reason, changes = f"task {guess.task}: {guess.reason}", ["--task.name"]
    chosen = given.get("task", {}).get("options", {})
    options = {**guess.options, **chosen}
    if "documents" in guess.options and "documents" not in chosen:
        documents = guess.options["documents"]
        reason += f", {_DOCUMENTS[documents]}"
        changes += ["--task.options.documents"] if documents == "lines" else []
    if share and task.reads == "running text" and "held_out" not in chosen:
        changes.append("--dev")
        if open_text(source).size < _SHORT:
            reason += "; it is short, so nothing is held out"
        else:
            options["held_out"] = _SHARE
            reason += f"; the last {100 * _SHARE:.0f} % are held out"
    reason += f" ({', '.join(changes)} change{'s' if len(changes) == 1 else ''} this)"
    return task.preset, merge(given, {"task": {"options": options}} if options else {}), reason


def _is_titled(line: str) -> bool:
    """Whether a line begins with a name that it is about, not just with a short sentence."""
    title = title_of(line)
    words = title.split()
    rest = line[len(title) :]
    named = [word for word in words if word[0].isupper() or word[0].isdigit()]
    return 0 < len(words) <= _NAME and 2 * len(named) > len(words) and any(word in rest for word in named)


def _is_complete(line: str) -> bool:
    """Whether a line is long and ends a sentence."""
    return len(line) >= _LONG and line.rstrip().endswith(_ENDS)
