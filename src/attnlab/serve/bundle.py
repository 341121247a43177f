"""The modules of the page as one, for notebooks, which can load no second file.

Every module becomes a function that returns its exports. The modules are our own, so imports and exports have few forms;
any other form is an error.
"""

from __future__ import annotations

import posixpath
import re
from importlib import resources

_STATIC = resources.files("attnlab.serve").joinpath("static")
_IMPORT = re.compile(r'^import \{([^}]*)\} from "([^"]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:const|let|class|function)\b)", re.MULTILINE)
_NAME = re.compile(r"^export (?:async )?(?:const|let|class|function) (\w+)", re.MULTILINE)
_DEFAULT = re.compile(r"^export default ", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def read(path: str) -> str:
    """The text of a file of the page."""
    return _STATIC.joinpath(*path.split("/")).read_text(encoding="utf-8")


def bundle(entry: str) -> str:
    """A module with everything that it imports, as one module with its default export."""
    done: dict[str, str] = {}
    _add(entry, done)
    return "\n".join([*done.values(), f"export default {_variable(entry)}.default;\n"])


def _variable(path: str) -> str:
    return "m_" + re.sub(r"\W", "_", path)


def _add(path: str, done: dict[str, str]) -> None:
    """Add a module after those that it imports."""
    if path in done:
        return
    text, folder = read(path), posixpath.dirname(path)
    for _, other in _IMPORT.findall(text):
        _add(posixpath.normpath(posixpath.join(folder, other)), done)

    def taken(found: re.Match[str]) -> str:
        names = found[1].replace(" as ", ": ")
        return f"const {{{names}}} = {_variable(posixpath.normpath(posixpath.join(folder, found[2])))};"

    names = _NAME.findall(text)
    text = _EXPORT.sub("", _IMPORT.sub(taken, text))
    text, count = _DEFAULT.subn("const whole = ", text)
    if other := _OTHER.search(text):
        raise ValueError(f"{path}: {other[0]!r} has a form that cannot be bundled")
    exports = ", ".join([*names, *(["default: whole"] if count else [])])
    done[path] = f"const {_variable(path)} = (() => {{\n{text}\nreturn {{ {exports} }};\n}})();"
