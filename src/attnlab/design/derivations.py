"""Derivations that run: steps of words and formulas, each of which is checked before it is shown.

A formula is what is shown and what is checked, so the two cannot differ. An equation holds if sympy reduces the
difference of its sides to zero; an inequality, if the difference is a product of squares, of polynomials without
negative coefficients in variables that are not negative, and of their inverses. That proves it for real variables, wherever
both sides are defined. A step for which neither a proof nor a counterexample is found counts as wrong too. Other steps have
a separate check, such as the exact verifier.
"""

from __future__ import annotations

import html
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import sympy
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from attnlab.errors import AttnlabError

Expression = Any  # of sympy, which has no types
Relation = Literal["=", "<=", "<", ">=", ">"]
_RELATIONS = {"=": "==", "<=": "<=", "<": "<", ">=": ">=", ">": ">"}  # as sympy spells them
_TRIES = 40  # random points at which an unproved formula is tried
_GREEK = ("alpha", "beta", "epsilon", "mu", "omega", "pi", "theta")
_LATEX = {"\\": r"\textbackslash{}", **{c: "\\" + c for c in "_%&#$"}, "^": r"\textasciicircum{}"}
_LATEX |= {"<=": r"$\leq$", ">=": r"$\geq$", "<": "$<$", ">": "$>$", "²": "$^2$", "⁴": "$^4$", "·": r"$\cdot$"}
_LATEX |= {letter: rf"$\{letter}$" for letter in _GREEK}
_POWER = r"(?P<base>\w)\^(?P<power>-?\w*\((?:[^()]|\([^()]*\))*\)|-?\w+)"
_INDEXED = r"(?P<letter>[A-Za-z]+)_(?P<index>\w+)"
_PIECE = re.compile(rf"{_POWER}|{_INDEXED}|(?<![A-Za-z])(?:{'|'.join(_GREEK)})(?![A-Za-z])|<=|>=|.")


class WrongStep(AttnlabError):
    """A step of a derivation is false, or could not be shown."""


@dataclass(frozen=True)
class Formula:
    """An equation or inequality in real symbols. In its check every symbol of `where` is replaced, in the order given; so
    hypotheses enter: R >= r is R = r + t with t not negative.
    """

    left: Expression
    relation: Relation
    right: Expression
    where: tuple[tuple[Expression, Expression], ...] = ()

    def check(self) -> None:
        """Raise WrongStep unless the formula is proved."""
        if self.left == self.right:
            raise WrongStep(f"{self} says nothing: both sides are written the same")
        left, right = (sympy.sympify(side).doit().subs(list(self.where)).doit() for side in (self.left, self.right))
        for symbol in sorted(left.free_symbols | right.free_symbols, key=str):
            if not symbol.is_real:
                raise WrongStep(f"{self}: {symbol} may be complex; declare it with real=True or positive=True")
        if self.relation == "=":
            if left == right:
                return
            entries = list(left - right) if isinstance(left, sympy.MatrixBase) else [left - right]
            if all(any(reduced == 0 for reduced in _reduce(entry)) for entry in entries):
                return
        else:
            sign = _sign(left - right if self.relation in (">", ">=") else right - left)
            if sign == 1 or (sign == 0 and self.relation in (">=", "<=")):
                return
        raise WrongStep(f"{self} is {_counterexample(left, self.relation, right)}")

    def _relations(self) -> tuple[Expression, list[Expression]]:
        """What is claimed, and what is put in for the check, as relations of sympy."""
        claim = sympy.Rel(self.left, self.right, _RELATIONS[self.relation], evaluate=False)
        return claim, [sympy.Eq(symbol, to, evaluate=False) for symbol, to in self.where]

    def latex(self) -> str:
        """The formula in LaTeX, without dollar signs."""
        claim, where = self._relations()
        conditions = r",\; ".join(map(sympy.latex, where))
        return sympy.latex(claim) + (rf"\qquad ({conditions})" if where else "")

    def pretty(self) -> str:
        """The formula for a terminal, on several lines where it has fractions."""
        claim, where = self._relations()
        drawn, *conditions = (sympy.pretty(part, use_unicode=True, wrap_line=False) for part in (claim, *where))
        return "\n".join([drawn, *("with" + ("\n" if "\n" in text else " ") + text for text in conditions)])

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"


@dataclass(frozen=True)
class Step:
    """A statement in words, its formulas, the reason for it and, where formulas are not enough, a further check, which
    returns what it has established and raises an exception if the step is wrong.
    """

    statement: str
    formulas: tuple[Formula, ...] = ()
    reason: str = ""
    check: Callable[[], str] | None = None

    def verify(self, where: str) -> str:
        """Check the step and return how that was done; raise WrongStep if it does not hold."""
        if not self.formulas and self.check is None:
            raise WrongStep(f"{where} has nothing to check; give it a formula or a check")
        try:
            for formula in self.formulas:
                formula.check()
            finding = self.check() if self.check is not None else ""
        except Exception as error:
            raise WrongStep(f"{where} does not hold: {error}") from error
        return "; ".join(part for part in ("checked by algebra" if self.formulas else "", finding) if part)


@dataclass(frozen=True)
class Derivation:
    """A claim and the steps that prove it; nothing is shown until every step has been checked."""

    name: str
    title: str
    claim: str
    steps: tuple[Step, ...]

    @cached_property
    def checks(self) -> tuple[str, ...]:
        """How each step was checked; raises WrongStep at the first that does not hold."""
        return tuple(step.verify(f"{self.name}, step {number}") for number, step in enumerate(self.steps, start=1))

    def check(self) -> Derivation:
        """The derivation itself, with every step checked."""
        assert len(self.checks) == len(self.steps)
        return self

    def _explained(self) -> list[tuple[Step, str]]:
        """Every step with the reason for it and how it was checked, as a sentence."""
        reasons = [
            f"{step.reason} ({check})." if step.reason else f"{check[0].upper()}{check[1:]}."
            for step, check in zip(self.steps, self.checks, strict=True)
        ]
        return list(zip(self.steps, reasons, strict=True))

    def to_json(self) -> str:
        """One object, as `--json` prints it."""
        steps = [
            {
                "statement": step.statement,
                "formulas": [str(f) for f in step.formulas],
                "latex": [f.latex() for f in step.formulas],
                "drawn": [f.pretty() for f in step.formulas],
                "reason": step.reason,
                "checked": check,
            }
            for step, check in zip(self.steps, self.checks, strict=True)
        ]
        return json.dumps({"name": self.name, "title": self.title, "claim": self.claim, "steps": steps})

    def to_latex(self) -> str:
        """A fragment for a report."""
        lines = [
            rf"\paragraph{{{_words(self.title)}{'' if self.title.endswith('?') else '.'}}} {_words(self.claim)}",
            r"\begin{enumerate}",
        ]
        for step, reason in self._explained():
            lines.append(rf"\item {_words(step.statement)}")
            lines += [rf"\[ {formula.latex()} \]" for formula in step.formulas]
            lines.append(rf"\emph{{{_words(reason)}}}")
        return "\n".join([*lines, r"\end{enumerate}"])

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [Text(self.title, style="bold"), Text(self.claim)]
        for number, (step, reason) in enumerate(self._explained(), start=1):
            parts += [Text(), Text(f"{number}. {step.statement}")]
            formulas = "\n\n".join(formula.pretty() for formula in step.formulas)
            if formulas:
                parts.append(Padding(Text(formulas, no_wrap=True), (0, 0, 0, 4)))
            parts.append(Padding(Text(reason, style="dim"), (0, 0, 0, 3)))
        return Group(*parts)

    def _repr_html_(self) -> str:
        items = []
        for step, reason in self._explained():
            formulas = "".join(f"<p>$\\displaystyle {html.escape(f.latex())}$</p>" for f in step.formulas)
            items.append(f"<li>{html.escape(step.statement)}{formulas}<p><small>{html.escape(reason)}</small></p></li>")
        head = f"<b>{html.escape(self.title)}</b><p>{html.escape(self.claim)}</p>"
        return f"<div>{head}<ol>{''.join(items)}</ol></div>"


Derivations = dict[str, Callable[[], Derivation]]


def add_to(all_of_them: Derivations, title: str, claim: str) -> Callable[[Callable[[], Iterator[Step]]], None]:
    """Add the derivation with the steps that a function yields, under the name of the function."""

    def add(steps: Callable[[], Iterator[Step]]) -> None:
        name = steps.__name__.strip("_").replace("_", "-")
        all_of_them[name] = lambda: Derivation(name, title, claim, tuple(steps()))

    return add


def step(statement: str, reason: str, *formulas: Formula, check: Callable[[], str] | None = None) -> Step:
    """A step with its formulas last."""
    return Step(statement, formulas, reason, check)


def product(*factors: Any, gives: Any) -> Formula:
    """The formula for a product of matrices; a list is a column."""
    result = sympy.Matrix(gives) if isinstance(gives, list) else gives
    return Formula(sympy.MatMul(*factors, evaluate=False), "=", result)


def _words(text: str) -> str:
    """Words for LaTeX, with powers and indices as formulas."""

    def inside(part: str) -> str:
        return _words(part).replace("$", " ").strip()

    def translate(piece: re.Match[str]) -> str:
        if piece["base"]:
            power = piece["power"]
            return f"${piece['base']}^{{{inside(power[1:-1] if power[0] == '(' else power)}}}$"
        if piece["letter"]:
            return f"${inside(piece['letter'])}_{{{inside(piece['index'])}}}$"
        return _LATEX.get(piece[0], piece[0])

    return _PIECE.sub(translate, text).replace("$$", " ")


def _reduce(difference: Expression) -> Any:
    """The difference of two sides, simplified in ways of growing cost."""
    yield sympy.expand(difference)
    yield sympy.factor(sympy.powsimp(sympy.expand(sympy.together(difference))))
    yield sympy.simplify(difference)
    yield sympy.simplify(sympy.expand_log(difference).rewrite(sympy.exp))


def _sign(difference: Expression) -> int | None:
    """1 if proved positive, 0 if proved not negative, else None."""
    expanded = sympy.expand(sympy.together(difference), power_exp=True, mul=False)
    bases: dict[Expression, Expression] = {}

    def plain(power: Expression) -> Expression:
        """e^(c·x) as y^c for real x, where y = 1 + u for x that is not negative."""
        count, x = power.args[0].as_coeff_Mul()
        if not (x.is_real and count.is_real):
            return power
        if x not in bases:
            sure = {"positive": True} if x.is_positive else {"nonnegative": True}
            bases[x] = 1 + sympy.Dummy(**sure) if x.is_nonnegative else sympy.Dummy(positive=True)
        return bases[x] ** count

    algebraic = sympy.factor(sympy.together(expanded.replace(lambda x: isinstance(x, sympy.exp), plain)))
    if algebraic == 0:
        return 0
    product, surely = 1, True
    for part in sympy.Mul.make_args(algebraic):
        known = _sign_of_factor(part)
        if known is None:
            return None
        product *= known[0]
        surely &= not known[1]
    return None if product < 0 else int(surely)


def _sign_of_factor(part: Expression) -> tuple[int, bool] | None:
    """The sign of one factor, and whether it may be zero; None if the sign is unknown."""
    base, power = part.as_base_exp()
    if power.is_even and base.is_extended_real:
        known = _sign_of_factor(base) if base != part else None
        return (1, not power.is_negative and (known is None or known[1]))
    if part.is_positive or part.is_negative:
        return (1 if part.is_positive else -1, False)
    if power.is_odd and base != part:
        return _sign_of_factor(base)
    symbols = sorted(part.free_symbols, key=str)
    if not symbols or not part.is_polynomial(*symbols) or not all(x.is_nonnegative for x in symbols):
        return None
    terms = sympy.Poly(part, *symbols).terms()
    sign = 1 if terms[0][1] > 0 else -1
    if not all(sign * coefficient > 0 for _, coefficient in terms):
        return None
    strict = any(all(x.is_positive for x, k in zip(symbols, powers, strict=True) if k) for powers, _ in terms)
    return sign, not strict


def _counterexample(left: Expression, relation: Relation, right: Expression) -> str:
    """A sentence about a point at which the relation fails, or that there is no proof."""
    rng = random.Random(0)
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    for _ in range(_TRIES):
        point = {symbol: _value(symbol, rng) for symbol in symbols}
        try:
            x, y = (float(side.subs(point)) for side in (left, right))
        except TypeError:
            continue
        rounding = 1e-9 * (1 + abs(x) + abs(y))
        violation = {"=": abs(x - y), "<": x - y, ">": y - x}[relation[0]]
        if violation > rounding or (relation in "<>" and x == y):
            where = ", ".join(f"{symbol} = {value}" for symbol, value in point.items())
            return f"false{' at ' + where if where else ''}: {x:.6g} {relation} {y:.6g} does not hold"
    return "not shown by the rules; split the step, or give it a separate check"


def _value(symbol: Expression, rng: random.Random) -> Expression:
    """A random value that the assumptions on a symbol allow."""
    if symbol.is_integer:
        return sympy.Integer(rng.randint(2, 6))
    low = 1 if symbol.is_positive else 0 if symbol.is_nonnegative else -12
    return sympy.Rational(rng.randint(low, 12), 4)
