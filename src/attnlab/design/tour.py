"""A walk through what attention can and cannot compute, in twelve steps with real numbers.

Every step shows commands and runs exactly them, so that the numbers are the ones a reader gets.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from attnlab.design.commands import design
from attnlab.errors import UserError, unknown

_KEYS = ".47,.65,.60;.64,.50,-.59;-.03,-.48,-.88;.43,-.83,.35"
_VALUES = "-.07,-.88,.47;.37,-.93,-.07;-.25,-.75,.61;.94,.20,.28"
_BOTH = f"--keys '{_KEYS}' --values '{_VALUES}'"
_LINE = "--keys '-1;0;1' --values '1,0,0;0,1,0;0,0,1'"
# x1 = u_d + u_b, x2 = u_a, x3 = u_c + u_b with u_a .. u_d along the axes, of length 4
_TOKENS = "0,4,0,4;4,0,0,0;0,4,4,0"


@dataclass(frozen=True)
class _Step:
    """A code, what it shows, and the commands that show it."""

    code: str
    title: str
    said: str
    commands: tuple[str, ...]


STEPS = (
    _Step(
        "A1",
        "Copying one value",
        "Weights are positive and sum to 1. When one key leads all others by a margin m, the others together "
        "weigh at most "
        "(n-1)e^-m / (1 + (n-1)e^-m), so the output is nearly that key's value. The solver finds the least query "
        "with the margin that the "
        "tolerance needs. A key inside the hull of the others never leads: on the line -1, 0, 1 the middle "
        "weight is at most 1/2, and less.",
        (f"select {_BOTH} --index 0", f"select {_LINE} --index 1"),
    ),
    _Step(
        "A2",
        "Copying every value: the identity",
        "Q = S·K does it only where every key has its largest product with itself. All that is needed is that "
        "every key is a vertex of the hull.",
        ("select --keys '1,0;2,0.5;2,-0.5' --values '1,0,0;0,1,0;0,0,1'",),
    ),
    _Step(
        "A3",
        "The average of two values",
        "Equal scores inside the pair, a margin outside. Any subset and any positive weights work the same way, "
        "when the keys allow it.",
        (
            f"blend {_BOTH} --indices 0,1",
            f"blend {_BOTH} --indices 0,1 --weights .2,.8",
            f"blend {_LINE} --indices 0,2",
        ),
    ),
    _Step("A4", "The average of all values", "The query 0 is exact for every set of keys.", (f"average {_BOTH}",)),
    _Step(
        "A5",
        "Extracting v_a from v_a + v_b",
        "Orthonormal bases give A Aᵀ. Independent subspaces give an oblique projector, whose norm tells how much "
        "it amplifies noise. Subspaces that meet give a proof.",
        (
            "project --keep '1,0,0,0;0,1,0,0' --forget '0,0,1,0'",
            "project --keep '1,0,0' --forget '1,1,0'",
            "project --keep '1,0,0;0,1,0' --forget '1,1,0'",
        ),
    ),
    _Step(
        "A6",
        "Keys with a little noise",
        "A design on the means survives small noise in every direction.",
        ("noise --alpha 1e-6 --varying 0 --samples 200000",),
    ),
    _Step(
        "A7",
        "One key of varying norm",
        "With Sigma_a = alpha·I + mu_a mu_aᵀ/2 the weight is 1/(1 + exp((1-e)C)) with e ~ N(1, 1/2): the output "
        "swings between the two values.",
        ("noise --samples 200000",),
    ),
    _Step(
        "A8",
        "Two heads",
        "Equal heads swing together and help nothing. Split heads hold, except when e falls below 0 or nearly "
        "so. Queries fitted to the noise do "
        "better than both: they push the other keys down instead of pulling the noisy key up.",
        ("noise --samples 200000 --robust --heads 1",),
    ),
    _Step(
        "A9",
        "Self-attention without weights",
        "Tokens x1 = u_d + u_b, x2 = u_a, x3 = u_c + u_b. Token 2 attends to itself: its query is x2, and its "
        "output nearly u_a. No change "
        "of x2 by u_c or u_d makes u_b, because u_b lies outside the hull of the values (distance beta/sqrt 2 in "
        "the Euclidean norm).",
        (
            f"reach --keys '{_TOKENS}' --values '{_TOKENS}' --target 4,0,0,0 --query 4,0,0,0",
            "reach --keys '0,4,0,4;4,0,4,0;0,4,4,0' --values '0,4,0,4;4,0,4,0;0,4,4,0' --target 0,4,0,0",
            "reach --keys '0,4,0,4;4,0,0,4;0,4,4,0' --values '0,4,0,4;4,0,0,4;0,4,4,0' --target 0,4,0,0",
        ),
    ),
    _Step(
        "A10",
        "A layer made to order",
        "Now choose W_Q, W_K, W_V so that row 0 gives u_b - u_c and row 1 gives u_b; row 2 is free. One head of "
        "width 1 is enough. Two equal tokens "
        "with different wanted outputs are impossible for every layer.",
        (
            f"layer --tokens '{_TOKENS}' --outputs '0,4,-4,0;0,4,0,0;nan,nan,nan,nan'",
            f"layer --tokens '{_TOKENS}' --outputs '0,4,-4,0;0,4,0,0;nan,nan,nan,nan' --width 1",
            "layer --tokens '1,0;1,0' --outputs '1,0;0,1'",
        ),
    ),
    _Step(
        "A11",
        "The query stays, a key changes",
        "Changing key 2 moves the output only along the segment from attention without it to v_2. With norm 1 "
        "the reach of a weak query is limited.",
        (
            f"edit-key {_BOTH} --query 1,2,3 --index 2",
            f"edit-key {_BOTH} --query 1,2,3 --index 2 --norm 1",
            f"edit-key {_BOTH} --query 40,-30,60 --index 2 --norm 1",
        ),
    ),
    _Step(
        "A12",
        "The worked exercise, within 0.05",
        "Select value 0, the identity, the average of all, the average of values 0 and 1. `attnlab check` marks "
        "any answer by its property: the plain mean "
        "of k_0 and k_1 fails by 0.186, ten times it passes within 0.003.",
        (f"select {_BOTH} --tolerance 0.05", f"average {_BOTH} --indices 0,1 --tolerance 0.05"),
    ),
)


def steps(code: str | None) -> Iterator[_Step]:
    """All steps, or the one asked for."""
    if code is None:
        yield from STEPS
        return
    found = [step for step in STEPS if step.code.lower() == code.lower()]
    if not found:
        raise UserError(unknown("step", code, [step.code for step in STEPS]))
    yield from found


def walk(code: str | None = None) -> None:
    """Print the steps and what their commands print."""
    from rich.console import Console
    from rich.rule import Rule
    from rich.text import Text

    console = Console(highlight=False)
    for step in steps(code):
        console.print(Rule(Text(f"{step.code}  {step.title}", style="bold"), align="left"))
        console.print(Text(step.said))
        for command in step.commands:
            console.print()
            console.print(Text(f"$ attnlab design {command}", style="cyan"), soft_wrap=True)
            design(shlex.split(command), exit_on_error=False, print_error=False, result_action="return_value")
        console.print()
