"""The command line of the solver: `design` with its subcommands, and the tour of what attention can and cannot compute.

Modules that need numpy are imported when a command runs, so that `--help` is quick.
"""

from __future__ import annotations

import shlex
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

import attnlab.design as solver
from attnlab.errors import UserError, unknown
from attnlab.pictures import picture_kind
from attnlab.reading import packaged_text
from attnlab.terminal import Terminal

if TYPE_CHECKING:
    from attnlab.design.conditions import Condition
    from attnlab.design.derivations import Derivation
    from attnlab.design.exact import Array, Rows
    from attnlab.design.noisy_keys import Noise
    from attnlab.design.results import Result

design = App(
    name="design",
    help="Solve attention backwards: a query for the output you want, or a proof of none.",
    default_parameter=Parameter(name_transform=lambda name: name.replace("_", "-"), negative=()),
)


def _decimal(_kind: object, tokens: Sequence[Any]) -> Decimal:
    from attnlab.design.exact import decimal

    number = decimal(tokens[0].value)
    if not number.is_finite():
        raise ValueError("not a finite number")
    return number


def _whole(_kind: object, tokens: Sequence[Any]) -> int:
    from attnlab.design.inputs import whole

    return whole(tokens[0].value)


def _option(text: str, converter: Callable[..., Any] | None = None) -> Parameter:
    return Parameter(help=text, converter=converter, allow_leading_hyphen=True)


def _refuse_picture(_kind: object, path: Path | None) -> None:
    """Refuse a picture that cannot be written, before anything is solved."""
    if path is not None:
        picture_kind(path)


_FILE = "CSV, NPY or JSON file, or '1,0;0,1'"
_Keys = Annotated[str, _option(f"One key per row: {_FILE}.")]
_Values = Annotated[str, _option("One value per row, as many as keys.")]
_Target = Annotated[str, _option("Output wanted, such as 1,0,0.")]
_Indices = Annotated[str | None, _option("Indices of the values, such as 0,1; all by default.")]
_Tolerance = Annotated[Decimal, _option("Maximum error of any output coordinate.", _decimal)]
_Scales = Annotated[Literal["none", "sqrt"], Parameter(help="Scaling of scores by the width.")]
_Json = Annotated[bool, Parameter(help="Print JSON.")]
_Seconds = Annotated[float, Parameter(help="Time limit in seconds for a proof of impossibility.")]
_Picture = Annotated[Path | None, Parameter(help="Write a picture, as .png, .svg or .pdf.", validator=_refuse_picture)]


@dataclass(frozen=True, kw_only=True)
class _Question:
    """What every question about keys and values says, and how its answer is shown."""

    keys: _Keys
    values: _Values
    tolerance: _Tolerance = Decimal("0.01")
    scale: _Scales = "none"
    json: _Json = False
    picture: _Picture = None

    def answer(self, solve: Callable[..., Result], *arguments: Any, edits: int | None = None, **options: Any) -> None:
        """Show the answer to what else is asked; `edits` is the index of a key that the answer replaces."""
        k, v = _matrix(self.keys, "keys"), _matrix(self.values, "values")
        result = solve(k, v, *arguments, tolerance=self.tolerance, scale=self.scale, **options)
        keys = k.floats.copy()
        if edits is not None:
            keys[edits] = result.more["key"]
        _show(result, self.json, self.picture, (keys, v.floats))


_Asked = Annotated[_Question, Parameter(name="*")]


@design.command
def select(
    *,
    question: _Asked,
    index: Annotated[int | None, _option("Index of the value, from 0; all by default.", _whole)] = None,
    seconds: _Seconds = 5.0,
) -> None:
    """Find a query that copies one value, or one query for each value."""
    question.answer(solver.select, index, seconds=seconds)


@design.command
def blend(
    *,
    question: _Asked,
    indices: _Indices = None,
    weights: Annotated[str | None, _option("Their weights, such as .3,.7; equal by default.")] = None,
    seconds: _Seconds = 5.0,
) -> None:
    """Find a query that mixes some values with given weights and ignores the others."""
    question.answer(solver.blend, _indices(indices), _optional(weights, "weights"), seconds=seconds)


@design.command
def average(*, question: _Asked, indices: _Indices = None) -> None:
    """Find a query for the average of some values, or of all."""
    question.answer(solver.average, _indices(indices))


@design.command
def reach(
    *,
    question: _Asked,
    target: _Target,
    query: Annotated[str | None, _option("Do not search; measure how close this query comes.")] = None,
    seconds: _Seconds = 5.0,
) -> None:
    """Find a query whose output is any point you name."""
    question.answer(solver.reach, _matrix(target, "target"), query=_optional(query, "query"), seconds=seconds)


@design.command
def project(
    *,
    keep: Annotated[str, _option("Basis of the subspace of v_a, one vector per row.")],
    forget: Annotated[str, _option("Basis of the subspace of v_b, one vector per row.")],
    tolerance: Annotated[Decimal, _option("Maximum error of any coordinate of M times a vector.", _decimal)] = Decimal(
        "1e-6"
    ),
    json: _Json = False,
) -> None:
    """Find the matrix that extracts v_a from v_a + v_b."""
    _show(solver.project(_matrix(keep, "keep"), _matrix(forget, "forget"), tolerance=tolerance), json)


@design.command
def layer(
    *,
    tokens: Annotated[str, _option("One input per row.")],
    outputs: Annotated[str, _option("One output per row; a row of nan is free.")],
    weights: Annotated[str | None, _option("Attention weights to use; chosen by default.")] = None,
    width: Annotated[int | None, _option("Width of the head; by default the rank of the scores.", _whole)] = None,
    tolerance: _Tolerance = Decimal("0.01"),
    scale: _Scales = "none",
    json: _Json = False,
) -> None:
    """Find W_Q, W_K and W_V of a head whose self-attention gives the outputs you want."""
    x, y = _matrix(tokens, "tokens"), _matrix(outputs, "outputs", free_rows=True)
    w = _optional(weights, "weights")
    _show(solver.layer(x, y, weights=w, width=width, tolerance=tolerance, scale=scale), json)


@design.command
def edit_key(
    *,
    question: _Asked,
    query: Annotated[str, _option("Query that stays fixed.")],
    index: Annotated[int, _option("Index of the key to change, from 0.", _whole)],
    target: Annotated[str | None, _option("Output wanted; by default the value of the key.")] = None,
    norm: Annotated[float | None, Parameter(help="Norm of the new key.")] = None,
) -> None:
    """Change one key so that a fixed query gives the output you want."""
    q, y = _matrix(query, "query"), _optional(target, "target")
    question.answer(solver.edit_key, q, index, y, norm=norm, edits=index)


@design.command
def noise(
    *,
    keys: Annotated[str | None, _option("Mean keys, one per row; orthonormal by default.")] = None,
    values: Annotated[str | None, _option("One value per key; orthonormal by default.")] = None,
    indices: Annotated[str, _option("Values to average, such as 0,1.")] = "0,1",
    n: Annotated[int, _option("Number of keys, if none are given.", _whole)] = 10,
    strength: Annotated[float, Parameter(help="Factor C of the queries, C times the sum of the mean keys.")] = 10.0,
    alpha: Annotated[float, Parameter(help="Variance of each key in each direction.")] = 1e-6,
    varying: Annotated[float, Parameter(help="Variance of varying keys along themselves.")] = 0.5,
    varies: Annotated[str | None, _option("Keys whose norm varies; the first averaged by default.")] = None,
    heads: Annotated[int, _option("Number of equal heads, and of split heads; at least 2.", _whole)] = 2,
    samples: Annotated[int, _option("Number of draws.", _whole)] = 1_000_000,
    robust: Annotated[int, _option("Also fit this many heads to the noise.", _whole)] = 0,
    seed: Annotated[int, _option("Seed of all random choices.", _whole)] = 0,
    scale: _Scales = "none",
    json: _Json = False,
    picture: _Picture = None,
) -> None:
    """Simulate noise on the keys of a blend: one head, equal heads, split heads."""
    result = solver.noise(
        _optional(keys, "keys"),
        _optional(values, "values"),
        _indices(indices) or (),
        n=n,
        strength=strength,
        alpha=alpha,
        varying=varying,
        varies=_indices(varies),
        heads=heads,
        samples=samples,
        robust=robust,
        seed=seed,
        scale=scale,
    )
    _show(result, json, picture)


@design.command
def when(
    *,
    keys: _Keys,
    index: Annotated[int, _option("Index of the key, from 0.", _whole)],
    weight: Annotated[Decimal, _option("Weight that the key should have at least.", _decimal)] = Decimal("0.99"),
    query: Annotated[str | None, _option("Query to judge.")] = None,
    scale: _Scales = "none",
    json: _Json = False,
) -> None:
    """Show for which queries one key gets nearly all the weight."""
    q = _optional(query, "query")
    _print(solver.when(_matrix(keys, "keys"), index, weight=weight, query=q, scale=scale), json)


@design.command
def derive(
    name: Annotated[str | None, Parameter(help="Derivation to show; a list of all by default.")] = None,
    /,
    *,
    latex: Annotated[bool, Parameter(help="Print LaTeX for a report.")] = False,
    json: _Json = False,
) -> None:
    """Prove a fact about attention, with every step checked as it runs."""
    from json import dumps

    from attnlab.design.theorems import DERIVATIONS

    if name is not None and latex:
        print(solver.derive(name).to_latex())
    elif name is not None:
        _print(solver.derive(name), json)
    elif json:
        print(dumps({name: write().claim for name, write in DERIVATIONS.items()}))
    else:
        console = Terminal(highlight=False)
        for derivation in (write() for write in DERIVATIONS.values()):
            title = f"  {derivation.title}, in {len(derivation.steps)} steps"
            console.print(Text.assemble((derivation.name, "bold"), title))
            console.print(Padding(Text(derivation.claim, style="dim"), (0, 0, 0, 2)))


@dataclass(frozen=True)
class Stop:
    """A stop of the tour: a code, what it shows, and the commands that it prints and runs."""

    code: str
    title: str
    text: str
    commands: Sequence[str]


@cache
def stops() -> tuple[Stop, ...]:
    """The stops of the tour."""
    tour = tomllib.loads(packaged_text("design", "tour.toml"))
    commands = ([command.format(**tour["shared"]) for command in step["commands"]] for step in tour["steps"])
    return tuple(Stop(**step | {"commands": own}) for step, own in zip(tour["steps"], commands, strict=True))


@design.command
def tour(
    *,
    step: Annotated[str | None, Parameter(help="Show one step only, such as A3.")] = None,
    all: Annotated[bool, Parameter(help="Print everything at once, as without a terminal.")] = False,
) -> None:
    """Show everything the solver does, each step with the command that repeats it.

    On a terminal, Enter shows the next command on a screen of its own, and q ends.
    """
    chosen = [stop for stop in stops() if step is None or stop.code.lower() == step.lower()]
    if not chosen:
        raise UserError(unknown("step", str(step), [stop.code for stop in stops()]))
    console = Terminal(highlight=False)
    paged = console.is_terminal and sys.stdin.isatty() and step is None and not all
    for stop, place in [(each, place) for each in chosen for place in range(len(each.commands))]:
        if paged and (stop, place) != (chosen[0], 0) and not _next_screen():
            return
        if paged:
            console.clear()
        if paged or place == 0:
            number = f" ({place + 1} of {len(stop.commands)})" if paged and len(stop.commands) > 1 else ""
            console.print(Rule(Text(f"{stop.code}  {stop.title}{number}", style="bold"), align="left"))
        if place == 0:
            console.print(Text(stop.text))
        console.print()
        console.print(Text(f"$ attnlab design {stop.commands[place]}", style="cyan"), soft_wrap=True)
        design(shlex.split(stop.commands[place]), exit_on_error=False, print_error=False, result_action="return_value")
        if paged or place == len(stop.commands) - 1:
            console.print()


def _next_screen() -> bool:
    """Wait for Enter; False for q and for the end of the input."""
    try:
        return input("Enter: next, q: end ").strip().lower() != "q"
    except EOFError:
        return False


def _matrix(source: str, name: str, *, free_rows: bool = False) -> Rows:
    from attnlab.design import inputs

    return inputs.read(source, name, free_rows=free_rows)


def _optional(source: str | None, name: str) -> Rows | None:
    return None if source is None else _matrix(source, name)


def _indices(text: str | None) -> list[int] | None:
    from attnlab.design.inputs import shown, whole

    try:
        return None if text is None else [whole(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"indices '{shown(text)}' must be whole numbers with commas, such as 0,1") from None


def _show(
    result: Result | Noise, as_json: bool, picture: Path | None = None, data: tuple[Array, Array] | None = None
) -> None:
    """Print a result; write its picture first. `data` are the keys and values of the picture."""
    if picture is not None:
        from attnlab.design import pictures

        pictures.save(result, data, picture)
    _print(result, as_json, picture)


def _print(result: Result | Noise | Condition | Derivation, as_json: bool, picture: Path | None = None) -> None:
    if as_json:
        print(result.to_json())
        return
    console = Terminal(highlight=False)
    console.print(result)
    if picture is not None:
        console.print(f"picture: {picture}", style="dim", soft_wrap=True)
