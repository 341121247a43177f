"""Python files of users: how a run names and stores them, and which of them may run.

A class in a user's file is named `my_file.py:MyAttention`. Settings that have been resolved call it
`my_file.py@0123456789ab:MyAttention`, with the first digits of the file's sha256. That name is stored in runs, models and
exports, which contain the file as code/my_file-0123456789ab.py: the original is not needed to open them, and changing it does
not change them.

A file runs if the user named it in this process, or if its sha256 is in the user's own record of trusted code. The record
is kept outside the runs, since a hash inside a folder proves nothing about the folder. Everything else is refused, unless the
user has asked to trust it. Only the file itself is stored and checked, not what it imports.

Nothing here runs code: the registry does, after calling `require`.
"""

from __future__ import annotations

import ast
import datetime
import errno
import functools
import hashlib
import os
import re
import stat
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from attnlab.errors import AttnlabWarning, CheckpointError, ConfigError, UntrustedCode
from attnlab.reading import read_bytes
from attnlab.terminal import printable

_FOLDER = "code"  # in a run, model or export
_DIGITS = 12  # of the sha256, in names
_STORED = re.compile(rf"(?P<stem>[\w.-]+)\.py@(?P<digits>[0-9a-f]{{{_DIGITS}}}):(?P<name>[^:]+)")


@dataclass(frozen=True)
class Source:
    """A user's file as it was read."""

    path: Path
    content: bytes

    @functools.cached_property
    def sha256(self) -> str:
        """The checksum of the file."""
        return hashlib.sha256(self.content).hexdigest()


_sources: dict[str, Source] = {}  # files read in this process, by stored name without the class
_named: set[str] = set()  # sha256 of the files that the user has named in this process
ADVICE = "add --trust-code (Python: trust_code=True)"
_trusting: ContextVar[bool] = ContextVar("trusting", default=False)


def _is_stored(name: str) -> bool:
    """Whether this is the stored name of a class in a user's file."""
    return _STORED.fullmatch(name) is not None


def is_code(name: str) -> bool:
    """Whether a name refers to a class in a user's file."""
    return ".py:" in name or name.endswith(".py") or _is_stored(name)


def split_names(names: str) -> list[str]:
    """Split a list of names joined by commas."""
    return [name.strip() for name in names.split(",")]


def is_file(path: str | Path) -> bool:
    """Whether a path is a regular file; False if the system rejects the path."""
    try:
        return Path(path).is_file()
    except OSError:
        return False


def _classes_of(source: Source) -> list[str]:
    """List the classes of a file without running it."""
    try:
        return [node.name for node in ast.parse(source.content).body if isinstance(node, ast.ClassDef)]
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ConfigError(f"{source.path} is not Python: {' '.join(str(error).split())}") from None


def read(path: str | Path) -> Source:
    """Read a user's file."""
    if not is_file(path):
        raise ConfigError(f"{path}: no such file; name a class in a file as path.py:ClassName")
    try:
        return Source(Path(path).resolve(), read_bytes(Path(path)))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): name a file that you may read") from None


def remember(source: Source, name: str) -> str:
    """Remember a file, and return the stored name of a class in it."""
    stem = re.sub(r"[^\w.-]", "_", source.path.stem)  # cannot be mistaken for a path or another name
    stored = f"{stem}.py@{source.sha256[:_DIGITS]}"
    _sources[stored] = source
    return f"{stored}:{name}"


def named_by_user(names: str) -> str:
    """Return stored names for names given by the user in this process; the named files may run."""
    stored = []
    for name in split_names(names):
        if name.endswith(".py"):
            classes = " or ".join(f"{name}:{each}" for each in _classes_of(read(name)))
            raise ConfigError(f"{name} is a file: name a class in it, {classes or 'but it has none'}")
        if not _is_stored(name) and ".py:" in name:
            path, _, class_name = name.rpartition(":")
            source = read(path)
            _named.add(source.sha256)
            stored.append(remember(source, class_name))
        else:
            stored.append(name)
    return ",".join(stored)


def stored_in(folder: Path | None, names: str) -> str:
    """Check the names in the settings of a folder, and read the files that they stand for, which may not run yet."""
    for name in split_names(names):
        match = _STORED.fullmatch(name)
        if match is None and ".py:" in name:
            where = folder or "the model"
            raise CheckpointError(f"{where} names code by its path ({name}): it is damaged, train it again")
        if match and folder is not None and is_file(path := folder / _carried_as(match)):
            source = read(path)
            if not source.sha256.startswith(match["digits"]):
                raise CheckpointError(f"{path} was changed since the model was made: restore the file")
            _sources[name.rpartition(":")[0]] = source
    return ",".join(split_names(names))


def _carried_as(match: re.Match[str]) -> str:
    """The path of a stored file in a folder."""
    return f"{_FOLDER}/{match['stem']}-{match['digits']}.py"


def code_files(*names: str) -> dict[str, bytes]:
    """Return the code files that a folder with these names must contain, by path."""
    matches = [match for listed in names for name in split_names(listed) if (match := _STORED.fullmatch(name))]
    return {_carried_as(match): _source_of(match[0]).content for match in matches}


def _source_of(name: str) -> Source:
    """The file of a stored name."""
    source = _sources.get(name.rpartition(":")[0])
    if source is None:
        raise CheckpointError(f"the code of {name} is missing: copy the folder with its folder {_FOLDER}")
    return source


def require(name: str) -> Source:
    """Return the file of a stored name if it may run; else refuse it, or record it as trusted if asked to."""
    source, class_name = _source_of(name), name.rpartition(":")[2]
    if source.sha256 not in _named and source.sha256 not in _recorded():
        what = f"class {class_name}, {len(source.content.splitlines())} lines, sha256 {source.sha256[:_DIGITS]}"
        if not _trusting.get():
            raise UntrustedCode(
                f"{source.path} would be run ({what}), and you have not trusted it: read it, then {ADVICE}"
            )
        if os.environ.get("RANK", "0") == "0":  # of several processes, the first
            sys.stderr.write(f"attnlab: {printable(f'trusted from now on: {source.path} ({what})')}\n")
    _record(source)
    return source


def require_all(names: str) -> None:
    """Refuse the code that a folder's settings name, unless it may run."""
    for name in split_names(names):
        if _is_stored(name):
            require(name)


def require_named(names: Iterable[str]) -> None:
    """Refuse the files that a stored plan names by path, unless they may run; a missing file is an error later."""
    for name in names:
        path, _, class_name = name.rpartition(":")
        if is_file(path):
            require(remember(read(path), class_name))


@contextmanager
def trusting(trust_code: bool) -> Iterator[None]:
    """If `trust_code`, trust the code of folders opened inside; else leave the current setting."""
    token = _trusting.set(trust_code or _trusting.get())
    try:
        yield
    finally:
        _trusting.reset(token)


# The record


def record_file() -> Path:
    """Return the user's record of trusted code: one sha256 per line, with a comment."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (state if state.is_absolute() else Path("~/.local/state").expanduser()) / "attnlab" / "trusted-code"


def _private(status: os.stat_result) -> bool:
    """Whether a file or folder belongs to this user and nobody else can write to it."""
    own = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
    return own and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _recorded() -> frozenset[str]:
    """Every sha256 in the record; none, with a warning, if others can write to it."""
    try:
        path = record_file()
        with os.fdopen(_no_links(path, os.O_RDONLY), encoding="utf-8") as stream:
            if not _private(os.fstat(stream.fileno())) or not _private(path.parent.stat()):
                _warn(f"{path} is ignored: it or its folder can be written by others; remove it, or chmod go-w both")
                return frozenset()
            return frozenset(line.partition("#")[0].strip() for line in stream)
    except FileNotFoundError:
        return frozenset()
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        _warn(f"the record of trusted code cannot be read and is ignored ({error})")
        return frozenset()


def _record(source: Source) -> None:
    """Add a file to the record, so that runs made with it can be opened later."""
    if source.sha256 in _recorded():
        return
    line = f"{source.sha256}  # {source.path.name!a} {datetime.date.today().isoformat()}\n"
    try:
        path = record_file()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():  # others may have been able to write to the folder, but there was no record to forge
            path.parent.chmod(0o700)
        if not _private(path.parent.stat()):
            raise PermissionError(errno.EACCES, "others can write to the folder", str(path.parent))
        with os.fdopen(_no_links(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "w", encoding="utf-8") as stream:
            stream.write(line)
    except (OSError, RuntimeError) as error:
        _warn(f"trusted code cannot be recorded ({error}): set XDG_STATE_HOME to a folder of your own")


def _no_links(path: Path, flags: int) -> int:
    """Open a file with permissions for its owner only, not through a link, and without waiting for a pipe."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o600)


def _warn(line: str) -> None:
    warnings.warn(line, AttnlabWarning, stacklevel=3)
