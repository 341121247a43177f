"""Files that are not files: every reader refuses them at once, in one line."""

from __future__ import annotations

import errno
import io
import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attnlab import config, reading
from attnlab.corpora import load_questions, open_text
from attnlab.corpora.files import numbered_lines, read_predictions
from attnlab.design import inputs
from attnlab.design.check import read_toml
from attnlab.errors import AttnlabError
from attnlab.lm.model import read_tensors
from attnlab.lm.tokenizers import Tokenizer
from attnlab.store import folders, listing, usercode
from attnlab.studies.study import checksums_of_files

SPECIAL: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "hole": lambda path: (path.touch(), os.truncate(path, 40 * 2**30)),
    "dangling link": lambda path: path.symlink_to("nowhere"),
}
READERS: dict[str, Callable[[Path], object]] = {
    "config.toml": config.read_toml,
    "sheet.toml": read_toml,
    "keys.npy": lambda path: inputs.read(str(path), "keys"),
    "manifest.json": lambda path: folders.Manifest.read(path.parent),
    "result.json": folders.read_bytes,
    "tokenizer.json": Tokenizer.load,
    "model.safetensors": lambda path: read_tensors(path, written_by_attnlab=False),
    "mechanism.py": usercode.read,
    "code.py": lambda path: checksums_of_files([path]),
    "corpus.txt": lambda path: list(numbered_lines(path)),
    "running.txt": lambda path: open_text(path).sha256,
    "running.jsonl": lambda path: list(open_text(path).blocks()),
    "running.parquet": lambda path: list(open_text(path).blocks()),
    "exam.tsv": load_questions,
    "predictions.txt": read_predictions,
}


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """A reader that blocks fails the test instead of stopping the suite."""

    def late(*_: object) -> None:
        raise AssertionError("it blocks")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", READERS)
def test_every_reader_refuses_special_files_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    SPECIAL[kind](Path(name))
    if name == "running.txt" and kind == "folder":
        pytest.skip("a text may be a folder of files")
    with pytest.raises(AttnlabError) as refused:
        READERS[name](Path(name))
    assert "\n" not in str(refused.value)
    assert name in str(refused.value)


@pytest.mark.parametrize("kind", SPECIAL)
def test_lists_go_on_beside_special_files(tmp_path: Path, kind: str) -> None:
    (tmp_path / "run").mkdir()
    for name in (".lock", "manifest.json", "metrics.jsonl", "peeked.json"):
        SPECIAL[kind](tmp_path / "run" / name)
    assert not folders.is_locked(tmp_path / "run")
    assert folders.peek(tmp_path / "run" / "peeked.json") == {}
    assert listing.last_step(tmp_path / "run" / "metrics.jsonl") is None
    [entry] = listing.read_all(tmp_path)
    assert entry.kind in ("damaged", "foreign")


@pytest.mark.parametrize("kind", SPECIAL)
def test_a_special_file_in_place_of_a_listed_one_is_damage_and_not_an_absent_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "run" / "result.json"
    folders.write_folder(path.parent, "run", {path.name: b"{}"})
    path.unlink()
    assert not folders.is_written(path)
    SPECIAL[kind](path)
    assert folders.is_written(path)
    with pytest.raises(AttnlabError, match=r"cannot be read|is missing"):
        folders.read_bytes(path)


def test_a_pipe_as_lock_is_one_line(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(AttnlabError, match=r"cannot write"), folders.locked(tmp_path):
        pass


def test_only_weights_and_metrics_may_be_large(tmp_path: Path) -> None:
    for name, most in (("a.json", reading.LARGEST), ("a.jsonl", 10 * reading.LARGEST)):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, most + 1)
        with pytest.raises(OSError, match=f"larger than {most / 1e6:,.0f} MB"):
            reading.read_bytes(tmp_path / name)
    (tmp_path / "a.safetensors").write_bytes(b"\x02" + b"\0" * 7 + b"{}")
    os.truncate(tmp_path / "a.safetensors", reading.LARGEST + 1)
    assert len(reading.read_bytes(tmp_path / "a.safetensors")) == reading.LARGEST + 1


def test_too_little_memory_is_an_error_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Large(io.BufferedReader):
        def read(self, size: int | None = -1, /) -> bytes:
            raise MemoryError

    path = tmp_path / "a.json"
    path.write_text("{}")
    monkeypatch.setattr(reading, "open_file", lambda *_: Large(io.FileIO(path)))
    with pytest.raises(OSError, match="does not fit into memory") as refused:
        reading.read_bytes(path)
    assert refused.value.errno == errno.ENOMEM


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnlab.corpora.files.LARGEST", 100)
    (tmp_path / "a.txt").write_text("short\n" + "x" * 200)
    with pytest.raises(AttnlabError, match="a.txt:2: the line is longer"):
        list(numbered_lines(tmp_path / "a.txt"))
    (tmp_path / "a.jsonl").write_text('{"text": "' + "x" * 200 + '"}')
    with pytest.raises(AttnlabError, match="a.jsonl:1: the line is longer"):
        list(open_text(tmp_path / "a.jsonl").blocks())
