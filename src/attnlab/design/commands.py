"""The command line of the solver: `design` with its subcommands, and `check`."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from attnlab.errors import UserError, unknown
from attnlab.pictures import picture_kind

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


def _text(words: str) -> Parameter:
    return Parameter(help=words, allow_leading_hyphen=True)


def _decimal(_kind: object, tokens: Sequence[Any]) -> Decimal:
    from attnlab.design.exact import decimal

    found = decimal(tokens[0].value)
    if not found.is_finite():
        raise ValueError("not a finite number")
    return found


def _whole(_kind: object, tokens: Sequence[Any]) -> int:
    from attnlab.design.inputs import whole

    return whole(tokens[0].value)


def _number(words: str) -> Parameter:
    return Parameter(help=words, converter=_decimal, allow_leading_hyphen=True)


def _count(words: str) -> Parameter:
    return Parameter(help=words, converter=_whole, allow_leading_hyphen=True)


def _refuse_picture(_kind: object, path: Path | None) -> None:
    """Refuse a picture that cannot be written, before anything is solved."""
    if path is not None:
        picture_kind(path)


_FILE = "CSV, NPY or JSON file, or '1,0;0,1'"
_Keys = Annotated[str, _text(f"One key per row: {_FILE}.")]
_Values = Annotated[str, _text("One value per row, as many as keys.")]
_Target = Annotated[str, _text("Output wanted, such as 1,0,0.")]
_Indices = Annotated[str | None, _text("Indices of the values, such as 0,1; all by default.")]
_Tolerance = Annotated[Decimal, _number("Maximum error of any output coordinate.")]
_Scales = Annotated[Literal["none", "sqrt"], Parameter(help="Scaling of scores by the width.")]
_Json = Annotated[bool, Parameter(help="Print JSON.")]
_Seconds = Annotated[float, Parameter(help="Time limit in seconds for a proof of impossibility.")]
_Picture = Annotated[Path | None, Parameter(help="Write a picture, as .png, .svg or .pdf.", validator=_refuse_picture)]


@design.command
def select(
    *,
    keys: _Keys,
    values: _Values,
    index: Annotated[int | None, _count("Index of the value, from 0; all by default.")] = None,
    tolerance: _Tolerance = Decimal("0.01"),
    scale: _Scales = "none",
    seconds: _Seconds = 5.0,
    json: _Json = False,
    picture: _Picture = None,
) -> None:
    """Find a query that copies one value, or one query for each value."""
    from attnlab.design import solve

    k, v = _pair(keys, values)
    result = solve.select(k, v, index, tolerance=tolerance, scale=scale, seconds=seconds)
    _show(result, json, picture, (k.floats, v.floats))


@design.command
def blend(
    *,
    keys: _Keys,
    values: _Values,
    indices: _Indices = None,
    weights: Annotated[str | None, _text("Their weights, such as .3,.7; equal by default.")] = None,
    tolerance: _Tolerance = Decimal("0.01"),
    scale: _Scales = "none",
    seconds: _Seconds = 5.0,
    json: _Json = False,
    picture: _Picture = None,
) -> None:
    """Find a query that mixes some values with given weights and ignores the others."""
    from attnlab.design import solve

    k, v = _pair(keys, values)
    chosen = None if indices is None else _indices(indices)
    shares = _vector(weights, "weights")
    result = solve.blend(k, v, chosen, shares, tolerance=tolerance, scale=scale, seconds=seconds)
    _show(result, json, picture, (k.floats, v.floats))


@design.command
def average(
    *,
    keys: _Keys,
    values: _Values,
    indices: _Indices = None,
    tolerance: _Tolerance = Decimal("0.01"),
    scale: _Scales = "none",
    json: _Json = False,
    picture: _Picture = None,
) -> None:
    """Find a query for the average of some values, or of all."""
    blend(keys=keys, values=values, indices=indices, tolerance=tolerance, scale=scale, json=json, picture=picture)


@design.command
def reach(
    *,
    keys: _Keys,
    values: _Values,
    target: _Target,
    query: Annotated[str | None, _text("Do not search; measure how close this query comes.")] = None,
    tolerance: _Tolerance = Decimal("0.01"),
    scale: _Scales = "none",
    seconds: _Seconds = 5.0,
    json: _Json = False,
    picture: _Picture = None,
) -> None:
    """Find a query whose output is any point you name."""
    from attnlab.design import inputs, solve

    k, v = _pair(keys, values)
    wanted, given = inputs.numbers(target, "target"), _vector(query, "query")
    result = solve.reach(k, v, wanted, query=given, tolerance=tolerance, scale=scale, seconds=seconds)
    _show(result, json, picture, (k.floats, v.floats))


@design.command
def project(
    *,
    keep: Annotated[str, _text("Basis of the subspace of v_a, one vector per row.")],
    forget: Annotated[str, _text("Basis of the subspace of v_b, one vector per row.")],
    tolerance: Annotated[Decimal, _number("Maximum error of any coordinate of M times a vector.")] = Decimal("1e-6"),
    json: _Json = False,
) -> None:
    """Find the matrix that extracts v_a from v_a + v_b."""
    from attnlab.design import inputs
    from attnlab.design.matrices import project as solve_project

    _show(solve_project(inputs.read(keep, "keep"), inputs.read(forget, "forget"), tolerance=tolerance), json)


@design.command
def layer(
    *,
    tokens: Annotated[str, _text("One input per row.")],
    outputs: Annotated[str, _text("One output per row; a row of nan is free.")],
    weights: Annotated[str | None, _text("Attention weights to use; chosen by default.")] = None,
    width: Annotated[int | None, _count("Width of the head; by default the rank of the scores.")] = None,
    tolerance: _Tolerance = Decimal("0.01"),
    scale: _Scales = "none",
    json: _Json = False,
) -> None:
    """Find W_Q, W_K and W_V of a head whose self-attention gives the outputs you want."""
    from attnlab.design import inputs
    from attnlab.design.matrices import layer as solve_layer

    x, y = inputs.read(tokens, "tokens"), inputs.read(outputs, "outputs", free_rows=True)
    given = None if weights is None else inputs.read(weights, "weights")
    _show(solve_layer(x, y, weights=given, width=width, tolerance=tolerance, scale=scale), json)


@design.command
def edit_key(
    *,
    keys: _Keys,
    values: _Values,
    query: Annotated[str, _text("Query that stays fixed.")],
    index: Annotated[int, _count("Index of the key to change, from 0.")],
    target: Annotated[str | None, _text("Output wanted; by default the value of the key.")] = None,
    norm: Annotated[float | None, Parameter(help="Norm of the new key.")] = None,
    tolerance: _Tolerance = Decimal("0.01"),
    scale: _Scales = "none",
    json: _Json = False,
    picture: _Picture = None,
) -> None:
    """Change one key so that a fixed query gives the output you want."""
    import numpy as np

    from attnlab.design import inputs
    from attnlab.design.edits import edit_key as solve_edit

    (k, v), q = _pair(keys, values), inputs.numbers(query, "query")
    result = solve_edit(k, v, q, index, _vector(target, "target"), norm=norm, tolerance=tolerance, scale=scale)
    edited = np.where(np.arange(len(k.floats))[:, None] == index, result.more["key"], k.floats)
    _show(result, json, picture, (edited, v.floats))


@design.command
def noise(
    *,
    keys: Annotated[str | None, _text("Mean keys, one per row; orthonormal by default.")] = None,
    values: Annotated[str | None, _text("One value per key; orthonormal by default.")] = None,
    indices: Annotated[str, _text("Values to average, such as 0,1.")] = "0,1",
    n: Annotated[int, _count("Number of keys, if none are given.")] = 10,
    strength: Annotated[float, Parameter(help="Factor C of the queries, C times the sum of the mean keys.")] = 10.0,
    alpha: Annotated[float, Parameter(help="Variance of each key in each direction.")] = 1e-6,
    varying: Annotated[float, Parameter(help="Variance of varying keys along themselves.")] = 0.5,
    varies: Annotated[str | None, _text("Keys whose norm varies; the first averaged by default.")] = None,
    heads: Annotated[int, _count("Number of equal heads, and of split heads; at least 2.")] = 2,
    samples: Annotated[int, _count("Number of draws.")] = 1_000_000,
    robust: Annotated[int, _count("Also fit this many heads to the noise.")] = 0,
    seed: Annotated[int, _count("Seed of all random choices.")] = 0,
    scale: _Scales = "none",
    json: _Json = False,
    picture: _Picture = None,
) -> None:
    """Simulate noise on the keys of a blend: one head, equal heads, split heads."""
    from attnlab.design import inputs
    from attnlab.design.noisy_keys import noise as simulate_noise

    means = None if keys is None else inputs.read(keys, "keys")
    given = None if values is None else inputs.read(values, "values")
    result = simulate_noise(
        means,
        given,
        _indices(indices),
        n=n,
        strength=strength,
        alpha=alpha,
        varying=varying,
        varies=None if varies is None else _indices(varies),
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
    index: Annotated[int, _count("Index of the key, from 0.")],
    weight: Annotated[Decimal, _number("Weight that the key should have at least.")] = Decimal("0.99"),
    query: Annotated[str | None, _text("Query to judge.")] = None,
    scale: _Scales = "none",
    json: _Json = False,
) -> None:
    """Say for which queries one key gets nearly all the weight."""
    from attnlab.design import conditions, inputs

    given = _vector(query, "query")
    _print(conditions.when(inputs.read(keys, "keys"), index, weight=weight, query=given, scale=scale), json)


@design.command
def derive(
    name: Annotated[str | None, Parameter(help="Derivation to show; a list of all by default.")] = None,
    /,
    *,
    latex: Annotated[bool, Parameter(help="Print LaTeX for a report.")] = False,
    json: _Json = False,
) -> None:
    """Prove a fact about attention, with every step checked as it runs."""
    from attnlab.design.theorems import DERIVATIONS
    from attnlab.design.theorems import derive as checked
    from attnlab.terminal import Terminal

    if name is not None:
        found = checked(name)
        if latex:
            print(found.to_latex())
        else:
            _print(found, json)
        return
    listed = {name: write() for name, write in DERIVATIONS.items()}
    if json:
        import json as dumper

        print(dumper.dumps({name: each.claim for name, each in listed.items()}))
        return
    from rich.padding import Padding
    from rich.text import Text

    console = Terminal(highlight=False)
    for each in listed.values():
        console.print(Text.assemble((each.name, "bold"), f"  {each.title}, in {len(each.steps)} steps"))
        console.print(Padding(Text(each.claim, style="dim"), (0, 0, 0, 2)))


@design.command
def tour(*, step: Annotated[str | None, Parameter(help="Show one step only, such as A3.")] = None) -> None:
    """Show everything the solver does, each step with the command that repeats it."""
    import shlex

    from rich.rule import Rule
    from rich.text import Text

    from attnlab.design.tour import STEPS
    from attnlab.terminal import Terminal

    shown = [each for each in STEPS if step is None or each.code.lower() == step.lower()]
    if not shown:
        raise UserError(unknown("step", str(step), [each.code for each in STEPS]))
    console = Terminal(highlight=False)
    for each in shown:
        console.print(Rule(Text(f"{each.code}  {each.title}", style="bold"), align="left"))
        console.print(Text(each.said))
        for command in each.commands:
            console.print()
            console.print(Text(f"$ attnlab design {command}", style="cyan"), soft_wrap=True)
            design(shlex.split(command), exit_on_error=False, print_error=False, result_action="return_value")
        console.print()


def _pair(keys: str, values: str) -> tuple[Rows, Rows]:
    from attnlab.design import inputs

    return inputs.read(keys, "keys"), inputs.read(values, "values")


def _vector(source: str | None, what: str) -> Rows | None:
    from attnlab.design import inputs

    return None if source is None else inputs.numbers(source, what)


def _indices(text: str) -> list[int]:
    from attnlab.design.inputs import shown, whole

    try:
        return [whole(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"indices '{shown(text)}' must be whole numbers with commas, such as 0,1") from None


def _show(
    result: Result | Noise, as_json: bool, picture: Path | None = None, data: tuple[Array, Array] | None = None
) -> None:
    """Print a result; write its picture first. `data` are the keys and values of the picture."""
    if picture is not None:
        from attnlab.design import pictures

        pictures.save(pictures.draw(result, data), picture)
    _print(result, as_json, picture)


def _print(result: Result | Noise | Condition | Derivation, as_json: bool, picture: Path | None = None) -> None:
    if as_json:
        print(result.to_json())
        return
    from attnlab.terminal import Terminal

    console = Terminal(highlight=False)
    console.print(result)
    if picture is not None:
        console.print(f"picture: {picture}", style="dim", soft_wrap=True)
