"""No verdict is wrong: solved is true in float64, impossible is proved exactly and no query contradicts it."""

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.course import mark
from attnlab.design import blend, reach, select, verify
from attnlab.design.attention import softmax


def family(name, rng):
    n, d = int(rng.integers(2, 9)), int(rng.integers(1, 5))
    if name == "integer":
        return rng.integers(-2, 3, size=(n, d)).astype(float)
    if name == "duplicated":
        return rng.normal(size=(2, d))[rng.integers(0, 2, size=n)]
    if name == "collinear":
        return rng.normal(size=d) + rng.normal(size=(n, 1)) * rng.normal(size=d)
    if name == "single":
        return rng.normal(size=(1, d))
    if name == "wide":
        return rng.normal(size=(n, n + d))
    if name == "line":
        return rng.normal(size=(n, 1))
    if name == "huge":
        return 1e6 * rng.normal(size=(n, d))
    if name == "inside":
        keys = rng.normal(size=(n + 2, d))
        keys[0] = keys[1:].mean(axis=0)
        return keys
    return rng.normal(size=(n, d))


families = st.sampled_from(
    ["integer", "duplicated", "collinear", "single", "wide", "line", "huge", "inside", "gaussian"]
)


def climbed(errors, query, rng):
    """The least error that shrinking random steps find; nothing is shared with the solver."""
    least, step = errors(query[None])[0], 1.0
    for _ in range(60):
        moved = query * (1 + step * rng.normal(size=(30, 1)))
        moved = moved + step * rng.normal(size=(30, len(query))) * np.abs(query).max()
        misses = errors(moved)
        if misses.min() < least:
            least, query = misses.min(), moved[misses.argmin()]
        else:
            step /= 1.5
    return least


def judge(result, keys, values, target, tolerance, rng):
    def errors(queries):
        return np.abs(softmax(queries @ keys.T) @ values - target).max(axis=1)

    here = errors(result.query[None])[0]
    if result.status == "solved":
        assert here <= result.bound * (1 + 1e-12)
        assert result.bound <= tolerance
        assert result.certificate is None
        return
    size = np.abs(keys).max() or 1.0
    tries = rng.normal(size=(1000, keys.shape[1])) * 10.0 ** rng.uniform(-1, 3, size=(1000, 1)) / size
    near = result.query + rng.normal(size=(300, keys.shape[1])) * 10.0 ** rng.uniform(-3, 0, size=(300, 1)) / size
    least = min(errors(tries).min(), errors(near).min(), here, climbed(errors, tries[errors(tries).argmin()], rng))
    assert least >= result.lower_bound * (1 - 1e-9)
    if result.status == "impossible":
        assert least > tolerance
        proved = verify(result.certificate, keys.tolist(), values.tolist(), target.tolist(), tolerance)
        assert proved > tolerance * (1 - 1e-12)
        assert result.lower_bound <= float(proved) * (1 + 1e-12)


@settings(max_examples=80)
@given(families, st.integers(0, 10**6), st.sampled_from([0.003, 0.03, 0.2]))
def test_select(name, seed, tolerance):
    rng = np.random.default_rng(seed)
    keys = family(name, rng)
    values = np.eye(len(keys)) if rng.random() < 0.5 else rng.normal(size=(len(keys), int(rng.integers(1, 5))))
    j = int(rng.integers(len(keys)))
    judge(select(keys, values, j, tolerance=tolerance), keys, values, values[j], tolerance, rng)


@settings(max_examples=80)
@given(families, st.integers(0, 10**6), st.sampled_from([0.003, 0.03, 0.2]))
def test_blend(name, seed, tolerance):
    rng = np.random.default_rng(seed)
    keys = family(name, rng)
    n = len(keys)
    values = np.eye(n) if rng.random() < 0.5 else rng.normal(size=(n, int(rng.integers(1, 5))))
    chosen = [int(i) for i in rng.choice(n, size=int(rng.integers(1, n + 1)), replace=False)]
    weights = rng.dirichlet(np.full(len(chosen), 3.0))
    target = weights @ values[chosen]
    judge(blend(keys, values, chosen, weights, tolerance=tolerance), keys, values, target, tolerance, rng)


@settings(max_examples=40)
@given(families, st.integers(0, 10**6))
def test_reach(name, seed):
    rng = np.random.default_rng(seed)
    keys = family(name, rng)
    values = rng.normal(size=(len(keys), int(rng.integers(1, 4))))
    target = rng.dirichlet(np.ones(len(keys))) @ values + 0.1 * rng.normal(size=values.shape[1])
    judge(reach(keys, values, target, tolerance=0.02), keys, values, target, 0.02, rng)


def test_hardly_anything_is_undecided():
    statuses = []
    for seed in range(100):
        rng = np.random.default_rng([7, seed])
        keys = family(["integer", "duplicated", "collinear", "line", "inside"][seed % 5], rng)
        values = rng.normal(size=(len(keys), int(rng.integers(1, 5))))
        statuses.append(select(keys, values, int(rng.integers(len(keys))), tolerance=0.05).status)
    assert statuses.count("undecided") <= 2
    assert statuses.count("solved") > 13
    assert statuses.count("impossible") > 13


def typed(seed):
    """Small decimals as people type them, half of the keys on a segment: 2 to 5 keys, their values, and which to copy."""
    rng = np.random.default_rng([99, seed])
    n, d, m = int(rng.integers(2, 6)), int(rng.integers(1, 4)), int(rng.integers(1, 4))
    step = Decimal(["0.1", "0.05", "0.01"][seed % 3])
    keys = [[int(rng.integers(-3, 4)) * step for _ in range(d)] for _ in range(n)]
    if rng.random() < 0.5:
        shares = [Decimal(int(rng.integers(0, 11))) / 10 for _ in range(n)]
        keys[2:] = [[w * x + (1 - w) * y for x, y in zip(*keys[:2], strict=True)] for w in shares[2:]]
    values = [[Decimal(int(rng.integers(-9, 10))) / 10 for _ in range(m)] for _ in range(n)]
    return keys, values, int(rng.integers(n))


@pytest.mark.parametrize("seed", [262, *range(24)])  # 262: an error that is exactly the tolerance
def test_solver_verifier_and_checker_agree_about_decimals(tmp_path, seed):
    keys, values, j = typed(seed)
    tolerance = Decimal("0.05")
    result = select(keys, values, j, tolerance=tolerance)
    numbers = [str([[float(x) for x in row] for row in rows]) for rows in (keys, values)]
    sheet = f'keys = {numbers[0]}\nvalues = {numbers[1]}\n[[task]]\nname = "t"\nask = "select"\nindex = {j}\n'
    (tmp_path / "s.toml").write_text(sheet, encoding="utf-8")

    def passes(answer):
        (tmp_path / "a.toml").write_text(f"t = {answer}", encoding="utf-8")
        return mark(tmp_path / "s.toml", tmp_path / "a.toml").students[0].passed

    assert result.status != "undecided"
    solved = result.status == "solved"
    assert (passes(result.query.tolist()), passes('"impossible"')) == (solved, not solved)
    if not solved:
        assert verify(result.certificate, keys, values, values[j], tolerance) > tolerance
        rng = np.random.default_rng(seed)
        tries = [result.query * 10.0 ** rng.uniform(-1, 20) + rng.normal(size=len(keys[0])) for _ in range(10)]
        assert not any(passes(query.tolist()) for query in tries)
