"""Readers of text, tables and tokenizers given anything: success or an AttnlabError, never anything else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnlab.corpora import load_corpus, load_questions
from attnlab.corpora.labelled import read_tables
from attnlab.errors import AttnlabError
from attnlab.lm.tokenizers import Tokenizer

FEW = settings(max_examples=80, suppress_health_check=list(HealthCheck))
TABLE = "".join(f"{'pos' if n % 2 else 'neg'}\tIt was film {n} .\n" for n in range(8)).encode()
CORPUS = "Ann Lee. Lee was born in Zürich .\n\nBo Ek. Ek was born in Malmö .\r\n".encode()
TOKENIZERS = [Tokenizer.train(kind, ["Ann Lee was born"], 270).backend.to_str().encode() for kind in ("bpe", "char")]
PIECES = [
    b"\t",
    b"\n",
    b"\r",
    b"\r\n",
    b"\0",
    b'"',
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"[" * 500,
    b"9" * 5000,
    b"-1",
    b"{}",
]


@st.composite
def damaged(draw: st.DrawFn, valid: bytes) -> bytes:
    """A valid file that was cut, or in which some bytes were replaced or put in."""
    data = valid[: draw(st.integers(0, len(valid)))] if draw(st.booleans()) else valid
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        piece = draw(st.sampled_from(PIECES) | st.binary(max_size=4))
        data = data[:at] + piece + data[at + draw(st.integers(0, 3)) :]
    return data


def try_out(reader: Callable[[], object]) -> None:
    """A reader succeeds, or refuses what it was given."""
    with suppress(AttnlabError):
        reader()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("any")


@FEW
@given(data=st.binary(max_size=100) | damaged(TABLE) | damaged(CORPUS))
def test_readers_of_text(folder: Path, data: bytes) -> None:
    path = folder / "any.tsv"
    path.write_bytes(data)
    (folder / "good.tsv").write_bytes(TABLE)
    for reader in (load_corpus, load_questions):
        try_out(partial(reader, path))
    try_out(lambda: read_tables(path, path))
    try_out(lambda: read_tables(folder / "good.tsv", path))


@FEW
@given(data=st.binary(max_size=100) | st.sampled_from(TOKENIZERS).flatmap(damaged))
def test_tokenizers(folder: Path, data: bytes) -> None:
    path = folder / "tokenizer.json"
    path.write_bytes(data)
    with suppress(AttnlabError):
        Tokenizer.load(path).encode("Ann Lee was born")
