import numpy as np
import pytest

from attnlab.design import inputs
from attnlab.errors import DataError, UserError


def test_separators_and_blank_lines(tmp_path):
    path = tmp_path / "K.csv"
    path.write_text("\ufeff1, 2\n\n3\t4\n5 6\n", encoding="utf-8")
    assert inputs.read(str(path), "keys").floats.tolist() == [[1, 2], [3, 4], [5, 6]]


def test_full_precision_survives(tmp_path):
    data = np.random.default_rng(0).normal(size=(5, 3))
    np.savetxt(tmp_path / "K.csv", data, delimiter=",", fmt="%.17g")
    assert (inputs.read(str(tmp_path / "K.csv"), "keys").floats == data).all()


def test_one_column_or_one_row_is_a_vector():
    for text in ("1;2;3", "1,2,3"):
        assert inputs.vector(inputs.read(text, "target"), "target").exact == [[1, 2, 3]]
    with pytest.raises(DataError, match="one vector"):
        inputs.vector(inputs.read("1,2;3,4", "target"), "target")


def test_free_rows_must_be_free_altogether():
    assert np.isnan(inputs.read("1,2;nan,nan", "outputs", free_rows=True).floats[1]).all()
    with pytest.raises(DataError, match="finite"):
        inputs.read("1,2;nan,3", "outputs", free_rows=True)
    with pytest.raises(DataError, match="finite"):
        inputs.read("1,2;nan,nan", "outputs")


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.npy", b"not numpy"), ("b.csv", b"\xff\xfe\x00"), ("c.npy", b""), ("d.csv", b""), ("e.json", b'{"a": 1}')],
)
def test_broken_files_are_one_line(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        inputs.read(str(tmp_path / name), "keys")
    assert "\n" not in str(caught.value)


def test_pickles_are_not_loaded(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError):
        inputs.read(str(tmp_path / "x.npy"), "keys")


def test_a_tiny_number_beside_others_is_harmless():
    assert inputs.read("1,1e-104;0,1", "weights").floats.shape == (2, 2)
    with pytest.raises(DataError, match="scale it"):
        inputs.read("1,1;1e-104,0", "keys")
