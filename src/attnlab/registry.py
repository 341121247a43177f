"""Registry of mechanisms, tasks and studies: they register themselves and are discovered without being imported by name.

A registered class is its own schema: the keyword-only parameters of its constructor are its options, and its docstring is its
card. Files in `attnlab.mechanisms`, `attnlab.tasks` and `attnlab.studies` are discovered, installed plugins too (entry points
of the group `attnlab.plugins`), and `my_file.py:MyClass` names a class in a user's own file.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import re
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

from attnlab.config import Settings, convert, describe_type, from_text
from attnlab.errors import USER_MODULE, ConfigError, unknown
from attnlab.store import usercode
from attnlab.terminal import line_of_user

Kind = Literal["mechanism", "task", "study"]
_PACKAGES: dict[Kind, tuple[str, ...]] = {
    "mechanism": ("mechanisms",),
    "task": ("tasks",),
    "study": ("studies", "hf"),
}
# How the weights of a mechanism relate to dot-product attention with the same queries and keys: equal; restricted to fewer
# pairs; a low-rank or feature-map estimate; or unrelated.
_Weights = Literal["own", "exact", "sparse", "low rank", "kernel"]
C = TypeVar("C", bound=type)

# Passed to a constructor that accepts them: properties of the model and the data, not options of the mechanism.
_SHARED = frozenset({"causal", "rotary", "rotation", "qk_norm", "bias", "dropout"})


@dataclass(frozen=True)
class Option:
    """A user option: its type in plain words, its default (None if required) and its help text."""

    name: str
    type: str
    default: Any
    meaning: str
    choices: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Card:
    """A parsed docstring; each paragraph is one line, and a missing section is empty."""

    summary: str
    body: str
    costs: str
    cannot: str
    meanings: Mapping[str, str]

    @classmethod
    def read(cls, text: str) -> Card:
        """Parse a docstring: summary, `Costs:`, `Cannot:`, and the descriptions under `Parameters`."""
        head, _, parameters = text.partition("\nParameters\n----------\n")
        first, *sections = re.split(r"^(Costs|Cannot):", head, flags=re.MULTILINE)
        summary, _, body = first.partition("\n\n")
        titled = {title: _unwrapped(section) for title, section in zip(sections[::2], sections[1::2], strict=True)}
        options = re.findall(r"^(\w+)(?: :.*)?\n((?:[ \t]+.*\n?)+)", parameters, flags=re.MULTILINE)
        meanings = {name: _unwrapped(meaning) for name, meaning in options}
        return cls(_unwrapped(summary), _unwrapped(body), titled.get("Costs", ""), titled.get("Cannot", ""), meanings)


def _unwrapped(text: str) -> str:
    return "\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))


@dataclass(frozen=True)
class Entry:
    """One registered class with its card."""

    kind: Kind
    name: str
    build: Callable[..., Any]
    paper: str = ""
    cost: str = ""
    causal: bool = True
    defect: str = ""
    weights: _Weights = "own"
    knobs: tuple[str, ...] = ()
    ordered: bool = False

    @property
    def short_name(self) -> str:
        """The name under which options are given: for a class in a user's file, the class name."""
        return self.name.rpartition(":")[2]

    @property
    def card(self) -> str:
        """The docstring of the class."""
        return inspect.cleandoc(self.build.__doc__ or "")

    @property
    def parts(self) -> Card:
        """The parsed docstring."""
        return Card.read(self.card)

    def described(self) -> list[Option]:
        """The options with their types, defaults and meanings."""
        hints, meanings = self.hints(), self.parts.meanings
        return [
            Option(
                name,
                describe_type(hints.get(name, str)),
                None if parameter.default is parameter.empty else parameter.default,
                meanings.get(name, ""),
                typing.get_args(hints.get(name)),
            )
            for name, parameter in self.options.items()
        ]

    def hints(self) -> dict[str, Any]:
        """The types of the constructor's parameters."""
        return typing.get_type_hints(self.build.__init__ if inspect.isclass(self.build) else self.build)

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The user options: keyword-only parameters that the model does not set."""
        parameters = inspect.signature(self.build).parameters
        return {
            name: parameter
            for name, parameter in parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY and name not in _SHARED
        }

    def accepts(self, name: str) -> bool:
        """Whether the constructor takes this parameter; `**shared` takes everything the model offers."""
        parameters = inspect.signature(self.build).parameters
        open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        return name in parameters or (open_ended and name in _SHARED)

    def make(self, sizes: tuple[int, int, int], options: Settings | None = None, **shared: Any) -> Any:
        """Build a mechanism of size (n_embd, n_head, block_size) with its options and the `shared` arguments it accepts."""
        arguments = {name: value for name, value in shared.items() if self.accepts(name)} | self.check(options or {})
        try:
            module = self.build(*sizes, **arguments)
        except ConfigError:
            raise
        except Exception as error:  # a user's class may raise anything
            message = " ".join(f"{type(error).__name__}: {error}".split())
            where = f" ({place})" if (place := line_of_user(error)) else ""
            raise ConfigError(
                f"{self.name} cannot be built as Mechanism(n_embd, n_head, block_size): {message}{where}"
            ) from error
        if not callable(getattr(module, "forward", None)):
            raise ConfigError(f"{self.name} must build an nn.Module, not {type(module).__name__}")
        return module

    def check(self, options: Settings) -> dict[str, Any]:
        """Check and convert options, or raise an error with the closest names."""
        if not options:
            return {}  # a class whose annotations cannot be read can still be built
        known, hints = self.options, self.hints()
        for name in options.keys() - known.keys():
            if not known:
                raise ConfigError(f"{self.kind} '{self.name}' has no options: leave '{name}' out")
            raise ConfigError(unknown(f"option of {self.kind} {self.name}", name, known))
        return {
            name: convert(from_text(value, hints[name]), hints[name], name, f"{self.kind} {self.name}")
            for name, value in options.items()
        }


_entries: dict[tuple[Kind, str], Entry] = {}
_discovered: set[Kind] = set()
_executed: dict[str, tuple[ModuleType, list[Entry]]] = {}  # users' files by sha256, with the classes they registered


def _register(kind: Kind, name: str, **card: Any) -> Callable[[C], C]:

    def decorate(cls: C) -> C:
        previous = _entries.get((kind, name))
        if previous is not None and previous.build.__module__ != cls.__module__:
            raise ConfigError(f"{kind} '{name}' is registered twice: {previous.build.__module__} and {cls.__module__}")
        _entries[kind, name] = Entry(kind, name, cls, **card)
        return cls

    return decorate


def add(entry: Entry) -> None:
    """Add an entry that no decorator registers, in place of one of the same name."""
    _entries[entry.kind, entry.name] = entry


def mechanism(
    name: str,
    *,
    paper: str = "",
    cost: str = "",
    causal: bool = True,
    defect: str = "",
    weights: _Weights = "own",
    knobs: tuple[str, ...] = (),
    ordered: bool = False,
) -> Callable[[C], C]:
    """Register an attention mechanism.

    `defect` declares a mechanism wrong on purpose, `weights` how it relates to dot-product attention, and `knobs`
    names the options that trade cost for accuracy. One that is `ordered` knows the order of tokens by itself: rotary
    positions are for the other layers of its model.
    """
    return _register(
        "mechanism",
        name,
        paper=paper,
        cost=cost,
        causal=causal,
        defect=defect,
        weights=weights,
        knobs=knobs,
        ordered=ordered,
    )


def task(name: str) -> Callable[[C], C]:
    """Register a training objective."""
    return _register("task", name)


def study(name: str) -> Callable[[C], C]:
    """Register a study; see attnlab.studies.study."""
    return _register("study", name)


@dataclass(frozen=True)
class Listing:
    """A class of the package that is registered when its module is imported."""

    module: str
    card: str  # its docstring
    keywords: tuple[str, ...]  # arguments of its decorator that are set


@cache
def listings(kind: Kind) -> dict[str, Listing]:
    """List the package's own classes of a kind by name, read from their sources without importing them."""
    listed, root = {}, Path(str(resources.files("attnlab")))
    for path in sorted(path for package in _PACKAGES[kind] for path in (root / package).rglob("*.py")):
        module = ".".join(["attnlab", *path.relative_to(root).with_suffix("").parts]).removesuffix(".__init__")
        classes = [node for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.ClassDef)]
        for node in classes:
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == kind:
                    name, card = ast.literal_eval(call.args[0]), ast.get_docstring(node) or ""
                    listed[name] = Listing(module, card, tuple(word.arg or "" for word in call.keywords))
    return listed


def discover(kind: Kind) -> None:
    """Import the package's own files and the installed plugins, once."""
    if kind in _discovered:
        return
    for listing in listings(kind).values():
        importlib.import_module(listing.module)
    for plugin in importlib.metadata.entry_points(group="attnlab.plugins"):
        plugin.load()
    _discovered.add(kind)


def load_file(reference: str, kind: Kind, adapted: bool = True) -> Entry:
    """Load the class `path.py:Name` given by the user, or the class of a stored name.

    A mechanism is `adapted` if its class is written as courses and other libraries write them.
    """
    stored = usercode.named_by_user(reference)
    source, name = usercode.require(stored), stored.rpartition(":")[2]
    if source.sha256 not in _executed:
        _executed[source.sha256] = _execute(source)
    module, registered = _executed[source.sha256]
    if not hasattr(module, name):
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise ConfigError(f"{source.path} has no class '{name}'" + (f": choose from {', '.join(own)}" if own else ""))
    build = getattr(module, name)
    if not callable(build):
        raise ConfigError(f"{source.path}: '{name}' is not a class but {build!r:.40}")
    if entry := next((entry for entry in registered if entry.build is build), None):
        return entry
    if (
        adapted and kind == "mechanism" and inspect.isclass(build)
    ):  # by name, since tasks and studies never import torch
        build = importlib.import_module("attnlab.mechanisms.conventions").adapt(build)
    return Entry(kind, reference, build, ordered=getattr(build, "ordered", False))


def _execute(source: usercode.Source) -> tuple[ModuleType, list[Entry]]:
    """Execute a user's file exactly as read, without cached bytecode, and collect what it registers."""
    module = ModuleType(f"{USER_MODULE}{source.path.stem}")
    module.__file__ = str(source.path)
    sys.modules[module.__name__] = module  # dataclasses look up their module
    try:
        exec(compile(source.content, str(source.path), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        message = f"{type(error).__name__}: {' '.join(str(error).split())}"
        message += "; install it, or add its folder to PYTHONPATH" if isinstance(error, ModuleNotFoundError) else ""
        raise ConfigError(f"{source.path} cannot be loaded: {message}") from None
    return module, [entry for entry in _entries.values() if entry.build.__module__ == module.__name__]


def names(kind: Kind) -> list[str]:
    """List the registered names of a kind."""
    discover(kind)
    return sorted(name for entry_kind, name in _entries if entry_kind == kind)


def find(kind: Kind, name: str) -> Entry:
    """Find the entry of a name or `path.py:Class`."""
    if usercode.is_code(name):
        return load_file(name, kind)
    if name in listings(kind):
        importlib.import_module(listings(kind)[name].module)
    else:
        discover(kind)
    if (kind, name) not in _entries:
        raise ConfigError(unknown(kind, name, names(kind)))
    return _entries[kind, name]


def file_of(cls: type) -> Path | None:
    """Return the user's file that a class was loaded from; None for a class of the package or of a plugin."""
    if not cls.__module__.startswith(USER_MODULE):
        return None
    return Path(str(sys.modules[cls.__module__].__file__)).resolve()
