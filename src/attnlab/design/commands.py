"""The command line of the solver: `design` with its sub-commands, and `check`. Arguments in, one result out; no mathematics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from attnlab.errors import UserError

if TYPE_CHECKING:
    from attnlab.design.noise import Noise
    from attnlab.design.results import Result

design = App(
    name="design",
    help="Solve attention backwards: a query or matrices for the output you want, with a bound, or a proof that there are none.",
    default_parameter=Parameter(name_transform=lambda name: name.replace("_", "-"), negative=()),
)

Text = Annotated[str, Parameter(allow_leading_hyphen=True)]
Maybe = Annotated[str | None, Parameter(allow_leading_hyphen=True)]
Scales = Literal["none", "sqrt"]


@design.command
def select(
    *,
    keys: Text,
    values: Text,
    index: int | None = None,
    tolerance: float = 0.01,
    scale: Scales = "none",
    json: bool = False,
    picture: Path | None = None,
) -> None:
    """A query that copies one value; without --index, one query for every value.

    Parameters
    ----------
    keys: One key a row: a CSV, NPY or JSON file, or written out as '1,0;0,1'.
    values: One value a row, as many as keys.
    index: Which value, counted from 0.
    tolerance: How far any coordinate of the output may be off.
    scale: 'sqrt' divides scores by the square root of the width of a key.
    json: Print one JSON object.
    picture: Write a picture as PNG and SVG.
    """
    from attnlab.design import inputs, solve

    k, v = inputs.read(keys, "keys"), inputs.read(values, "values")
    _show(solve.select(k, v, index, tolerance=tolerance, scale=scale), json, picture, (k, v))


@design.command
def blend(
    *,
    keys: Text,
    values: Text,
    indices: Maybe = None,
    weights: Maybe = None,
    tolerance: float = 0.01,
    scale: Scales = "none",
    json: bool = False,
    picture: Path | None = None,
) -> None:
    """A query that mixes some values with given weights and ignores the others.

    Parameters
    ----------
    keys: One key a row: a CSV, NPY or JSON file, or written out as '1,0;0,1'.
    values: One value a row, as many as keys.
    indices: Which values, such as 0,1; all when left out.
    weights: Their weights, such as .3,.7; equal when left out.
    tolerance: How far any coordinate of the output may be off.
    scale: 'sqrt' divides scores by the square root of the width of a key.
    json: Print one JSON object.
    picture: Write a picture as PNG and SVG.
    """
    from attnlab.design import inputs, solve

    k, v = inputs.read(keys, "keys"), inputs.read(values, "values")
    chosen = None if indices is None else _whole(indices)
    shares = None if weights is None else inputs.numbers(weights, "weights")
    _show(solve.blend(k, v, chosen, shares, tolerance=tolerance, scale=scale), json, picture, (k, v))


@design.command
def average(
    *,
    keys: Text,
    values: Text,
    indices: Maybe = None,
    tolerance: float = 0.01,
    scale: Scales = "none",
    json: bool = False,
    picture: Path | None = None,
) -> None:
    """A query for the plain average of some values, or of all: `blend` with equal weights.

    Parameters
    ----------
    keys: One key a row: a CSV, NPY or JSON file, or written out as '1,0;0,1'.
    values: One value a row, as many as keys.
    indices: Which values, such as 0,1; all when left out.
    tolerance: How far any coordinate of the output may be off.
    scale: 'sqrt' divides scores by the square root of the width of a key.
    json: Print one JSON object.
    picture: Write a picture as PNG and SVG.
    """
    blend(keys=keys, values=values, indices=indices, tolerance=tolerance, scale=scale, json=json, picture=picture)


@design.command
def reach(
    *,
    keys: Text,
    values: Text,
    target: Text,
    query: Maybe = None,
    tolerance: float = 0.01,
    scale: Scales = "none",
    json: bool = False,
    picture: Path | None = None,
) -> None:
    """A query whose output is any point you name.

    Parameters
    ----------
    keys: One key a row: a CSV, NPY or JSON file, or written out as '1,0;0,1'.
    values: One value a row, as many as keys.
    target: The output wanted, such as 1,0,0.
    query: Do not search; say how near this query comes.
    tolerance: How far any coordinate of the output may be off.
    scale: 'sqrt' divides scores by the square root of the width of a key.
    json: Print one JSON object.
    picture: Write a picture as PNG and SVG.
    """
    from attnlab.design import inputs, solve

    k, v = inputs.read(keys, "keys"), inputs.read(values, "values")
    wanted, given = inputs.numbers(target, "target"), None if query is None else inputs.numbers(query, "query")
    _show(solve.reach(k, v, wanted, query=given, tolerance=tolerance, scale=scale), json, picture, (k, v))


@design.command
def project(*, keep: Text, forget: Text, json: bool = False) -> None:
    """The matrix that extracts v_a from v_a + v_b.

    Parameters
    ----------
    keep: A basis of the subspace of v_a, one vector a row.
    forget: A basis of the subspace of v_b, one vector a row.
    json: Print one JSON object.
    """
    from attnlab.design import inputs
    from attnlab.design.project import project as solve_project

    _show(solve_project(inputs.read(keep, "keep"), inputs.read(forget, "forget")), json)


@design.command
def layer(
    *,
    tokens: Text,
    outputs: Text,
    weights: Maybe = None,
    width: int | None = None,
    tolerance: float = 0.01,
    scale: Scales = "none",
    json: bool = False,
) -> None:
    """W_Q, W_K and W_V of a head whose self-attention gives the outputs you want.

    Parameters
    ----------
    tokens: One input a row.
    outputs: One wanted output a row; a row of nan is free.
    weights: The attention weights to use; chosen when left out.
    width: The width of the head; the rank of the scores when left out.
    tolerance: How far any coordinate of an output may be off.
    scale: 'sqrt' divides scores by the square root of the width of the head.
    json: Print one JSON object.
    """
    from attnlab.design import inputs
    from attnlab.design.layer import layer as solve_layer

    x, y = inputs.read(tokens, "tokens"), inputs.read(outputs, "outputs", free_rows=True)
    given = None if weights is None else inputs.read(weights, "weights")
    _show(solve_layer(x, y, weights=given, width=width, tolerance=tolerance, scale=scale), json)


@design.command
def edit_key(
    *,
    keys: Text,
    values: Text,
    query: Text,
    index: int,
    target: Maybe = None,
    norm: float | None = None,
    tolerance: float = 0.01,
    scale: Scales = "none",
    json: bool = False,
    picture: Path | None = None,
) -> None:
    """Change one key so that a fixed query gives the output you want.

    Parameters
    ----------
    keys: One key a row: a CSV, NPY or JSON file, or written out as '1,0;0,1'.
    values: One value a row, as many as keys.
    query: The query that stays as it is.
    index: The key to change, counted from 0.
    target: The output wanted; the key's own value when left out.
    norm: The norm that the new key must have.
    tolerance: How far any coordinate of the output may be off.
    scale: 'sqrt' divides scores by the square root of the width of a key.
    json: Print one JSON object.
    picture: Write a picture as PNG and SVG.
    """
    import numpy as np

    from attnlab.design import inputs
    from attnlab.design.edit_key import edit_key as solve_edit

    k, v, q = inputs.read(keys, "keys"), inputs.read(values, "values"), inputs.numbers(query, "query")
    wanted = None if target is None else inputs.numbers(target, "target")
    result = solve_edit(k, v, q, index, wanted, norm=norm, tolerance=tolerance, scale=scale)
    edited = np.where(np.arange(len(k))[:, None] == index, result.more["key"], k)
    _show(result, json, picture, (edited, v))


@design.command
def noise(
    *,
    keys: Maybe = None,
    values: Maybe = None,
    indices: Text = "0,1",
    n: int = 10,
    strength: float = 10.0,
    alpha: float = 1e-6,
    varying: float = 0.5,
    samples: int = 1_000_000,
    robust: bool = False,
    heads: int = 2,
    seed: int = 0,
    scale: Scales = "none",
    json: bool = False,
    picture: Path | None = None,
) -> None:
    """What noise on the keys does to a blend of two values: one head, two equal heads, two split heads.

    Parameters
    ----------
    keys: Mean keys, one a row; n orthonormal ones when left out.
    values: One value a key; orthonormal when left out.
    indices: The two values to average; the norm of the first key varies.
    n: How many keys, when none are given.
    strength: The length C of the queries.
    alpha: Variance of every key in every direction.
    varying: Variance of the first key along itself.
    samples: How many draws.
    robust: Also fit queries to the noise.
    heads: Heads of the robust design.
    seed: Of the random numbers.
    scale: 'sqrt' divides scores by the square root of the width of a key.
    json: Print one JSON object.
    picture: Write a picture as PNG and SVG.
    """
    from attnlab.design import inputs
    from attnlab.design.noise import noise as simulate_noise

    means = None if keys is None else inputs.read(keys, "keys")
    given = None if values is None else inputs.read(values, "values")
    found = simulate_noise(
        means,
        given,
        _whole(indices),
        n=n,
        strength=strength,
        alpha=alpha,
        varying=varying,
        samples=samples,
        robust=robust,
        heads=heads,
        seed=seed,
        scale=scale,
    )
    _show(found, json, picture)


@design.command
def tour(*, step: str | None = None) -> None:
    """Walk through everything the solver does, each step with the command that repeats it.

    Parameters
    ----------
    step: One step only, such as A3.
    """
    from attnlab.design.tour import walk

    walk(step)


def check(sheet: Path, answers: Path, *, json: bool = False) -> None:
    """Mark an answer file: whatever has the property that the sheet asks for passes. Exit code 1 when a task fails.

    Parameters
    ----------
    sheet: The teacher's TOML file.
    answers: The student's TOML file.
    json: Print one JSON object.
    """
    from attnlab.design.check import mark

    marks = mark(sheet, answers)
    if json:
        import json as dumper

        print(dumper.dumps(marks.to_dict(), allow_nan=False))
    else:
        from rich.console import Console
        from rich.padding import Padding
        from rich.text import Text as Line

        console = Console(highlight=False)
        console.print(Line(marks.title, style="bold"))
        wide = max(len(o.name) for o in marks.outcomes)
        for o in marks.outcomes:
            verdict = Line("passed", style="bold green") if o.passed else Line("failed", style="bold red")
            console.print(
                Line(f"  {o.name:<{wide}}  ") + verdict + Line(f"  {o.points:g} point{'s' * (o.points != 1)}")
            )
            console.print(Padding(Line(o.message, style="dim" if o.passed else ""), (0, 0, 0, wide + 4)))
        console.print(f"{marks.points:g} of {sum(o.points for o in marks.outcomes):g} points")
    if not marks.passed:
        raise SystemExit(1)


def _whole(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"indices '{text}' must be whole numbers with commas, such as 0,1") from None


def _show(result: Result | Noise, as_json: bool, picture: Path | None = None, data: Any = None) -> None:
    written = []
    if picture is not None:
        written = _draw(result, picture, data)
    if as_json:
        print(result.to_json())
        return
    from rich.console import Console

    console = Console(highlight=False)
    console.print(result)
    if written:
        console.print("picture: " + ", ".join(str(path) for path in written), style="dim")


def _draw(result: Any, picture: Path, data: Any) -> list[Path]:
    from attnlab.design import pictures
    from attnlab.design.noise import Noise
    from attnlab.errors import StorageError

    figure = pictures.noise_picture(result) if isinstance(result, Noise) else pictures.design_picture(result, *data)
    try:
        return pictures.save(figure, picture)
    except OSError as error:
        raise StorageError(
            f"the picture {picture} cannot be written ({error.strerror}); choose another place"
        ) from None
