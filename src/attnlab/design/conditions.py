"""For which queries does key j get a weight of at least w? The exact condition, linear conditions around it, and verdicts on
linear conditions that others propose.

With d_i = scale·(k_j - k_i)·q, a_j >= w if and only if the log-sum-exp of the -d_i is at most -ln(w/(1-w)): a convex
set of queries. For n - 1 other keys, d_i >= ln(w/(1-w)) + ln(n-1) for all i is sufficient, and d_i >= ln(w/(1-w)) for all i
is necessary. For w above 1/2 there is such a query if and only if k_j is not a convex combination of the other keys.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from attnlab.design import inputs
from attnlab.design.attention import Problem, Scale
from attnlab.design.exact import Matrix, Program, Rows, dot, minimise, rational, read_as, solve
from attnlab.design.inputs import Data, Real
from attnlab.design.results import Status, at_least, at_most, html_table, number, rich_facts, vector
from attnlab.errors import UserError

Vector = list[Fraction]
_MOST_CORNERS = 20_000  # systems of equations solved to find the corners of a condition
_LONGEST = 1000  # doublings of a query before it is given up


@dataclass(frozen=True)
class Selection:
    """The queries that give key `index` a weight of at least `weight`, above 1/2."""

    keys: Rows
    index: int
    weight: Fraction
    scale: Scale = "none"

    @property
    def factor(self) -> float:
        """The scale as a number."""
        return self._problem.factor

    @property
    def margin(self) -> float:
        """The necessary margin ln(w/(1-w))."""
        return math.log(self.weight / (1 - self.weight))

    @property
    def enough(self) -> float:
        """The sufficient margin."""
        return self.margin + math.log(max(len(self.differences), 1))

    @cached_property
    def others(self) -> list[int]:
        """The indices of the other keys."""
        return [i for i in range(len(self.keys.floats)) if i != self.index]

    @cached_property
    def differences(self) -> Matrix:
        """k_j - k_i for every other key: the rows of the linear conditions, up to the scale."""
        own = self.keys.exact[self.index]
        return [[x - y for x, y in zip(own, self.keys.exact[i], strict=True)] for i in self.others]

    @cached_property
    def _problem(self) -> Problem:
        """The weight of the key as the output of attention."""
        n = len(self.keys.floats)
        values = inputs.matrix([[int(i == self.index)] for i in range(n)], "values")
        return Problem(self.keys, values, inputs.matrix([[1]], "target"), 1 - self.weight, self.scale)

    def holds(self, query: Sequence[Fraction]) -> bool:
        """Whether this query gives the key the weight, in exact arithmetic."""
        return self._problem.judge(query).within

    def weight_of(self, query: Sequence[Fraction]) -> float:
        """The weight that this query gives the key."""
        return 1 - float(abs(self._problem.judge(query).off[0]))

    def margins(self, query: Sequence[Fraction]) -> list[float]:
        """The lead d_i over every other key."""
        return [self.factor * float(dot(row, list(query))) for row in self.differences]

    @cached_property
    def _ahead(self) -> Program:
        """The program for a query that puts the key ahead of every other by at least 1 before scaling."""
        return minimise([Fraction(0)] * len(self.keys.exact[0]), self.differences, [Fraction(1)] * len(self.others))

    @property
    def direction(self) -> Vector | None:
        """A query whose score for the key exceeds every other by at least 1 before scaling; None if there is none."""
        return self._ahead.x

    @cached_property
    def combination(self) -> dict[int, Fraction] | None:
        """The key as a convex combination of others, which no query can select; None if it is not one."""
        if self.direction is not None:
            return None
        multipliers = self._ahead.multipliers
        return {i: y / sum(multipliers) for i, y in zip(self.others, multipliers, strict=True) if y}

    @cached_property
    def query(self) -> Vector | None:
        """A query that gives the key the weight; None if there is none."""
        return (
            None if self.direction is None else self._longer([Fraction(0)] * len(self.direction), self.direction, True)
        )

    def _longer(self, start: Vector, ray: Vector, wanted: bool) -> Vector:
        """start + t·ray with t a power of two at which the weight is reached, or missed."""
        for doublings in range(_LONGEST):
            query = [x + 2**doublings * y for x, y in zip(start, ray, strict=True)]
            if self.holds(query) == wanted:
                return query
        raise UserError("no query of a reasonable length decides the condition; scale the keys to sizes near 1")

    def refute_sufficient(self, rows: Matrix, least: Vector) -> tuple[str, Vector | None]:
        """Why rows·q >= least does not imply the weight, with a query that shows it; empty if it does imply it.

        The log-sum-exp is convex, so over a polyhedron without falling leads it is largest at a corner.
        """
        zero = [Fraction(0)] * len(rows[0])
        start = minimise(zero, rows, least).x
        if start is None:
            return "no query satisfies these conditions", None
        for i, difference in zip(self.others, self.differences, strict=True):
            ray = minimise(difference, rows, [Fraction(0)] * len(rows)).ray
            if ray is not None:
                return f"the lead over key {i} may become negative", self._longer(start, ray, False)
        rank = _rank(rows)
        if math.comb(len(rows), rank) > _MOST_CORNERS:
            raise UserError(f"{len(rows)} conditions in {len(zero)} variables have too many corners; give fewer")
        for chosen in combinations(range(len(rows)), rank):
            columns = [[rows[r][c] for r in chosen] for c in range(len(zero))]
            corner = solve(columns, [least[r] for r in chosen], np.zeros(len(zero))) if chosen else start
            if corner is None or any(dot(row, corner) < b for row, b in zip(rows, least, strict=True)):
                continue
            if not self.holds(corner):
                return "the conditions allow too small a lead", corner
        return "", None

    def refute_necessary(self, rows: Matrix, least: Vector) -> tuple[str, Vector | None]:
        """Why some query with the weight breaks rows·q >= least, with that query; empty if none does.

        With row = scale·sum y_i (k_j - k_i), y >= 0 and t = sum y, row·q >= b follows from t·ln(w/(1-w)) + t·H(y/t) >= b: the
        log-sum-exp of the -d_i is at least any mean of the -d_i plus the entropy of its weights.
        """
        if self.query is None:
            return "", None
        for place, (row, b) in enumerate(zip(rows, least, strict=True)):
            ray = minimise(row, self.differences, [Fraction(0)] * len(self.others)).ray
            low = self._lowest(row) if ray is None else self._along(self.query, ray, row, b)
            if dot(row, low) < b:
                return f"condition {place} does not follow", low
            if not self._follows(row, b, low):
                raise UserError(f"condition {place} is too close to the limit to decide; round its right side down")
        return "", None

    def too_weak(self, rows: Matrix, least: Vector) -> tuple[str, Vector | None]:
        """A query that rows·q >= least allows although another key leads; empty if there is none."""
        for i, difference in zip(self.others, self.differences, strict=True):
            start, lowest = minimise([Fraction(0)] * len(rows[0]), rows, least).x, minimise(difference, rows, least)
            if lowest.ray is not None and start is not None:
                return f"key {i} may lead", self._longer(start, lowest.ray, False)
            if lowest.x is not None and dot(difference, lowest.x) < 0:
                return f"key {i} may lead", lowest.x
        return "", None

    def _along(self, start: Vector, ray: Vector, row: Vector, b: Fraction) -> Vector:
        """A query beyond the condition along a ray on which no lead falls."""
        steps = max(Fraction(0), math.ceil((dot(row, start) - b) / -dot(row, ray)) + Fraction(1))
        return [x + steps * y for x, y in zip(start, ray, strict=True)]

    def _lowest(self, row: Vector) -> Vector:
        """A query with the weight at which row·q is nearly as small as it can be."""
        from scipy.optimize import minimize

        descend: Any = minimize  # whose stubs do not know this form of a constraint
        differences = self.factor * np.array(self.differences, dtype=np.float64)
        cost = np.array(row, dtype=np.float64)
        size = float(np.abs(cost).max()) or 1.0

        def slack(q: Any) -> float:
            d = differences @ q
            low = float(d.min())
            return low - math.log(float(np.exp(low - d).sum())) - self.margin

        assert self.query is not None
        minimum = descend(
            lambda q: float(cost @ q) / size,
            np.array(self.query, dtype=np.float64),
            method="SLSQP",
            constraints={"type": "ineq", "fun": slack},
            options={"maxiter": 500, "ftol": 1e-13},
        )
        best, inner = [rational(x) for x in minimum.x], self.query
        for bits in range(60, 0, -1):  # towards the inside, as little as is needed
            share = Fraction(1, 2**bits)
            query = [x + share * (y - x) for x, y in zip(best, inner, strict=True)]
            if self.holds(query):
                return query
        return inner

    def _follows(self, row: Vector, b: Fraction, low: Vector) -> bool:
        """Whether row·q >= b follows from a combination of the differences, with the bound in float64."""
        leads = np.array(self.margins(low))
        share = np.exp(leads.min() - leads)
        share /= share.sum()
        mixed = np.array(self.differences, dtype=np.float64).T @ share
        t = float(mixed @ np.array(row, dtype=np.float64)) / max(float(mixed @ mixed), 1e-300)
        longest = minimise(row, self.differences, [Fraction(1)] * len(share)).multipliers
        for y in (solve(self.differences, row, t * share), longest):
            if y is None or len(y) != len(share) or min(y) < 0:
                continue
            whole = float(sum(y))
            entropy = -sum(float(x) * math.log(float(x) / whole) for x in y if x)
            proved = (whole * self.margin + entropy) / self.factor
            if proved - 1e-12 * (1 + abs(proved)) >= float(b):
                return True
        return False


def _rank(rows: Matrix) -> int:
    """The number of independent rows, exactly."""
    independent: Matrix = []
    for row in rows:
        if any(row) and (not independent or solve(independent, row, np.zeros(len(independent))) is None):
            independent.append(row)
    return len(independent)


@dataclass(frozen=True)
class Condition:
    """The answer to "for which q": a statement, the linear conditions, and the verdict on a query if there is one."""

    selection: Selection
    query: Vector | None = None

    @property
    def status(self) -> Status:
        """Whether there is such a query."""
        return "impossible" if self.selection.direction is None else "solved"

    def statement(self) -> str:
        """The exact condition and the linear conditions, or why no query fits."""
        s = self.selection
        if not s.others:
            return "There is one key, and every query gives it the weight 1."
        if s.combination is not None:
            parts = " + ".join(f"{number(float(p))}·k_{i}" for i, p in s.combination.items())
            return f"No query: k_{s.index} = {parts}, so a_{s.index} <= 1/2 for every q."
        return (
            f"a_{s.index} >= {number(float(s.weight))} exactly where the sum over i of e^-d_i, d_i = "
            f"{'' if s.scale == 'none' else 'scale·'}(k_{s.index} - k_i)·q, is at most (1-w)/w = "
            f"{number(float((1 - s.weight) / s.weight))}, a convex set of queries. Every d_i >= {at_most(s.enough)} is "
            f"sufficient, every d_i >= {at_least(s.margin)} is necessary. Along q = R·u the weight tends to 1 as R grows "
            f"exactly where every (k_{s.index} - k_i)·u is positive. Proof: attnlab design derive selecting."
        )

    def facts(self) -> list[tuple[str, str]]:
        """The linear conditions, and whether the query satisfies them."""
        s = self.selection
        if self.status == "impossible" or not s.others:
            return []
        rows = [
            (f"d_{i}", f"{vector([s.factor * float(x) for x in row])}·q")
            for i, row in zip(s.others, s.differences, strict=True)
        ]
        if self.query is not None:
            leads = s.margins(self.query)
            least = min(leads)
            where = "necessary condition fails" if least < s.margin else "between the two conditions"
            rows += [
                ("query", vector(self.query)),
                ("its leads", vector(leads)),
                ("linear conditions", "sufficient condition holds" if least >= s.enough else where),
                ("weight", number(s.weight_of(self.query))),
                ("verdict", "reaches the weight" if s.holds(self.query) else "does not reach the weight"),
            ]
        return rows

    def to_json(self) -> str:
        """One object, as `--json` prints it."""
        s = self.selection
        rows = [[s.factor * float(x) for x in row] for row in s.differences]
        proof = None if s.combination is None else {str(i): str(p) for i, p in s.combination.items()}
        condition: dict[str, Any] = {
            "status": self.status,
            "statement": self.statement(),
            "index": s.index,
            "weight": float(s.weight),
            "rows": rows,
            "sufficient": s.enough,
            "necessary": s.margin,
            "combination": proof,
            "reading": read_as(keys=s.keys),
        }
        if self.query is not None:
            condition |= {"holds": s.holds(self.query), "reached": s.weight_of(self.query)}
        return json.dumps(condition, allow_nan=False)

    def __rich__(self) -> RenderableType:
        return Group(Text(self.statement()), rich_facts(self.facts()))

    def _repr_html_(self) -> str:
        return f"<div><p>{html.escape(self.statement())}</p>{html_table(self.facts())}</div>"


def when(
    keys: Data, index: int, *, weight: Real = Fraction(99, 100), query: Data | None = None, scale: Scale = "none"
) -> Condition:
    """For which queries key `index` has at least this weight, and whether `query` is one of them."""
    rows = inputs.matrix(keys, "keys")
    selection = selected(rows, index, weight, scale)
    q = None if query is None else inputs.vector(query, "query", rows.floats.shape[1], of="key").exact[0]
    return Condition(selection, q)


def selected(keys: Rows, index: int, weight: Real, scale: Scale) -> Selection:
    """The queries that give key `index` this weight, after checking the settings."""
    share = Fraction(weight)
    if not Fraction(1, 2) < share < 1:
        raise UserError(f"weight {float(share):g} must be above 0.5 and below 1, such as 0.99")
    return Selection(keys, inputs.index(index, len(keys.floats)), share, inputs.scale(scale))
