"""What the verbs share: the application, the screen, settings given by hand, and the way out."""

from __future__ import annotations

import json as json_module
import math
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, fields, is_dataclass, make_dataclass
from io import TextIOWrapper
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, Parameter

from attnlab import __version__
from attnlab.config import LARGEST, RunConfig, describe_type, from_text, require_seed, type_hints
from attnlab.errors import AttnlabError, AttnlabWarning, UserError
from attnlab.runs import speaks
from attnlab.terminal import Terminal, printable, printable_json, unexpected

LONGEST = 2000  # characters of a message, which may quote what a user gave
console = Terminal(markup=False, emoji=False)  # what is printed is mostly the user's own text
errors = Terminal(stderr=True, markup=False, emoji=False)


def as_written(name: str) -> str:
    """Option names as they stand in the code and in settings files."""
    return name


def refuse_extremes(_kind: object, value: Any) -> None:
    """Refuse numbers of any option that nothing could be done with: infinite ones, and whole ones beyond 32 bits."""
    for one in value if isinstance(value, tuple | list) else (value,):
        if isinstance(one, float) and not math.isfinite(one):
            raise ValueError("it must be a finite number")
        if isinstance(one, int) and abs(one) > LARGEST:
            raise ValueError(f"it must lie between -{LARGEST} and {LARGEST}")


app = App(
    name="attnlab",
    version=__version__,
    help="An attention laboratory: design attention with proofs, train small language models, see what they know.",
    help_format="plaintext",
    default_parameter=Parameter(name_transform=as_written, validator=refuse_extremes),
)


def settings_class(cls: type[Any], defaults: bool = False) -> type[Any]:
    """A settings class as command-line options: every one optional, taken as text and read by the settings' own rules.

    With `defaults` the help says them: where no preset has others.
    """
    entries: list[tuple[str, Any, Any]] = []
    for one in fields(cls):
        kind = type_hints(cls)[one.name]
        if is_dataclass(kind) and isinstance(kind, type):
            nested = settings_class(kind)
            group = Group(f"{one.metadata['help'].capitalize()} settings (a file given by --config has the same names)")
            entries.append((one.name, Annotated[nested, Parameter(group=group)], field(default=nested())))
        else:
            text: Any = {dict[str, Any]: dict[str, str], dict[str, dict[str, Any]]: dict[str, dict[str, str]]}.get(
                kind, str
            )
            meaning = one.metadata["help"] + ("" if text is not str or kind is str else f" ({describe_type(kind)})")
            meaning += f" [default: {one.default}]" if defaults else ""
            entries.append((one.name, Annotated[text | None, Parameter(help=meaning)], field(default=None)))
    made = make_dataclass(f"{cls.__name__}Given", entries, frozen=True)
    made.__module__ = __name__  # cyclopts takes a class of module `types` for a built-in
    return made


def given_class() -> type[Any]:
    """The settings that any training verb takes by hand, beside --preset and --seed."""
    made = settings_class(RunConfig)
    chosen = [one for one in fields(made) if one.name not in ("preset", "seed")]
    given = make_dataclass("Given", [(one.name, one.type, field(default=one.default)) for one in chosen], frozen=True)
    given.__module__ = __name__
    return given


def whole(_kind: object, tokens: Sequence[Any]) -> int:
    """A whole number, and nothing that merely rounds to one."""
    return int(tokens[0].value)


def refuse_seed(_kind: object, value: Any) -> None:
    """Refuse a seed that some generator would not take."""
    if value is not None:
        require_seed(value)


Given: Any = given_class()
Settings = Annotated[Given, Parameter(name="*")]
Whole = Annotated[int, Parameter(converter=whole)]
TrustCode = Annotated[
    bool,
    Parameter(
        name=("--trust-code", "--trust_code"),
        negative=(),
        help="Run the code that the folder carries, and trust it from now on: read it first.",
    ),
]
Seed = Annotated[Whole, Parameter(validator=refuse_seed)]
MaxRisk = Annotated[float, Parameter(name=("--max-risk", "--max_risk"))]
NONE = Given()


def collect(given: Any, mechanism: str | None, seed: int | None) -> dict[str, Any]:
    """What was really given, as nested settings of the right types."""

    def read(cls: type[Any], values: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for one in fields(values):
            kind, value = type_hints(cls)[one.name], getattr(values, one.name)
            if is_dataclass(value):
                found[one.name] = read(kind, value)
            elif value is not None:
                found[one.name] = from_text(value, kind)
        return {key: value for key, value in found.items() if value != {}}

    values = read(RunConfig, given)
    if mechanism is not None:
        values.setdefault("model", {})["mechanism"] = mechanism
    if seed is not None:
        values["seed"] = seed
    return values


def read_seeds(text: str) -> int | list[int]:
    """A number of seeds, or the seeds themselves."""
    try:
        numbers = [int(one) for one in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds takes a number, or seeds such as 3,4,5, not '{text}'") from None
    return numbers if "," in text else numbers[0]


def read_numbers(text: str | None, name: str) -> list[int] | None:
    """Whole numbers joined by commas, if there are any."""
    try:
        return [int(one) for one in text.split(",")] if text is not None else None
    except ValueError:
        raise UserError(f"--{name} takes numbers such as 1,2,4, not '{text}'") from None


def show_json(value: Any) -> None:
    """Print for programs."""
    sys.stdout.write(printable_json(json_module.dumps(value, ensure_ascii=False, indent=1)) + "\n")


@contextmanager
def indexing() -> Iterator[Callable[[float], None]]:
    """A bar on standard error for whoever builds an index, which happens once; it is not seen where none is built."""
    from rich.progress import Progress

    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("indexing, once", total=1.0, visible=False)
        yield lambda share: bar.update(task, completed=share, visible=True)


def share_the_machine() -> None:
    """Have idle OpenMP threads sleep soon instead of spinning, unless the user says otherwise; read when torch loads.

    Costs nothing measurable on a quiet machine, and beside another program training is several times faster.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def main(arguments: list[str] | None = None) -> None:
    """Run a verb; mistakes end in one line on standard error and an exit code."""
    share_the_machine()
    warnings.showwarning = show_warning
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a script Ctrl-C is not meant for it
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    else:
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # both ask to stop, both are heard
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character still gets the rest
    try:
        refuse_unreadable(sys.argv[1:] if arguments is None else arguments)
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        fail(in_plain_words(" ".join(str(error).split())), 2)
    except AttnlabError as error:
        fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        fail("stopped; a run that was under way goes on with: attnlab resume FOLDER", 130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:  # the system's own reason, nearly always about a path
            fail(f"{error.filename or 'the system'}: {error.strerror}; choose another file or folder", 1)
        fail(*unexpected(error))


def refuse_unreadable(arguments: Sequence[str]) -> None:
    """Refuse arguments that are empty, or are not text, which no message, run or report could name."""
    for before, one in zip(["", *arguments], arguments, strict=False):
        option, _, value = (one if one.startswith("--") else f"{before}={one}").partition("=")
        if not value and not (one.startswith("--") and "=" not in one):
            where = option if option.startswith("--") else "an argument"
            raise UserError(f"{where} is empty: give a value, or leave it out")
        if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in one):
            raise UserError(f"the argument '{one}' is not UTF-8 text: rename the file, or write the argument again")


def show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Our own warnings as one line; those of libraries as Python shows them."""
    if issubclass(category, AttnlabWarning):
        sys.stderr.write(f"note: {printable(str(message))}\n")
    else:
        _show_warning(message, category, *where, **more)


_show_warning = warnings.showwarning


def in_plain_words(message: str) -> str:
    """What the parser says, for people who do not know parsers."""
    if message.startswith("Unused Tokens: "):
        words = message.removeprefix("Unused Tokens: ").rstrip(".")
        return f"{words} is too much here: see --help; several mechanisms or lengths are joined by commas"
    return message


def fail(message: str, code: int) -> None:
    """One line on standard error, and out."""
    if speaks():
        short = message if len(message) <= LONGEST else f"{message[:LONGEST]}..."
        line = printable(short).replace("\n", "\\n")
        sys.stderr.write(f"attnlab: {line}\n")
    sys.exit(code)
