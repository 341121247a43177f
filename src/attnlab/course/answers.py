"""Students' answer files: one TOML file per student, or a folder per student with one TOML file in it.

Links are refused everywhere: one that leads to a classmate's or the teacher's file would score.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from attnlab.design import inputs
from attnlab.design.check import TomlTable, read_toml, table
from attnlab.errors import DataError, UserError, refuse_twice

_USUAL = ("answer", "answers")  # names of files that do not name the student; the folder does
Code = Literal["refused", "sandboxed", "trusted"]  # whether students' classes run, and how


@dataclass(frozen=True)
class Answers:
    """The answers of one student, or why they cannot be read; and whether classes may run, and in a sandbox.

    A student without a folder of their own shares it with others, and hands in nothing but files beside the answers.
    """

    student: str
    folder: Path
    values: TomlTable = field(default_factory=dict)
    let: TomlTable = field(default_factory=dict)
    unreadable: str = ""
    code: Code = "refused"
    own_folder: bool = True

    def path(self, name: Any) -> Path:
        """A file that the student hands in beside the answers."""
        if not isinstance(name, str) or not name.strip():
            raise UserError('give the name of a file in quotes, such as "birth.predictions"')
        try:
            path = (self.folder / name).resolve()
            is_file = path.is_file()
        except (OSError, ValueError, RuntimeError):  # too long, a null byte, links in a circle
            raise UserError(f"{inputs.shown(name)} cannot be the name of a file") from None
        if path != self.folder.resolve() / os.path.normpath(name) and path.is_relative_to(self.folder.resolve()):
            raise UserError(f"{inputs.shown(name)} is a link; hand in the file itself")
        if not path.is_relative_to(self.folder.resolve()) or not (
            self.own_folder or path.parent == self.folder.resolve()
        ):
            raise UserError(f"{inputs.shown(name)} is outside the folder of the answers; put it beside them")
        if not is_file:
            raise UserError(f"there is no file {inputs.shown(name)} beside the answers")
        return path


def find_answers(places: Sequence[Path], sheet: Path) -> dict[str, Path]:
    """The answer files by student: of a folder, every TOML file but the sheet, and every folder of a student."""
    paths: list[Path] = []
    for place in places:
        if place.is_dir():
            inside = sorted(path for path in place.iterdir() if not path.name.startswith((".", "__")))
            students = [path for path in inside if path.is_dir() or _is_toml(path) or _is_dangling(path)]
            students = [path for path in students if os.path.realpath(path) != os.path.realpath(sheet)]
            if not students:
                raise DataError(f"{place} has no answers; put one TOML file or one folder per student into it")
            paths += students
        elif place.exists() or _is_dangling(place):
            paths.append(place)
        else:
            raise DataError(f"there is no file {inputs.shown(place)}; give answer files, or a folder of them")
    refuse_twice(map(os.path.abspath, paths))
    labels = [path.name if path.is_dir() or not _is_toml(path) else path.stem for path in paths]
    count = Counter(labels)
    alike = [count[label] > 1 or label.lower() in _USUAL for label in labels]
    folders = [path.absolute().parent.name for path in paths]
    labels = [name if name and like else label for label, name, like in zip(labels, folders, alike, strict=True)]
    count = Counter(labels)
    return {label if count[label] == 1 else str(path): path for label, path in zip(labels, paths, strict=True)}


def _is_toml(path: Path) -> bool:
    return path.suffix.lower() == ".toml"


def _is_dangling(path: Path) -> bool:
    return path.is_symlink() and not path.exists()


def read_answers(student: str, path: Path, code: Code = "refused", sheet: str = "sheet.toml") -> Answers:
    """The answers of one student, or why they cannot be read; a folder may also hold the sheet, by its name."""
    own_folder = path.is_dir()
    folder = path if own_folder else path.parent
    try:
        _refuse_link(path)
        if own_folder:
            path = _answer_file(path, sheet)
        values = read_toml(path)
        let = table(values, "let", path)
    except UserError as error:
        return Answers(student, folder, unreadable=str(error).replace(inputs.shown(path), inputs.shown(path.name)))
    return Answers(student, folder, values, let, code=code, own_folder=own_folder)


def _answer_file(folder: Path, sheet: str) -> Path:
    files = sorted(folder.glob("*.toml"))
    files = [file for file in files if file.name != sheet] or files
    if len(files) != 1:
        raise DataError(f"the folder has {len(files)} TOML files; hand in one with the answers")
    _refuse_link(files[0])
    return files[0]


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise DataError(f"{inputs.shown(path)} is a link; hand in the file itself")
