"""A tour of what attention can and cannot compute, in twelve steps with real numbers.

Every step shows commands and runs exactly those, so that readers get the numbers shown.
"""

from __future__ import annotations

from dataclasses import dataclass

_KEYS = ".47,.65,.60;.64,.50,-.59;-.03,-.48,-.88;.43,-.83,.35"
_VALUES = "-.07,-.88,.47;.37,-.93,-.07;-.25,-.75,.61;.94,.20,.28"
_BOTH = f"--keys '{_KEYS}' --values '{_VALUES}'"
_LINE = "--keys '-1;0;1' --values '1,0,0;0,1,0;0,0,1'"
# x1 = u_d + u_b, x2 = u_a, x3 = u_c + u_b with u_a .. u_d along the axes, of length 4
_TOKENS = "0,4,0,4;4,0,0,0;0,4,4,0"


@dataclass(frozen=True)
class Step:
    """A code, what the step shows, and the commands that show it."""

    code: str
    title: str
    said: str
    commands: tuple[str, ...]


STEPS = (
    Step(
        "A1",
        "Copying one value",
        "Weights are positive and sum to 1. If one key leads all others by a margin m, the others together weigh at most "
        "(n-1)e^-m / (1 + (n-1)e^-m), so the output is nearly that key's value. The solver finds the query of least norm "
        "with the margin that the tolerance needs. A key inside the hull of the others never leads: on the line -1, 0, 1 "
        "the weight of the middle key is at most 1/3.",
        (f"select {_BOTH} --index 0", f"select {_LINE} --index 1"),
    ),
    Step(
        "A2",
        "Copying every value: the identity",
        "Q = S·K works only where every key has its largest product with itself. All that is needed is that every key is a "
        "vertex of the hull.",
        ("select --keys '1,0;2,0.5;2,-0.5' --values '1,0,0;0,1,0;0,0,1'",),
    ),
    Step(
        "A3",
        "The average of two values",
        "Equal scores inside the pair, a margin outside. Any subset and any positive weights work the same way, if the keys "
        "allow it.",
        (
            f"blend {_BOTH} --indices 0,1",
            f"blend {_BOTH} --indices 0,1 --weights .2,.8",
            f"blend {_LINE} --indices 0,2",
        ),
    ),
    Step("A4", "The average of all values", "The query 0 is exact for every set of keys.", (f"average {_BOTH}",)),
    Step(
        "A5",
        "Extracting v_a from v_a + v_b",
        "Orthonormal bases give A Aᵀ. Independent subspaces give an oblique projector, whose norm tells how much it "
        "amplifies noise. Subspaces that intersect give a proof of impossibility.",
        (
            "project --keep '1,0,0,0;0,1,0,0' --forget '0,0,1,0'",
            "project --keep '1,0,0' --forget '1,1,0'",
            "project --keep '1,0,0;0,1,0' --forget '1,1,0'",
        ),
    ),
    Step(
        "A6",
        "Keys with a little noise",
        "A design for the mean keys survives small noise in every direction: the weights move by about C·sqrt(alpha)/2, and "
        "the closed form says so to within the last digit.",
        ("noise --alpha 1e-6 --varying 0 --samples 200000",),
    ),
    Step(
        "A7",
        "One key of varying norm",
        "With Sigma_a = alpha·I + mu_a mu_aᵀ/2 the weight is 1/(1 + exp((1-e)C)) with e ~ N(1, 1/2): the output swings "
        "between the two values.",
        ("noise --samples 200000",),
    ),
    Step(
        "A8",
        "Several heads",
        "Equal heads swing together, which does not help, however many there are. Split heads hold, except where e is near 0 "
        "or below. Queries fitted to the noise do better than both: they push the other keys down instead of pulling the "
        "noisy key up. With both norms varying split heads still hold, and further copies of them change nothing.",
        (
            "noise --samples 200000 --robust 1",
            "noise --samples 200000 --varies 0,1 --heads 4",
        ),
    ),
    Step(
        "A9",
        "Self-attention without weights",
        "Tokens x1 = u_d + u_b, x2 = u_a, x3 = u_c + u_b. Token 2 attends to itself: its query is x2, and its output nearly "
        "u_a. No change of x2 by u_c or u_d gives u_b, because u_b lies outside the hull of the values (at distance "
        "beta/sqrt 2 in the Euclidean norm).",
        (
            f"reach --keys '{_TOKENS}' --values '{_TOKENS}' --target 4,0,0,0 --query 4,0,0,0",
            "reach --keys '0,4,0,4;4,0,4,0;0,4,4,0' --values '0,4,0,4;4,0,4,0;0,4,4,0' --target 0,4,0,0",
            "reach --keys '0,4,0,4;4,0,0,4;0,4,4,0' --values '0,4,0,4;4,0,0,4;0,4,4,0' --target 0,4,0,0",
        ),
    ),
    Step(
        "A10",
        "A layer made to order",
        "Now choose W_Q, W_K, W_V so that row 0 gives u_b - u_c and row 1 gives u_b; row 2 is free. One head of width 1 is "
        "enough. Two equal tokens with different wanted outputs are impossible for every layer.",
        (
            f"layer --tokens '{_TOKENS}' --outputs '0,4,-4,0;0,4,0,0;nan,nan,nan,nan'",
            f"layer --tokens '{_TOKENS}' --outputs '0,4,-4,0;0,4,0,0;nan,nan,nan,nan' --width 1",
            "layer --tokens '1,0;1,0' --outputs '1,0;0,1'",
        ),
    ),
    Step(
        "A11",
        "A fixed query and a new key",
        "Changing key 2 moves the output along the segment from attention without it to v_2. If the key must have norm 1, a "
        "short query reaches only part of that segment.",
        (
            f"edit-key {_BOTH} --query 1,2,3 --index 2",
            f"edit-key {_BOTH} --query 1,2,3 --index 2 --norm 1",
            f"edit-key {_BOTH} --query 40,-30,60 --index 2 --norm 1",
        ),
    ),
    Step(
        "A12",
        "The worked exercise, within 0.05",
        "Select value 0, the identity, the average of all, the average of values 0 and 1. `attnlab check` marks any answer by "
        "its property: the plain mean of k_0 and k_1 fails by 0.186, ten times it passes within 0.003.",
        (f"select {_BOTH} --tolerance 0.05", f"average {_BOTH} --indices 0,1 --tolerance 0.05"),
    ),
)
