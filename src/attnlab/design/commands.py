"""The command line of the solver: `design` with its sub-commands, and `check`. Arguments in, one result out; no
mathematics.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from attnlab.errors import UserError

if TYPE_CHECKING:
    from attnlab.design.noisy_keys import Noise
    from attnlab.design.results import Result

design = App(
    name="design",
    help=(
        "Solve attention backwards: a query or matrices for the output you want, with a bound, or a proof that "
        "there are none."
    ),
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


FILE = "a CSV, NPY or JSON file, or written out as '1,0;0,1'"
Keys = Annotated[str, _text(f"One key a row: {FILE}.")]
Values = Annotated[str, _text("One value a row, as many as keys.")]
Target = Annotated[str, _text("The output wanted, such as 1,0,0.")]
Indices = Annotated[str | None, _text("Which values, such as 0,1; all when left out.")]
Tolerance = Annotated[Decimal, _number("How far any coordinate of the output may be off.")]
Scales = Annotated[Literal["none", "sqrt"], Parameter(help="sqrt divides scores by the square root of the width.")]
Json = Annotated[bool, Parameter(help="Print one JSON object.")]
Seconds = Annotated[float, Parameter(help="Computing time allowed for a proof of impossibility.")]
Picture = Annotated[Path | None, Parameter(help="Write a picture, as PNG and as SVG.")]


@design.command
def select(
    *,
    keys: Keys,
    values: Values,
    index: Annotated[int | None, _count("Which value, counted from 0.")] = None,
    tolerance: Tolerance = Decimal("0.01"),
    scale: Scales = "none",
    seconds: Seconds = 5.0,
    json: Json = False,
    picture: Picture = None,
) -> None:
    """A query that copies one value; without --index, one query for every value."""
    from attnlab.design import inputs, solve

    k, v = inputs.read(keys, "keys"), inputs.read(values, "values")
    _show(
        solve.select(k, v, index, tolerance=tolerance, scale=scale, seconds=seconds),
        json,
        picture,
        (k.floats, v.floats),
    )


@design.command
def blend(
    *,
    keys: Keys,
    values: Values,
    indices: Indices = None,
    weights: Annotated[str | None, _text("Their weights, such as .3,.7; equal when left out.")] = None,
    tolerance: Tolerance = Decimal("0.01"),
    scale: Scales = "none",
    seconds: Seconds = 5.0,
    json: Json = False,
    picture: Picture = None,
) -> None:
    """A query that mixes some values with given weights and ignores the others."""
    from attnlab.design import inputs, solve

    k, v = inputs.read(keys, "keys"), inputs.read(values, "values")
    chosen = None if indices is None else _indices(indices)
    shares = None if weights is None else inputs.numbers(weights, "weights")
    _show(
        solve.blend(k, v, chosen, shares, tolerance=tolerance, scale=scale, seconds=seconds),
        json,
        picture,
        (k.floats, v.floats),
    )


@design.command
def average(
    *,
    keys: Keys,
    values: Values,
    indices: Indices = None,
    tolerance: Tolerance = Decimal("0.01"),
    scale: Scales = "none",
    json: Json = False,
    picture: Picture = None,
) -> None:
    """A query for the plain average of some values, or of all: `blend` with equal weights."""
    blend(keys=keys, values=values, indices=indices, tolerance=tolerance, scale=scale, json=json, picture=picture)


@design.command
def reach(
    *,
    keys: Keys,
    values: Values,
    target: Target,
    query: Annotated[str | None, _text("Do not search; say how near this query comes.")] = None,
    tolerance: Tolerance = Decimal("0.01"),
    scale: Scales = "none",
    seconds: Seconds = 5.0,
    json: Json = False,
    picture: Picture = None,
) -> None:
    """A query whose output is any point you name."""
    from attnlab.design import inputs, solve

    k, v = inputs.read(keys, "keys"), inputs.read(values, "values")
    wanted, given = inputs.numbers(target, "target"), None if query is None else inputs.numbers(query, "query")
    _show(
        solve.reach(k, v, wanted, query=given, tolerance=tolerance, scale=scale, seconds=seconds),
        json,
        picture,
        (k.floats, v.floats),
    )


@design.command
def project(
    *,
    keep: Annotated[str, _text("A basis of the subspace of v_a, one vector a row.")],
    forget: Annotated[str, _text("A basis of the subspace of v_b, one vector a row.")],
    tolerance: Annotated[Decimal, _number("How far any coordinate of M times a basis vector may be off.")] = Decimal(
        "1e-6"
    ),
    json: Json = False,
) -> None:
    """The matrix that extracts v_a from v_a + v_b."""
    from attnlab.design import inputs
    from attnlab.design.projection import project as solve_project

    _show(solve_project(inputs.read(keep, "keep"), inputs.read(forget, "forget"), tolerance=tolerance), json)


@design.command
def layer(
    *,
    tokens: Annotated[str, _text("One input a row.")],
    outputs: Annotated[str, _text("One wanted output a row; a row of nan is free.")],
    weights: Annotated[str | None, _text("The attention weights to use; chosen when left out.")] = None,
    width: Annotated[int | None, _count("Width of the head; the rank of the scores when left out.")] = None,
    tolerance: Tolerance = Decimal("0.01"),
    scale: Scales = "none",
    json: Json = False,
) -> None:
    """W_Q, W_K and W_V of a head whose self-attention gives the outputs you want."""
    from attnlab.design import inputs
    from attnlab.design.layers import layer as solve_layer

    x, y = inputs.read(tokens, "tokens"), inputs.read(outputs, "outputs", free_rows=True)
    given = None if weights is None else inputs.read(weights, "weights")
    _show(solve_layer(x, y, weights=given, width=width, tolerance=tolerance, scale=scale), json)


@design.command
def edit_key(
    *,
    keys: Keys,
    values: Values,
    query: Annotated[str, _text("The query that stays as it is.")],
    index: Annotated[int, _count("The key to change, counted from 0.")],
    target: Annotated[str | None, _text("The output wanted; the key's own value when left out.")] = None,
    norm: Annotated[float | None, Parameter(help="The norm that the new key must have.")] = None,
    tolerance: Tolerance = Decimal("0.01"),
    scale: Scales = "none",
    json: Json = False,
    picture: Picture = None,
) -> None:
    """Change one key so that a fixed query gives the output you want."""
    import numpy as np

    from attnlab.design import inputs
    from attnlab.design.edits import edit_key as solve_edit

    k, v, q = inputs.read(keys, "keys"), inputs.read(values, "values"), inputs.numbers(query, "query")
    wanted = None if target is None else inputs.numbers(target, "target")
    result = solve_edit(k, v, q, index, wanted, norm=norm, tolerance=tolerance, scale=scale)
    edited = np.where(np.arange(len(k.floats))[:, None] == index, result.more["key"], k.floats)
    _show(result, json, picture, (edited, v.floats))


@design.command
def noise(
    *,
    keys: Annotated[str | None, _text("Mean keys, one a row; n orthonormal ones when left out.")] = None,
    values: Annotated[str | None, _text("One value a key; orthonormal ones when left out.")] = None,
    indices: Annotated[str, _text("The two values to average; the norm of the first key varies.")] = "0,1",
    n: Annotated[int, _count("How many keys, when none are given.")] = 10,
    strength: Annotated[float, Parameter(help="The length C of the queries.")] = 10.0,
    alpha: Annotated[float, Parameter(help="Variance of every key in every direction.")] = 1e-6,
    varying: Annotated[float, Parameter(help="Variance of the first key along itself.")] = 0.5,
    samples: Annotated[int, _count("How many draws.")] = 1_000_000,
    robust: Annotated[bool, Parameter(help="Also fit queries to the noise.")] = False,
    heads: Annotated[int, _count("Heads of the robust design.")] = 2,
    seed: Annotated[int, _count("Of the random numbers.")] = 0,
    scale: Scales = "none",
    json: Json = False,
    picture: Picture = None,
) -> None:
    """What noise on the keys does to a blend of two values: one head, two equal heads, two split heads."""
    from attnlab.design import inputs
    from attnlab.design.noisy_keys import noise as simulate_noise

    means = None if keys is None else inputs.read(keys, "keys")
    given = None if values is None else inputs.read(values, "values")
    settings: dict[str, Any] = {"n": n, "strength": strength, "alpha": alpha, "varying": varying, "samples": samples}
    settings |= {"robust": robust, "heads": heads, "seed": seed, "scale": scale}
    _show(simulate_noise(means, given, _indices(indices), **settings), json, picture)


@design.command
def tour(*, step: Annotated[str | None, Parameter(help="One step only, such as A3.")] = None) -> None:
    """Walk through everything the solver does, each step with the command that repeats it."""
    from attnlab.design.tour import walk

    walk(step)


def check(
    sheet: Annotated[Path, Parameter(help="The teacher's TOML file.")],
    answers: Annotated[Path, Parameter(help="The student's TOML file.")],
    *,
    json: Annotated[bool, Parameter(help="Print one JSON object.", negative=())] = False,
) -> None:
    """Mark an answer file: whatever has the property that the sheet asks for passes; exit code 1 when a task fails."""
    from attnlab.design.check import mark

    marks = mark(sheet, answers)
    if json:
        import json as dumper

        print(dumper.dumps(marks.to_dict(), allow_nan=False))
    else:
        from rich.padding import Padding
        from rich.text import Text as Line

        from attnlab.terminal import Terminal

        console = Terminal(highlight=False)
        console.print(Line(marks.title, style="bold"))
        wide = max(len(o.name) for o in marks.outcomes)
        for o in marks.outcomes:
            verdict = Line("passed", style="bold green") if o.passed else Line("failed", style="bold red")
            console.print(
                Line(f"  {o.name:<{wide}}  ") + verdict + Line(f"  {o.points:g} point{'s' * (o.points != 1)}")
            )
            console.print(Padding(Line(o.message, style="dim" if o.passed else ""), (0, 0, 0, wide + 4)))
        for reading in sorted({o.reading for o in marks.outcomes if o.reading}):
            console.print(Line(f"Read: {reading}.", style="dim"))
        console.print(f"{marks.points:g} of {sum(o.points for o in marks.outcomes):g} points")
    if not marks.passed:
        raise SystemExit(1)


def _indices(text: str) -> list[int]:
    from attnlab.design.inputs import shown, whole

    try:
        return [whole(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"indices '{shown(text)}' must be whole numbers with commas, such as 0,1") from None


def _show(result: Result | Noise, as_json: bool, picture: Path | None = None, data: Any = None) -> None:
    written = []
    if picture is not None:
        written = _draw(result, picture, data)
    if as_json:
        print(result.to_json())
        return
    from attnlab.terminal import Terminal

    console = Terminal(highlight=False)
    console.print(result)
    if written:
        console.print("picture: " + ", ".join(str(path) for path in written), style="dim")


def _draw(result: Any, picture: Path, data: Any) -> list[Path]:
    from attnlab.design import pictures
    from attnlab.design.noisy_keys import Noise

    pictures.picture_files(picture)
    figure = pictures.noise_picture(result) if isinstance(result, Noise) else pictures.design_picture(result, *data)
    return pictures.save(figure, picture)
