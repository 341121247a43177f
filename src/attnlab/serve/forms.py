"""Forms of the commands that the page may start, generated from their declarations; and what a filled form says.

A form posts names and values. They become a list of arguments, never a line for a shell, and the command line's own parser
checks them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from cyclopts import App, Argument
from pydantic import BaseModel

from attnlab.config import RunConfig, TrainConfig, flatten, preset_names, resolve
from attnlab.errors import UserError, unknown
from attnlab.store.usercode import is_code, split_names

Value = str | bool | list[str]

_OFFERED = ("pretrain", "compare")  # beside all studies of `run`
_LEFT_OUT = ("--out", "--json", "--plan", "--pilot", "--difference")  # the page chooses the folder, and trains
_CODE = ("--config", "--trust-code")  # they may lead to code that nobody has read
_TITLES = {"model": "Model", "tokenizer": "Tokenizer", "task": "Task", "train": "Training"}
_KINDS = {"INT": "whole", "FLOAT": "number", "BOOL": "switch", "CHOICE": "choice", "DICT": "table"}
_SHORT = {one.metadata["short"].removeprefix("--") for one in fields(TrainConfig) if one.metadata["short"]}
_FORMS: dict[tuple[str, bool], Form] = {}  # they take a while to make


class Option(BaseModel):
    """One control of a form."""

    name: str
    label: str
    help: str
    kind: Literal["text", "whole", "number", "flag", "switch", "choice", "list", "table"]
    default: str = ""
    choices: list[str] = []
    group: str = ""  # of settings; empty for the command's own options
    suggestions: str = ""  # preset or mechanism: names that the page may propose
    required: bool = False


class Form(BaseModel):
    """A command with its controls."""

    command: str
    help: str
    more: str
    options: list[Option]


@dataclass(frozen=True)
class Commands:
    """The commands of attnlab, and how their arguments are checked."""

    app: App
    check: Callable[[Sequence[str]], None]

    def names(self) -> list[str]:
        """The commands that the page may start."""
        studies = [name for name in self.app["run"] if not name.startswith("-")]
        return [*(f"run {name}" for name in studies), *_OFFERED]

    def form(self, command: str, trust_code: bool = False) -> Form:
        """The form of a command."""
        if (command, trust_code) not in _FORMS:
            _FORMS[command, trust_code] = self._made(command, trust_code)
        return _FORMS[command, trust_code]

    def _made(self, command: str, trust_code: bool) -> Form:
        found = self._find(command)
        text, _, more = (found.help or "").strip().partition("\n")
        without = {*_LEFT_OUT, *(() if trust_code else _CODE)}
        options = [_option(one) for one in _arguments(found) if one.name not in without]
        return Form(command=command, help=text.strip(), more=_paragraphs(more, without), options=options)

    def arguments(
        self,
        command: str,
        values: Mapping[str, Value],
        folder: Path,
        mechanisms: Collection[str],
        trust_code: bool = False,
    ) -> list[str]:
        """The arguments that a filled form stands for; a mistake is an error that names the fix.

        The names of mechanisms are given, because finding them imports torch.
        """
        form = self.form(command, trust_code)
        known = {one.name: one for one in form.options}
        if stranger := next((name for name in values if name not in known), None):
            raise UserError(unknown("option", stranger, known))
        given, placed = list[str](), list[str]()
        for name, option in known.items():
            texts = list(_texts(option, values.get(name, "")))
            if not trust_code:
                _refuse_code(option, texts)
            if name.startswith("--"):
                given += [part for text in texts for part in _spelled(option, text)]
            else:
                placed += texts
        if dashed := next((one for one in placed if one.startswith("-")), None):
            raise UserError(f"'{dashed}' begins with a dash, so it would be an option: leave it out")
        for option in form.options:
            if option.suggestions == "mechanism":
                _refuse_unknown(option, list(_texts(option, values.get(option.name, ""))), mechanisms)
        arguments = [*command.split(), *placed, *given, *_spelled(None, str(folder))]
        self.check(arguments)
        return arguments

    def _find(self, command: str) -> App:
        if command not in self.names():
            raise UserError(unknown("command", command, self.names()))
        found = self.app
        for name in command.split():
            found = found[name]
        return found


# From declarations to controls


def _arguments(command: App) -> Iterator[Argument]:
    """The arguments that take a value; those that only group others are left out."""
    for one in command.assemble_argument_collection():
        if one.parse and one.name != "*" and not is_dataclass(one.hint):
            yield one


def _option(argument: Argument) -> Option:
    name = argument.name
    part, dot, last = name.removeprefix("--").partition(".")
    is_setting = bool(dot) or part in _SHORT
    choices = _choices(name)
    last = last or part
    return Option(
        name=name,
        label=last if dot else last.replace("-", " ").replace("_", " ").lower(),
        help=argument.parameter.help or "",
        kind=_kind(argument, choices),
        default="" if is_setting else _default(argument),  # settings start from those of a preset
        choices=choices,
        group=_TITLES.get(part, "Training") if is_setting else "",
        suggestions=last if last in ("preset", "mechanism") else "mechanism" if last.lower() == "variants" else "",
        required=argument.required,
    )


def _kind(argument: Argument, choices: Sequence[str]) -> Any:
    hint = argument.hint
    if choices:
        return "choice"
    if hint is bool:
        return "flag"
    if not argument.name.startswith("--") and argument.field_info.kind.name == "VAR_POSITIONAL":
        return "list"
    parts = (hint, *get_args(hint))
    if any(get_origin(one) in (list, tuple) for one in parts):
        return "list"
    if any(get_origin(one) is dict for one in parts):
        return "table"
    if any(one in (int, float) for one in parts):
        return "whole" if int in parts else "number"
    return _KINDS.get(str(argument.parameter.metavar), "text")


def _default(argument: Argument) -> str:
    """What the command takes where nothing is given, in the words of its help."""
    shown = argument.show_default
    if isinstance(shown, str):
        return shown
    value = argument.field_info.default
    plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return str(value) if plain else ""


def _choices(name: str) -> list[str]:
    """The values of a setting that has a fixed list of them."""
    kind: Any = RunConfig
    path = name.removeprefix("--").split(".")
    if len(path) == 1 and path[0] in _SHORT:
        path = ["train", *path]
    for part in path:
        if not (is_dataclass(kind) and isinstance(kind, type)):
            return []
        kind = get_type_hints(kind).get(part)
    return [str(one) for one in get_args(kind)] if get_origin(kind) is Literal else []


def _paragraphs(text: str, without: Collection[str]) -> str:
    """A text without the line breaks inside of paragraphs, and without sentences about options that the form lacks."""
    parts = [re.split(r"(?<=\.) (?=[A-Z`])", " ".join(one.split())) for one in text.strip().split("\n\n")]
    kept = [" ".join(one for one in part if not {*re.findall(r"--[\w-]+", one)} & {*without}) for part in parts]
    return "\n\n".join(part for part in kept if part)


# From values to arguments


def _texts(option: Option, value: Value) -> Iterator[str]:
    """The values of an option as texts; nothing where it is left empty."""
    if option.kind == "flag":
        if not isinstance(value, bool) and value not in ("", "true", "false"):
            raise UserError(f"{option.name} is on or off, not '{value}'")
        if value in (True, "true"):
            yield "true"
        return
    if isinstance(value, bool):
        raise UserError(f"{option.name} takes a value")
    several = option.kind in ("list", "table")
    lines = value if isinstance(value, list) else value.splitlines() if several else [value]
    if len(lines) > 1 and not several:
        raise UserError(f"{option.name} takes one value")
    yield from (line.strip() for line in lines if line.strip())


def _spelled(option: Option | None, text: str) -> list[str]:
    """An option with its value."""
    name = option.name if option else "--out"
    if option and option.kind == "flag":
        return [name]
    if option and option.kind == "table":
        key, equals, text = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise UserError(f"{name} takes lines of NAME=VALUE")
        name = f"{name}.{key}"
    return [f"{name}={text}"] if text.startswith("-") else [name, text]


def _refuse_code(option: Option, texts: Sequence[str]) -> None:
    """Refuse classes in files and files of settings, which are code or name code, and other machines."""
    for text in texts:
        if option.name == "--workers" and not text.lstrip("-").isdigit():
            raise UserError("--workers takes a number here: start the server with --trust-code to use other machines")
        if any(is_code(one) for one in split_names(text.partition("=")[2] if option.kind == "table" else text)) or (
            option.label == "variants" and text.endswith(".toml")
        ):
            raise UserError(f"'{text}' may run code of a file: start the server with --trust-code, or use the terminal")


def _refuse_unknown(option: Option, texts: Sequence[str], mechanisms: Collection[str]) -> None:
    """Refuse names that no mechanism has; what is compared may also be presets, files of settings and finished runs."""
    for text in texts:
        others = option.label == "variants" and (
            text in preset_names() or text.endswith(".toml") or Path(text).is_dir()
        )
        for name in () if others else split_names(text):
            if not is_code(name) and name not in mechanisms:
                raise UserError(unknown("mechanism", name, mechanisms))


# What the page may propose


def preset_settings() -> dict[str, dict[str, str]]:
    """The settings of every preset by the names of their options."""
    return {name: dict(_named(resolve(name).to_dict())) for name in preset_names()}


def _named(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in flatten(settings):
        short = name.removeprefix("train.") if name.removeprefix("train.") in _SHORT else name
        if isinstance(value, str | int | float):
            yield f"--{short}", str(value)
