import ast
import copy
import math
from decimal import Decimal
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


def test_equal_rows_split_outputs_that_are_more_than_twice_the_tolerance_apart():
    x, y = [[1, 2], [1, 2], [1, 3]], [[0.0, 0.0], [0.25, -0.5], [9.0, 9.0]]
    assert verifier.splits_equal_rows({"rows": [0, 1]}, x, y, 0.2)
    assert not verifier.splits_equal_rows({"rows": [0, 1]}, x, y, 0.25)
    assert not verifier.splits_equal_rows({"rows": [0, 2]}, x, y, 0.2)


def test_what_weights_cancel_bounds_every_layer():
    mixed, y = [[1, 2], [1, 2], [0, 5]], [[0, 3], [1, 1], [7, 7]]
    assert verifier.outside_range({"vector": [1, -1, 0]}, mixed, y) == 1  # max(|0 - 1|, |3 - 1|) / 2
    assert verifier.outside_range({"vector": ["-1/2", "1/2", 0]}, mixed, y) == 1
    with pytest.raises(NotAProof, match="vector is zero"):
        verifier.outside_range({"vector": [0, 0, 0]}, mixed, y)
    with pytest.raises(NotAProof, match="does not cancel"):
        verifier.outside_range({"vector": [1, -1, 1]}, mixed, y)


def test_a_common_vector_is_equal_and_not_zero():
    keep, forget = [[1, 0, 1], [0, 1, 0]], [[2, 2, 2]]
    assert verifier.shares_vector({"keep": [2, 2], "forget": [1]}, keep, forget)
    assert not verifier.shares_vector({"keep": [2, 1], "forget": [1]}, keep, forget)
    assert not verifier.shares_vector({"keep": [0, 0], "forget": [0]}, keep, forget)


KEYS, VALUES = [[1.0, 0.0], [0.0, 1.0], [3.0, 3.0]], [[0.0, 0.0], [4.0, 0.0], [2.0, 8.0]]


def missed(target, direction, query=(1.0, 1.0), factor=1.0, norm=None):
    """For key 2; the two others have equal scores for these queries, so attention without key 2 is (2, 0)."""
    return verifier.misses_segment({"direction": direction}, KEYS, VALUES, query, 2, target, factor, norm)


def test_the_distance_from_a_segment_is_that_of_its_nearer_end():
    assert missed([5, 1], [1, 0]) == pytest.approx(3)  # the segment is x = 2
    assert missed([5, 1], [-1, 0]) == pytest.approx(-3)
    assert missed([5, 9], [1, 1]) == pytest.approx((3 + 1) / 2)  # its upper end, (2, 8)
    assert missed([5, -2], [1, -1]) == pytest.approx((3 + 2) / 2)  # its lower end, (2, 0)
    for direction in ([0, 0], [1], [math.inf, 1], ["x", 1]):
        with pytest.raises(NotAProof):
            missed([5, 1], direction)


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_norm_limits_how_far_the_output_moves(factor):
    """Key 2 has scores between -n and n for n = factor·|q|·norm; the others together weigh 2 e^factor."""
    norm = 1.5
    most = factor * math.sqrt(2) * norm
    high, low = (1 / (1 + 2 * math.exp(factor) / math.exp(score)) for score in (most, -most))
    assert missed([2, 9], [0, 1], factor=factor, norm=norm) == pytest.approx(9 - 8 * high)
    assert missed([2, -1], [0, -1], factor=factor, norm=norm) == pytest.approx(1 + 8 * low)


def test_the_query_zero_gives_a_key_its_share_whatever_it_is():
    assert missed([2, 9], [0, 1], query=(0.0, 0.0)) == pytest.approx(9 - 8 / 3)
    assert missed([2, -1], [0, -1], query=(0.0, 0.0)) == pytest.approx(1 + 8 / 3)
    assert missed([2, -1], [0, -1], query=(0.0, 0.0), norm=5.0) == pytest.approx(1 + 8 / 3)


def test_the_others_share_their_weight_by_score():
    """With q = (ln 3, 0) key 0 weighs three times as much as key 1, and attention without key 2 is (1, 0)."""
    assert missed([-1, 0], [-1, 0], query=(math.log(3), 0.0)) == pytest.approx(2)
    assert missed([1, -1], [0, -1], query=(1000.0, 0.0), norm=0.5) == pytest.approx(1)  # its share is e^-500
    alone = verifier.misses_segment({"direction": [1.0]}, [[1.0]], [[2.0]], [1.0], 0, [5.0], 1.0)
    assert alone == pytest.approx(3)


def test_rounding_is_counted_against_a_segment():
    """Scores whose terms cancel are as uncertain as the terms: about 1e-13 of them, times the size of the values."""
    exact, cancelled = missed([5, 1], [1, 0]), missed([5, 1], [1, 0], query=(1e9, 1e9))
    assert 3 - 1e-10 < exact < 3
    assert exact - 1e-2 < cancelled < exact - 1e-5


def test_a_split_covers_both_sides_at_the_weight_that_it_names(proofs):
    result, keys, values, target = proofs["range"]
    whole = result.certificate["cases"]
    for i in range(3):
        split = {**result.certificate, "cases": {"split": [i, 0.25], "above": whole, "below": whole}}
        assert verify(split, keys, values, target, 0.01) == verify(result.certificate, keys, values, target, 0.01)
    nothing = {**whole, "vector": {}, "tangents": {}, "direction": [0, 0, 0], "level": 1}
    beyond = {
        "split": [1, 1.0],
        "above": nothing,
        "below": whole,
    }  # weight 1 is never above 1: there is nothing to refute
    assert verify({**result.certificate, "cases": beyond}, keys, values, target, 0.01)
    for i, at in ((1, 0.0), (0, 0.4), (2, 0.4)):
        hole = {"split": [i, at], "above": nothing, "below": whole}
        with pytest.raises(NotAProof, match="not refuted"):
            verify({**result.certificate, "cases": hole}, keys, values, target, 0.01)
    for split in ([3, 0.5], [-1, 0.5], [True, 0.5], ["01", 0.5]):
        wrong = {"split": split, "above": whole, "below": whole}
        with pytest.raises(NotAProof, match="is not one of the 3 indices"):
            verify({**result.certificate, "cases": wrong}, keys, values, target, 0.01)


@pytest.mark.parametrize("text", ["1/3", "1", "3/2", "-7/5"])
def test_logarithms_of_numbers_beyond_floats(text):
    for power in (0, 400, -400):
        x = abs(Fraction(text)) * Fraction(10) ** power
        assert verifier._log(x) == pytest.approx(math.log(abs(Fraction(text))) + power * math.log(10), rel=1e-14)
    with pytest.raises(NotAProof, match="not positive"):
        verifier._log(Fraction(0))


def test_a_tolerance_that_is_just_reached_is_not_missed():
    certificate, problem = {"type": "separating", "direction": [1.0]}, ([[0.0], [1.0]], [[0.0], [1.0]], [1.5])
    assert verify(certificate, *problem, 0.49) == Fraction(1, 2)
    with pytest.raises(NotAProof, match="at least 0.5, and 0.5 is allowed"):
        verify(certificate, *problem, 0.5)


def test_the_mean_inequality_needs_factors_that_are_large_enough():
    """For key 1 midway between 0 and 2, a_1 <= (b_0 a_0 + b_2 a_2) holds exactly where b_0 b_2 >= 1/4."""
    for first, second, enough in ((0.5001, 0.5, True), (0.25, 1.001, True), (0.5, 0.4999, False), (0.25, 0.999, False)):
        certificate = forged(cut={"factors": {"0": first, "2": second}}, direction=[-1, 1, -1, 0], multipliers=[1.0])
        problem = ([[0.0], [1.0], [2.0], [5.0]], np.eye(4).tolist(), [0, 1, 0, 0], 0.01)
        if enough:
            assert verify(certificate, *problem) > 0.01
        else:
            with pytest.raises(NotAProof, match="inequality of means"):
                verify(certificate, *problem)


def test_the_bound_of_a_combination_by_hand():
    """Rows are w·(y - v_i) + mu (1[i = 1] - b_i): 2 + mu·(1, 0, ...) as weighed here, over |w|_1 = 3."""
    certificate = forged(direction=[-1, 1, -1, 0], multipliers=[2.0])
    problem = ([[0.0], [1.0], [2.0], [5.0]], np.eye(4).tolist(), [0, 1, 0, 0], 0.01)
    b = Fraction(0.5000001)
    assert verify(certificate, *problem) == min(2 - 2 * b, Fraction(2), Fraction(1)) / 3


def test_a_part_that_a_split_leaves_empty_needs_no_proof(proofs):
    """Within what is proved, weights 0 and 2 are a third or more, and weight 1 is less."""
    result, keys, values, target = proofs["range"]
    whole = result.certificate["cases"]
    nothing = {**whole, "vector": {}, "tangents": {}, "direction": [0, 0, 0], "level": 1}
    for i, at, empty, full in ((0, 0.2, "below", "above"), (2, 0.2, "below", "above"), (1, 0.4, "above", "below")):
        cases = {"split": [i, at], empty: nothing, full: whole}
        assert verify({**result.certificate, "cases": cases}, keys, values, target, 0.01)


@pytest.mark.parametrize("free", [{"lower": [0], "upper": [0]}, {"lower": [-1], "upper": [1]}])  # from 0 to 1 anyway
@pytest.mark.parametrize(("level", "bound"), [(1, 1.0), (2, 2.0), (2.5, 2.0), (3, 2.0), (4, 1.0)])
def test_the_bound_over_a_box_by_hand(level, bound, free):
    """Rows 3 and 2 and weights in [0, 1]: level + sum of min((row - level)·a), which is largest between the rows."""
    leaf = {"direction": [1], "vector": {}, "tangents": {}, "multipliers": [], "level": level}
    for share, holds in ((0.999, True), (1.0, False), (1.001, False)):
        certificate = {"type": "farkas", "proves": share * bound, "bounds": [free, free], "cases": leaf}
        if holds:
            assert verify(certificate, [[0], [1]], [[0], [1]], [3], 0.01) == Fraction(share * bound)
        else:
            with pytest.raises(NotAProof, match="not refuted"):
                verify(certificate, [[0], [1]], [[0], [1]], [3], 0.01)


def test_factors_equal_to_the_weights_leave_no_room_for_the_logarithms():
    with pytest.raises(NotAProof, match="inequality of means"):
        verify(forged(cut={"factors": {"0": 0.5, "2": 0.5}}), *FOUR)


def test_the_weights_shown_are_those_of_the_combination_to_nine_digits():
    problem = ([[0.0], [1.0], [2.0], [5.0]], np.eye(4).tolist(), [0, 1, 0, 0], 0.01)
    for off, same in ((0.0, True), (0.9e-9, True), (2e-9, False)):
        certificate = forged(direction=[-1, 1, -1, 0], weights=[0.5 + off, 0, 0.5, 0])
        if same:
            assert verify(certificate, *problem) > 0
        else:
            with pytest.raises(NotAProof, match="index and weights"):
                verify(certificate, *problem)


def test_a_box_of_one_point_is_not_empty(proofs):
    result, keys, values, target = proofs["range"]
    whole = result.certificate["cases"]
    nothing = {**whole, "vector": {}, "tangents": {}, "direction": [0, 0, 0], "level": 1}
    exact = [[[Fraction(x) for x in row] for row in rows] for rows in (values, [target])]
    box = verifier._first_box(
        result.certificate["bounds"], exact[0], exact[1][0], Fraction(result.certificate["proves"])
    )
    for i in (0, 2):
        for at, side, other in ((box[i][1], "above", "below"), (box[i][0], "below", "above")):
            point = {"split": [i, str(at)], side: whole, other: whole}
            assert verify({**result.certificate, "cases": point}, keys, values, target, 0.01)
            with pytest.raises(NotAProof, match="not refuted"):
                verify({**result.certificate, "cases": {**point, side: nothing}}, keys, values, target, 0.01)


DECIMAL, BINARY = "as the decimals written", "as binary float64 values"


@pytest.mark.parametrize(
    ("reading", "decimal"),
    [
        (None, False),
        (f"keys {DECIMAL}", True),
        (f"keys {BINARY}", False),
        (f"keys {DECIMAL}, values {BINARY}", False),
        (f"keys {BINARY}, values {DECIMAL}", True),
    ],
)
def test_values_mean_what_the_reading_says(reading, decimal):
    certificate = {"type": "separating", "direction": [1.0]} | ({} if reading is None else {"reading": reading})
    problem = ([[0.0]], [[0.1]], [0.3], 0.01)
    written, stored = Fraction(1, 5), Fraction(0.3) - Fraction(0.1)
    assert verify(certificate, *problem) == (written if decimal else stored)
    assert verify(certificate, *problem, reading="decimal") == written
    assert verify(certificate, *problem, reading="binary") == stored


def test_keys_mean_what_the_reading_says():
    """As decimals 0.15 is midway between 0.1 and 0.2; as binary values it is not."""
    problem = ([[0.1], [0.15], [0.2], [5.0]], np.eye(4).tolist(), [0, 1, 0, 0], 0.01)
    certificate = forged(direction=[-1, 1, -1, 0])
    for reading in (f"keys {DECIMAL}", f"keys {DECIMAL}, values {BINARY}"):
        assert verify({**certificate, "reading": reading}, *problem) > 0.3
    for reading in (None, f"keys {BINARY}", f"keys {BINARY}, values {DECIMAL}"):
        with pytest.raises(NotAProof, match="do not combine exactly"):
            verify({**certificate, "reading": reading}, *problem)
    for radius in (0, -1):
        with pytest.raises(NotAProof, match="radius must be positive"):
            verify({**certificate, "radius": radius}, *problem)
    assert verify({**certificate, "radius": 1e9}, *problem) > 0.3  # 0.15 is off by 1e-17


def test_decimals_and_long_integers_are_exact():
    certificate, large = {"type": "separating", "direction": [1]}, 10**20
    assert verify(certificate, [[0]], [[Decimal("0.1")]], [Decimal("0.3")], 0) == Fraction(1, 5)
    assert verify(certificate, [[0]], [[large]], [large + 1], 0) == 1


def test_a_residual_costs_its_length_times_the_radius():
    assert verifier._give([Fraction(3, 10**6), Fraction(-4, 10**6)], Fraction(10)) == pytest.approx(5e-5, rel=1e-8)
    assert verifier._give([Fraction(0), Fraction(0)], None) == 0
    with pytest.raises(NotAProof, match="no radius"):
        verifier._give([Fraction(1, 10**30)], None)
