"""The sheet that students get: the teacher's sheet without solutions.

Only settings that are known to belong to a question are written, so that a solution in a comment, or under a name that no task
reads, does not survive either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.course.sheets import COMMON, KINDS, Design, Kind
from attnlab.design import check, inputs
from attnlab.design.check import TomlTable
from attnlab.design.expressions import Exact
from attnlab.errors import UserError

_NAME = re.compile(r"[^\W\d]\w*")
_WORDS = {"name", "ask", "text", "title", "points", "scale", "kind"}  # never expressions
_SHEET = Path("the sheet")
_HIDDEN = "hidden.py:Reference"  # a file that students do not have, so that nothing else is taken for the reference
_HEAD = "# The sheet for students: it has no solutions.\n"


def _kind(task: TomlTable) -> Kind:
    return KINDS.get(str(task.get("ask")), Kind(Design, ()))


def solutions(task: TomlTable) -> frozenset[str]:
    """The settings of a task that only the teacher may see."""
    return frozenset(_kind(task).solution) & frozenset(task)


def is_unsolved(task: TomlTable) -> bool:
    """Whether a task comes from a sheet for students, and cannot be marked with it."""
    return task.get("reference") == _HIDDEN or not frozenset(_kind(task).solution) <= frozenset(task)


def students_sheet(settings: TomlTable) -> str:
    """The TOML file for students: questions only, without comments, and without names that only solutions use."""
    of_all = {name for question in check.ASKS.values() for name in question.settings}
    head = {name: value for name, value in settings.items() if name in {"title", *of_all}}
    tasks, questions, secret = list[TomlTable](), [head], list[Any]()
    for own in settings["task"]:
        task = {name: value for name, value in own.items() if name in COMMON.union(_kind(own).question)}
        task |= {"reference": _HIDDEN} if own.get("ask") == "module" and "reference" in own else {}
        tasks.append(task)
        if str(own.get("ask")) in check.ASKS:
            questions.append(task)
            secret += [own[name] for name in solutions(own)]
    vectors = _public_names(settings, questions, secret)
    tables = ["[vectors]\n" + _lines(vectors)] if vectors else []
    return "\n".join([_HEAD + _lines(head), *tables, *("[[task]]\n" + _lines(task) for task in tasks)])


def _public_names(settings: TomlTable, questions: Sequence[TomlTable], secret: Sequence[Any]) -> TomlTable:
    """The names for tasks and answers, but for those that only solutions use or that equal one, and names made from those."""
    vectors, known = dict(check.table(settings, "vectors", _SHEET)), check.read_names(settings, _SHEET)
    solved = [np.ravel(number) for value in secret if (number := _evaluated(value, known)) is not None]
    equal = {name for name, value in known.items() if any(np.array_equal(np.ravel(value), x) for x in solved)}
    asked, hidden = _names_in(questions), _names_in(secret) | equal
    for name, value in reversed(vectors.items()):  # a name is made from those before it
        for names in (asked, hidden):
            names |= _names_in(value) if name in names else set()
    hidden -= asked
    for name, value in vectors.items():
        hidden |= {name} if _names_in(value) & hidden else set()
    return {name: value for name, value in vectors.items() if name not in hidden}


def _evaluated(value: Any, names: Mapping[str, Exact]) -> Any:
    """The numbers of a solution; None for one that has none, such as a file or a word."""
    try:
        return check.named_array(value, names)
    except UserError:
        return None


def _names_in(value: Any) -> set[str]:
    """The names in the expressions of a setting; `u_t` is the transpose of u."""
    if isinstance(value, str):
        names = set() if Path(value).suffix.lower() in inputs.FILES else set(_NAME.findall(value))
        return names | {name.removesuffix("_t") for name in names}
    if isinstance(value, Mapping):
        return _names_in([part for name, part in value.items() if name not in _WORDS])
    return set[str]().union(*map(_names_in, value)) if isinstance(value, list) else set()


def _lines(settings: TomlTable) -> str:
    return "".join(f"{_key(name)} = {_toml(value)}\n" for name, value in settings.items())


def _toml(value: Any) -> str:
    """A value as TOML on one line."""
    if isinstance(value, Decimal):
        return str(value).lower().replace("infinity", "inf")
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(name)} = {_toml(part)}' for name, part in value.items())}}}"
    return value.isoformat() if hasattr(value, "isoformat") else _plain(value)


def _key(name: str) -> str:
    return name if name.isascii() and _NAME.fullmatch(name) else _plain(name)


def _plain(value: str | int) -> str:
    """Text in quotes, or a number or truth value; JSON is TOML here, but for one character that it leaves as it is."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
