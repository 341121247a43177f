import ast
import copy
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from attnlab.design import blend, reach, select, verifier
from attnlab.design.verifier import NotAProof, verify

LINE = [[-1.0], [0.0], [1.0]]
EYE = np.eye(3).tolist()


@pytest.fixture(scope="module")
def proofs():
    """One certificate of each kind, with its problem."""
    grid = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], dtype=float)
    rng = np.random.default_rng(5)
    keys, values = rng.integers(-2, 3, size=(9, 2)).astype(float), rng.normal(size=(9, 2))
    problems = {
        "convex_combination": (select(LINE, EYE, 1), LINE, EYE, [0, 1, 0]),
        "range": (blend(LINE, EYE, [0, 2]), LINE, EYE, [0.5, 0, 0.5]),
        "square": (
            blend(grid, np.eye(4), weights=[0.4, 0.1, 0.1, 0.4]),
            grid.tolist(),
            np.eye(4).tolist(),
            [0.4, 0.1, 0.1, 0.4],
        ),
        "separating": (reach(keys, values, [5, 5]), keys.tolist(), values.tolist(), [5, 5]),
    }
    assert all(result.status == "impossible" for result, *_ in problems.values())
    return problems


def test_it_shares_no_code_with_the_solver():
    tree = ast.parse(Path(verifier.__file__).read_text(encoding="utf-8"))
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert set(modules) == {"__future__", "math", "collections.abc", "fractions", "typing"}


@pytest.mark.parametrize("kind", ["convex_combination", "range", "square", "separating"])
def test_honest_certificates_pass(proofs, kind):
    result, keys, values, target = proofs[kind]
    assert verify(result.certificate, keys, values, target, 0.01) > 0.0099


@pytest.mark.parametrize("kind", ["convex_combination", "range", "square", "separating"])
def test_no_certificate_proves_more_than_the_best_query_allows(proofs, kind):
    result, keys, values, target = proofs[kind]
    with pytest.raises(NotAProof):
        verify(result.certificate, keys, values, target, result.error["float64"] * 1.001)


@pytest.mark.parametrize("kind", ["convex_combination", "range", "square", "separating"])
def test_a_certificate_is_about_its_own_problem(proofs, kind):
    result, keys, values, _ = proofs[kind]
    with pytest.raises(NotAProof):
        verify(result.certificate, keys, values, np.mean(values, axis=0).tolist(), 0.01)


def test_other_keys_are_refused(proofs):
    result, _, values, target = proofs["convex_combination"]
    with pytest.raises(NotAProof, match="do not combine exactly"):
        verify(result.certificate, [[-1.0], [0.1], [1.0]], values, target, 0.01)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["combinations"][0]["weights"].update({"0": "3/4"}), "convex combination"),
        (lambda c: c["combinations"][0]["weights"].update({"0": "3/2", "2": "-1/2"}), "convex combination"),
        (lambda c: c["combinations"][0]["weights"].update({"0": "1/4", "2": "3/4"}), "do not combine"),
        (lambda c: c["combinations"][0]["factors"].update({"0": 0.4}), "inequality of means"),
        (lambda c: c["multipliers"].__setitem__(0, -1.0), "negative share"),
        (lambda c: c["direction"].__setitem__(1, 0.0), "direction is zero"),
        (lambda c: c.update(type="magic"), "no rule"),
    ],
)
def test_tampering_with_a_combination_is_noticed(proofs, change, words):
    result, keys, values, target = proofs["convex_combination"]
    certificate = copy.deepcopy(result.certificate)
    change(certificate)
    with pytest.raises(NotAProof, match=words):
        verify(certificate, keys, values, target, 0.01)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["cases"]["vector"].update({"1": "0"}),
        lambda c: c["cases"]["tangents"].update({"1": 5.0}),
        lambda c: c["cases"]["tangents"].update({"1": -0.1}),
        lambda c: c["cases"].update(level=100.0),
        lambda c: c["bounds"].pop(),
        lambda c: c["bounds"][0].update(lower=[0.0, 0.0, 0.0]),
        lambda c: c.update(proves=0.49),
        lambda c: c.update(proves=0.001),
        lambda c: c.update(cases={"split": [0, 0.5], "above": c["cases"], "below": {**c["cases"], "vector": {}}}),
    ],
)
def test_tampering_with_a_range_is_noticed(proofs, change):
    result, keys, values, target = proofs["range"]
    certificate = copy.deepcopy(result.certificate)
    change(certificate)
    with pytest.raises(NotAProof):
        verify(certificate, keys, values, target, 0.01)


def test_a_radius_buys_only_what_the_residual_allows():
    keys = np.random.default_rng(3).normal(size=(4, 6))
    keys[0] = keys[1:].mean(axis=0)
    result = select(keys, np.eye(4), 0)
    given = (keys.tolist(), np.eye(4).tolist(), [1, 0, 0, 0], 0.01)
    verify(result.certificate, *given)
    with pytest.raises(NotAProof):
        verify({**result.certificate, "radius": result.certificate["radius"] * 1e3}, *given)
    with pytest.raises(NotAProof):
        verify({**result.certificate, "radius": None}, *given)


FOUR = ([[0.0], [1.0], [2.0], [5.0]], np.eye(4).tolist(), [0, 0, 0, 1], 0.01)


def forged(**changes):
    cut = {"index": 1, "weights": {"0": "1/2", "2": "1/2"}, "factors": {"0": 0.5000001, "2": 0.5000001}}
    certificate = {"type": "convex_combination", "index": 1, "weights": [0.5, 0, 0.5, 0], "multipliers": [1.0]}
    certificate |= {"combinations": [cut | changes.pop("cut", {})], "direction": [-1, -1, -1, 1]}
    return certificate | changes


@pytest.mark.parametrize(
    ("certificate", "words"),
    [
        (forged(cut={"factors": {"0": 0.5000001, "2": 0.5000001, "3": -1.0}}), "one for every key"),
        (forged(cut={"factors": {"0": 0.5000001, "2": 0.5000001, "3": 1.0}}), "one for every key"),
        (forged(cut={"factors": {"0": 0.5000001}}), "one for every key"),
        (forged(cut={"factors": {"0": -0.5, "2": 0.5}}), "must be positive"),
        (forged(cut={"weights": {"0": "1/2", "00": "0", "2": "1/2"}}), "not one of the 4 indices"),
        (forged(cut={"weights": {"0": "1/2", "7": "1/2"}}), "not one of the 4 indices"),
        (forged(cut={"index": 3}, radius=-1e9), "radius must be positive"),
        (forged(cut={"index": 3}, radius=float("nan")), "malformed"),
        (forged(cut={"index": 3}, radius=float("inf")), "malformed"),
        (forged(cut={"weights": {}}), "malformed"),
        (forged(cut={"weights": {"0": "1/0", "2": "1/2"}}), "malformed"),
        (forged(cut={"weights": {"0": "1e999999999", "2": "1/2"}}), "fraction"),
        (forged(combinations=[]), "malformed"),
        (forged(combinations=3), "malformed"),
        (forged(direction=["x", 0, 0, 1]), "malformed"),
        (forged(index=2), "those of the first combination"),
        (forged(weights=[1, 0, 0, 0]), "those of the first combination"),
        ({"type": "separating"}, "malformed"),
        ({"type": "farkas", "bounds": [{}] * 4, "proves": 0.1, "cases": {}}, "malformed"),
    ],
)
def test_forged_proofs_are_refused(certificate, words):
    with pytest.raises(NotAProof, match=words):
        verify(certificate, *FOUR)


def test_the_norm_of_an_edited_key_is_that_of_the_problem():
    keys, values, query, target = [[0.0], [0.0]], [[1.0], [0.0]], [10.0], [1.0]
    certificate = {"type": "separating", "direction": [1.0], "norm": 0.01}
    assert verifier.misses_segment(certificate, keys, values, query, 0, target, 1.0) < 1e-6
    assert verifier.misses_segment(certificate, keys, values, query, 0, target, 1.0, 0.01) > 0.4


@pytest.mark.parametrize("certificate", [{"direction": [0.0]}, {"direction": [1.0, 2.0]}, {}, {"direction": ["x"]}])
def test_a_segment_needs_a_direction(certificate):
    with pytest.raises(NotAProof):
        verifier.misses_segment(certificate, [[0.0], [0.0]], [[1.0], [0.0]], [1.0], 0, [1.0], 1.0)


def test_only_equal_keys_share_their_values():
    certificate = {"type": "separating", "direction": [1.0]}
    values, target = [[0.0], [2.0], [3.0]], [2.75]
    assert verify(certificate, [[1.0], [1.0], [1.0]], values, target, 0.01) == Fraction(2.75) - Fraction(5, 3)
    assert verify(certificate, [[7.0], [1.0], [1.0]], values, target, 0.01) == Fraction(1, 4)  # 2.75 - (2 + 3) / 2
    with pytest.raises(NotAProof, match="proves only"):
        verify(certificate, [[1.0], [1.0], [1.0 + 2**-52]], values, target, 0.01)
    with pytest.raises(NotAProof, match="malformed"):
        verify(certificate, [[1.0], [1.0]], values, target, 0.01)
