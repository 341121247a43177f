"""Options that several commands and studies share, each declared once with its help; and settings as options."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import field, fields, is_dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_origin, get_type_hints

from cyclopts import Parameter

from attnlab import config
from attnlab.config import RunConfig, from_text, require_seed
from attnlab.errors import UserError

MOST_SEEDS = 1000
SETTINGS_HINT = "Any setting can be given as --model.n_head 4; `attnlab settings` lists them."


def about(text: str) -> Parameter:
    """The help of an option."""
    return Parameter(help=text)


def default(text: str) -> Parameter:
    """The default that help shows for an option whose default is computed."""
    return Parameter(show_default=text)


def _whole(_kind: object, tokens: Sequence[Any]) -> int:
    """A whole number; 1.5 is refused, not rounded."""
    text = tokens[0].value
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"'{text}' is not a whole number") from None


def _refuse_seed(_kind: object, value: Any) -> None:
    """Refuse a seed that a random generator would not accept."""
    if value is not None:
        require_seed(value)


_T = TypeVar("_T")
Hidden = Annotated[_T, Parameter(parse=False)]  # part of a plan, not an option
Whole = Annotated[int, Parameter(converter=_whole)]

Folder = Annotated[Path, about("Run: its folder, or its name in ./runs.")]
Corpus = Annotated[str, about("Text to train on, one document per line: a file, people or prose:train.")]
Dev = Annotated[str, about("Held-out text to measure on: a file, or prose:dev.")]
Validate = Annotated[str, about("Held-out text or questions to validate on, or a share such as 0.05.")]
Facts = Annotated[str, about("Training questions, QUESTION<TAB>ANSWER per line; or people:train.")]
Exam = Annotated[str, about("Test questions, with or without answers: a file, or people:test.")]
Probe = Annotated[tuple[str, ...], about("Sentence to show with its loss; repeatable."), default("four sentences")]
Out = Annotated[Path, about("Folder to write; must not exist.")]
Preset = Annotated[str, about("Preset that the settings start from.")]
Config = Annotated[Path, about("TOML file that overrides the preset.")]
Mechanism = Annotated[str, about("Attention mechanism; short for --model.mechanism.")]
Seed = Annotated[Whole, Parameter(validator=_refuse_seed), about("Seed of all random choices.")]
Seeds = Annotated[str, about("Number of seeds, or a list such as 3,4,5.")]
Workers = Annotated[str, about("Parallel runs: a number, or ray."), default("one per core")]
Device = Annotated[str, about("Device: cpu, cuda, cuda:1, mps, xpu, or auto.")]
Processes = Annotated[Whole, about("Number of local processes that train the model.")]
Quick = Annotated[bool, about("Use less data, for a first look.")]
MaxRisk = Annotated[float, about("Largest share of answers that may be wrong.")]
Json = Annotated[bool, about("Print JSON.")]
TrustCode = Annotated[bool, about("Run the code in the folder, and trust it from now on; read it first.")]


def settings_class(cls: type[Any], without: tuple[str, ...] = ()) -> type[Any]:
    """A settings class as options: all optional, taken as text and parsed by the rules of the settings."""
    entries: list[tuple[str, Any, Any]] = []
    for setting in fields(cls):
        if setting.name in without:
            continue
        kind = get_type_hints(cls)[setting.name]
        if is_dataclass(kind) and isinstance(kind, type):
            nested = settings_class(kind)
            entries.append((setting.name, nested, field(default=nested())))
            continue
        text: Any = {dict[str, Any]: dict[str, str], dict[str, dict[str, Any]]: dict[str, dict[str, str]]}.get(
            kind, str
        )
        meaning, short = str(setting.metadata["help"]), setting.metadata.get("short")
        named: dict[str, Any] = {"name": short, "show": True} if short else {}
        shown = Parameter(
            **named,
            help=f"{meaning[:1].upper()}{meaning[1:]}.",
            metavar="CHOICE" if get_origin(kind) is Literal else getattr(kind, "__name__", "str").upper(),
            show_default=str(setting.default) if setting.default != "" else False,
        )
        entries.append((setting.name, Annotated[text | None, shown], field(default=None)))
    settings_type = make_dataclass(f"{cls.__name__}Given", entries, frozen=True)
    settings_type.__module__ = __name__  # cyclopts takes a class of module `types` for a built-in
    return settings_type


# The settings of all training commands; --preset and --seed are options of their own.
Given: Any = settings_class(RunConfig, without=("preset", "seed"))
Settings = Annotated[Given, Parameter(name="*", show=False, name_transform=lambda name: name)]
NONE = Given()


def collect(given: Any, mechanism: str | None = None, seed: int | None = None) -> config.Settings:
    """The settings that were given, as nested tables of the right types."""

    def read(cls: type[Any], values: Any) -> dict[str, Any]:
        tables = {}
        for setting in fields(values):
            kind, value = get_type_hints(cls)[setting.name], getattr(values, setting.name)
            if is_dataclass(value):
                tables[setting.name] = read(kind, value)
            elif value is not None:
                tables[setting.name] = from_text(value, kind)
        return {key: value for key, value in tables.items() if value != {}}

    values = read(RunConfig, given)
    if mechanism is not None:
        values.setdefault("model", {})["mechanism"] = mechanism
    if seed is not None:
        values["seed"] = seed
    return values


def read_seeds(text: str | None) -> int | list[int] | None:
    """Parse a number of seeds, or the seeds themselves."""
    if not text:
        return None
    try:
        numbers = [int(number) for number in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds takes a number, or seeds such as 3,4,5, not '{text}'") from None
    return numbers if "," in text else numbers[0]


def seed_numbers(seeds: int | Sequence[int] | None, usual: int = 5) -> tuple[int, ...]:
    """The seeds 0 to n - 1 for a number n, which is `usual` for None; a list of seeds unchanged."""
    if isinstance(seeds, int) and not 1 <= seeds <= MOST_SEEDS:
        raise UserError(
            f"--seeds must be a number from 1 to {MOST_SEEDS}, or seeds such as 3,4,5, not {config.shortened(seeds)}"
        )
    numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(range(usual) if seeds is None else seeds)
    if not numbers or len(set(numbers)) < len(numbers):
        raise UserError(f"--seeds must be a number of at least 1, or different seeds such as 3,4,5, not {seeds}")
    for seed in numbers:
        require_seed(seed)
    return numbers


def _seeds(_kind: object, tokens: Sequence[Any]) -> tuple[int, ...]:
    """A number of seeds, or seeds joined by commas, in one argument."""
    return seed_numbers(read_seeds(tokens[0].value))


SeedNumbers = Annotated[
    tuple[int, ...], Parameter(converter=_seeds, n_tokens=1), about("Number of seeds, or a list such as 3,4,5.")
]


def _numbers(_kind: object, tokens: Sequence[Any]) -> tuple[int, ...]:
    """Whole numbers joined by commas, in one argument."""
    try:
        return tuple(int(number) for number in tokens[0].value.split(","))
    except ValueError:
        raise ValueError(f"it takes numbers such as 1,2,4, not '{tokens[0].value}'") from None


Numbers = Annotated[tuple[int, ...], Parameter(converter=_numbers, n_tokens=1)]


def require_distinct(name: str, numbers: Sequence[int]) -> None:
    """Refuse numbers below 1, and the same number twice."""
    if min(numbers) < 1 or len(set(numbers)) < len(numbers):
        raise UserError(f"--{name} takes different numbers of at least 1, such as 1,2,4, not {numbers}")


def at_least_one(name: str, value: int) -> None:
    """Refuse a count below 1."""
    if value < 1:
        raise UserError(f"--{name} must be at least 1, not {value}")


def typed_command() -> str:
    """The command as it was typed, for reports."""
    return "attnlab " + shlex.join(sys.argv[1:])
