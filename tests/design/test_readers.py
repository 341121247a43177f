"""Whatever a reader of the solver is given, it succeeds or says in one line what is wrong."""

import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnlab.course import mark
from attnlab.design import inputs
from attnlab.errors import AttnlabError

few = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])

ODD = ["1e101", "1e400", "-1e400", "1e-400", "1e999999999", "1e-99999999999999999999", "0e999999999", "9" * 5000]
ODD += ["nan", "inf", "snan", "1_0", "0x10", "1/3", "abc", "--", "1j", "\x1b[31m", ""]
NUMBERS = st.sampled_from(["1", "-0.1", ".5", "1e50", *ODD])
CELLS = st.one_of(NUMBERS, st.text(max_size=6), st.floats().map(str), st.integers().map(str))
TEXTS = st.one_of(
    st.lists(st.lists(CELLS, max_size=4).map(",".join), max_size=4).map(";".join),
    st.text(alphabet='[]{}",.:;-0123456789eNaInfty \n\t\\', max_size=40),
    st.text(max_size=30),
    st.integers(1, 100_000).map(lambda depth: "[" * depth),
)


def tried(reader, *arguments, **settings):
    """What the reader gives; None where it refuses in one line."""
    try:
        return reader(*arguments, **settings)
    except AttnlabError as error:
        if "\n" in str(error):
            raise AssertionError("more than one line") from error
        return None


def judged(rows, free_rows=False):
    """Whatever is read has exact numbers that are those of the floats but for rounding."""
    if rows is None:
        return
    for floats, exact in zip(rows.floats.tolist(), rows.exact, strict=True):
        for x, y in zip(floats, exact, strict=True):
            assert x == float(y) or (free_rows and np.isnan(x))


@settings(max_examples=200)
@given(TEXTS, st.booleans())
def test_matrices_from_text(text, free_rows):
    if "/" not in text and "\0" not in text:
        judged(tried(inputs.read, text, "keys", free_rows=free_rows), free_rows)


@few
@given(TEXTS, st.sampled_from(["csv", "json", "tsv", "npy"]))
def test_matrices_from_files(tmp_path, text, suffix):
    (tmp_path / f"x.{suffix}").write_bytes(text.encode("utf-8", "surrogatepass"))
    judged(tried(inputs.read, str(tmp_path / f"x.{suffix}"), "keys"))


@few
@given(st.binary(max_size=60), st.sampled_from(["csv", "json", "npy"]))
def test_matrices_from_bytes(tmp_path, data, suffix):
    (tmp_path / f"x.{suffix}").write_bytes(data)
    judged(tried(inputs.read, str(tmp_path / f"x.{suffix}"), "keys"))


SHAPES = st.one_of(
    st.lists(st.integers(-3, 3), max_size=3),
    st.lists(st.integers(0, 2**70), max_size=3),
    st.just([10**6, 10**6]),
)
TYPES = st.sampled_from(
    ["'<f8'", "'|O'", "'<c16'", "'<M8[s]'", "'<U3'", "'<i8'", "[('a','<f8')]", "'<f16'", "'nope'", "3"]
)


@few
@given(SHAPES, TYPES, st.binary(max_size=64))
def test_array_files_with_forged_headers(tmp_path, shape, kind, body):
    header = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {tuple(shape)}, }}\n".encode()
    path = tmp_path / "x.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + body)
    rows = tried(inputs.read, str(path), "keys")
    assert rows is None or rows.floats.size <= 8
    judged(rows)


@given(st.one_of(CELLS, st.floats(), st.booleans(), st.none(), st.integers(), st.fractions(), st.just(10**400)))
def test_single_numbers(number):
    if isinstance(number, str):
        try:
            assert str(inputs.whole(number)) == str(int(number))
        except ValueError:
            return
    tried(inputs.index, number, 3)
    judged(tried(inputs.matrix, [[number]], "keys"))
    if isinstance(number, int | float | Fraction) and not isinstance(number, bool) and number != 10**400:
        tried(inputs.tolerance, number)


@pytest.mark.parametrize("text", ["0.9", "1.0", "1e0", "one", "", "1_0", "0x1", "\u0663", "9" * 19])
def test_whole_numbers_are_written_as_such(text):
    with pytest.raises(ValueError, match="whole"):
        inputs.whole(text)


VALUES = st.recursive(
    st.one_of(
        st.integers(-2, 3),
        st.floats(-10, 10).map(lambda x: round(x, 3)),
        st.booleans(),
        st.sampled_from(
            ["K[0]", "u", "free", "impossible", "1/0", "K.csv", "select", "\n", "9**99", 10**120, "K @ K", ""]
        ),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("QKVa"), inner, max_size=3)),
    max_leaves=6,
)
ROWS = st.one_of(st.just([[1, 0], [0, 1]]), st.just([[0.1, 0.1], [0.15, 0.2], [0.2, 0.3]]), VALUES)
ASKS = ["select", "identity", "blend", "average", "reach", "project", "edit-key", "layer", "noise", "nope"]
SETTINGS = [
    "index",
    "indices",
    "weights",
    "target",
    "keep",
    "forget",
    "query",
    "norm",
    "tokens",
    "outputs",
    "alpha",
    "heads",
]
SETTINGS += ["tolerance", "points", "scale", "text", "varying", "name", "keys", "values"]


def toml(value):
    """A value as TOML, which for these is JSON but for tables."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


@settings(few, max_examples=100)
@given(st.sampled_from(ASKS), ROWS, ROWS, st.dictionaries(st.sampled_from(SETTINGS), ROWS, max_size=4), VALUES, VALUES)
def test_sheets_and_answers(tmp_path, ask, keys, values, own, answer, let):
    own = {"index": 0, "target": [1, 0], "query": [1, 0], "keep": [[1, 0]], "forget": [[1, 1]]} | own
    known = {"select": {"index"}, "reach": {"target"}, "edit-key": {"index", "query"}, "project": {"keep", "forget"}}
    chosen = {
        name: x for name, x in own.items() if name in known.get(ask, set()) or name in SETTINGS[10:] or len(own) > 7
    }
    table = "\n".join(f"{name} = {toml(x)}" for name, x in ({"name": "t", "ask": ask} | chosen).items())
    sheet = f"keys = {toml(keys)}\nvalues = {toml(values)}\n[vectors]\nu = [1, 0]\n[[task]]\n{table}\n"
    (tmp_path / "s.toml").write_text(sheet, encoding="utf-8")
    (tmp_path / "a.toml").write_text(f"t = {toml(answer)}\n[let]\nx = {toml(let)}\n", encoding="utf-8")
    tried(mark, tmp_path / "s.toml", tmp_path / "a.toml")


@few
@given(
    st.one_of(TEXTS.map(lambda text: f"a = {text}"), st.text(max_size=30)).map(
        lambda text: text.encode("utf-8", "replace")
    )
    | st.binary(max_size=30)
)
def test_files_that_are_no_sheets(tmp_path, data):
    (tmp_path / "s.toml").write_bytes(data)
    tried(mark, tmp_path / "s.toml", tmp_path / "s.toml")
