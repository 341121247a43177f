import json
import re
from dataclasses import replace

import pytest
import sympy as sp
from matplotlib.mathtext import MathTextParser

from attnlab.design import Derivation, Formula, Step, derive
from attnlab.design.derivations import WrongStep
from attnlab.design.theorems import DERIVATIONS
from attnlab.errors import UserError

X, Y = sp.symbols("x y", positive=True)
T = sp.Symbol("t", nonnegative=True)
Z = sp.Symbol("z", real=True)
C = sp.Symbol("c")
N = sp.Symbol("n", integer=True)
FLIPPED = {"<=": ">", "<": ">=", ">=": "<", ">": "<="}


@pytest.fixture(scope="module", params=DERIVATIONS)
def derivation(request):
    return derive(request.param)


def test_every_step_is_checked_and_shown(derivation):
    assert len(derivation.checks) == len(derivation.steps) >= 6
    latex = derivation.to_latex()
    assert latex.count(r"\item") == len(derivation.steps)
    assert "$$" not in latex
    for formula in re.findall(r"(?<!\\)\$([^$]*)\$", latex):  # those between words
        MathTextParser("path").parse(f"${formula}$")
    words = re.sub(r"(?<!\\)\$[^$]*\$|\\\[.*?\\\]", "", latex)
    assert not re.search(r"\\_|\^|textasciicircum|beta|epsilon|omega|theta", words)
    assert derivation._repr_html_().count("<li>") == len(json.loads(derivation.to_json())["steps"])
    wide = [f for s in derivation.steps for f in s.formulas if max(map(len, f.pretty().split("\n"))) > 75]
    assert not wide  # a terminal of 80 columns would cut it


def test_every_formula_can_be_wrong(derivation):
    """An equation with a side changed, or an inequality turned round, is refused: no check passes everything."""
    for step in derivation.steps:
        for formula in step.formulas:
            if formula.relation == "=":
                seventh = sp.Rational(1, 7)
                right = sp.sympify(formula.right)
                wrong = right + seventh * sp.ones(*right.shape) if hasattr(right, "shape") else right + seventh
                changed = replace(formula, right=wrong)
            else:
                changed = replace(formula, relation=FLIPPED[formula.relation])
            with pytest.raises(WrongStep):
                changed.check()


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        (Formula((X + Y) ** 2, "=", X**2 + Y**2), "false at x ="),
        (Formula(X / (1 + X), "<=", Y / (1 + Y)), "false at x ="),
        (Formula(sp.exp(-T), "<", 1), "false at t = 0"),
        (Formula(sp.sin(Z) ** 2, "<=", 1), "not shown by the rules"),
        (Formula(X, "=", X), "says nothing"),
        (Formula(sp.Limit(1 / (1 + sp.exp(X * Y)), X, sp.oo), "=", 1), "false"),
        (Formula(sp.Matrix([X, Y]), "=", sp.Matrix([X, X])), "x"),
        (Formula(sp.log(Z**2), "=", 2 * sp.log(Z)), "not shown by the rules"),
        (Formula(sp.log(Z * (Z - 1)), "=", sp.log(Z) + sp.log(Z - 1)), "not shown by the rules"),
        (Formula(C**2, ">=", 0), "c may be complex; declare it"),
        (Formula(sp.exp(C), ">", 0), "c may be complex; declare it"),
        (Formula(sp.log(Z) ** 2, ">=", 0), "false at z = -1"),
        (Formula(sp.exp(sp.sqrt(Z)), ">", 0), "not shown by the rules"),  # -1 at z = -pi²
        (Formula(Z ** (2 * N), ">", 0), "false at n = 5, z = 0"),
        (Formula(-((-(Z**2) - 1) ** N), ">", 0), "false at n ="),
    ],
)
def test_a_wrong_step_is_caught_and_nothing_is_shown(formula, words):
    steps = (Step("right", (Formula((X - Y) ** 2, ">=", 0),)), Step("wrong", (formula,)))
    wrong = Derivation("mine", "Mine", "A claim.", steps)
    for show in (wrong.check, wrong.to_latex, wrong.to_json, wrong.__rich__, wrong._repr_html_):
        with pytest.raises(WrongStep, match="mine, step 2 does not hold: .*" + words):
            show()


def test_a_check_of_its_own_must_pass_and_a_step_must_have_one():
    def fails():
        raise ValueError("3 is not 4")

    with pytest.raises(WrongStep, match="3 is not 4"):
        Derivation("mine", "", "", (Step("wrong", check=fails),)).check()
    with pytest.raises(WrongStep, match="nothing to check"):
        Derivation("mine", "", "", (Step("trust me"),)).check()


def test_an_unknown_name_is_a_mistake():
    with pytest.raises(UserError, match="did you mean copying"):
        derive("coping")


def test_what_the_numeric_checks_found():
    found = " ".join(check for name in ("permutation", "sinusoidal") for check in derive(name).checks)
    assert "follow in 24 of the 24 orders" in found
    assert "follow in 1 of the 24 orders" in found
    assert "positions 710 apart are closest, at 6.0e-05" in found
