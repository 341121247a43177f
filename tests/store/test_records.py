"""Records become JSON and come back, and errors name the file and the field."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnlab.errors import CheckpointError
from attnlab.store.folders import write_folder
from attnlab.store.records import convert, decode, encode, plain, read


@dataclass(frozen=True)
class Inner:
    name: str
    places: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outer:
    title: str
    inner: Inner
    rows: list[Inner] = field(default_factory=list)
    share: float | None = None
    folder: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)


WHOLE = Outer("t", Inner("a", (1, 2)), [Inner("b")], 0.5, Path("runs/x"), {"train": {"lr": 0.1, "list": [1, 2]}})


def test_a_record_comes_back_as_it_was() -> None:
    assert decode(Outer, encode(WHOLE), Path("x.json")) == WHOLE
    assert convert(Outer, {"title": "t", "inner": {"name": "a"}}) == Outer("t", Inner("a"))
    assert plain(WHOLE)["rows"] == [{"name": "b", "places": ()}]


def test_numbers_that_json_does_not_have_are_null() -> None:
    for value in (math.nan, math.inf, -math.inf):
        assert decode(Outer, encode(Outer("t", Inner("a"), share=value)), Path("x.json")).share is None
    assert json.loads(encode({"n": np.float32(0.5)})) == {"n": 0.5}


def test_half_a_surrogate_pair_is_replaced() -> None:
    assert json.loads(encode(Inner("a\ud800"))) == {"name": "a?", "places": []}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"title": "t"}', "missing required field `inner`"),
        (b'{"title": "t", "inner": {"name": 3}}', r"Expected `str`, got `int` - at `\$\.inner\.name`"),
        (b"{", "truncated"),
        (b"\xff", "malformed"),
        (b"[" * 100_000, "x.json"),
    ],
)
def test_errors_name_the_file_and_the_field(content: bytes, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as error:
        decode(Outer, content, Path("x.json"))
    assert "x.json" in str(error.value)


def test_a_file_is_checked_against_its_manifest(tmp_path: Path) -> None:
    write_folder(tmp_path / "run", "run", {"outer.json": encode(WHOLE)})
    assert read(Outer, tmp_path / "run" / "outer.json") == WHOLE
    (tmp_path / "run" / "outer.json").write_bytes(encode(Outer("other", Inner("a"))))
    with pytest.raises(CheckpointError, match=r"outer\.json is damaged or was edited"):
        read(Outer, tmp_path / "run" / "outer.json")
