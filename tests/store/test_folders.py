"""Folders with manifests: what is listed, what is damaged, what a failure leaves behind, and who may write."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from pathlib import Path

import pytest

from attnlab.errors import CheckpointError, OutputExists, StorageError, UserError
from attnlab.store import folders
from attnlab.store.folders import MANIFEST, Manifest

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # sha256 of abc, from FIPS 180-2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folders.write_folder(tmp_path / "model", "model", {"a": b"abc", "inside/b": b"2"}, about="a test")
    return tmp_path / "model"


def test_digests_are_those_of_the_standard() -> None:
    assert folders.digest(b"abc") == ABC
    assert folders.is_digest(ABC)
    for other in (ABC[:-1], ABC + "0", ABC.upper(), "../" + ABC[3:], "g" + ABC[1:], 7, None):
        assert not folders.is_digest(other)


def test_a_manifest_lists_kind_words_and_files(folder: Path) -> None:
    stored = json.loads((folder / MANIFEST).read_bytes())
    assert (stored["kind"], stored["about"], stored["version"], list(stored["files"])) == (
        "model",
        "a test",
        1,
        ["a", "inside/b"],
    )
    assert stored["files"]["a"] == ABC
    manifest = Manifest.read(folder)
    assert (manifest.kind, manifest.about, dict(manifest.files)) == ("model", "a test", stored["files"])
    assert folders.kind_of(folder) == "model"
    assert folders.read_bytes(folder / "inside/b", folder) == b"2"
    folders.verify(folder)


def test_a_folder_without_a_manifest_is_not_ours(tmp_path: Path) -> None:
    assert Manifest.find(tmp_path) is None
    assert Manifest.find(tmp_path / "absent") is None
    (tmp_path / "file").write_bytes(b"")
    assert Manifest.find(tmp_path / "file") is None
    assert folders.kind_of(tmp_path) == ""
    with pytest.raises(CheckpointError, match="was not written by attnlab, or is damaged"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "has version 2, but this attnlab reads 1"),
        ({"kind": "run"}, "is damaged"),
        ({"about": "another"}, "is damaged"),
        ({"files": {"a": ABC}}, "is damaged"),
        ({"files": None}, "is damaged"),
        ({"sha256": ABC}, "is damaged"),
    ],
)
def test_an_edited_manifest_is_noticed(folder: Path, change: dict[str, object], words: str) -> None:
    stored = json.loads((folder / MANIFEST).read_bytes())
    (folder / MANIFEST).write_text(json.dumps({**stored, **change}))
    with pytest.raises(CheckpointError, match=words):
        Manifest.find(folder)


def test_every_listed_file_is_checked(folder: Path) -> None:
    (folder / "inside/b").write_bytes(b"3")
    assert folders.read_bytes(folder / "a") == b"abc"
    with pytest.raises(CheckpointError, match="is damaged or was edited"):
        folders.verify(folder)
    (folder / "inside/b").unlink()
    with pytest.raises(CheckpointError, match="is missing: the folder is incomplete"):
        folders.verify(folder)
    (folder / "unlisted").write_bytes(b"")
    with pytest.raises(CheckpointError, match="is missing"):
        folders.read_bytes(folder / "unlisted")
    with pytest.raises(CheckpointError, match="cannot be read"):
        folders.read_bytes(folder / "inside")


def test_a_file_counts_as_written_once_it_is_listed(folder: Path, tmp_path: Path) -> None:
    assert folders.is_written(folder / "a")
    (folder / "torn").write_bytes(b"")
    assert not folders.is_written(folder / "torn")
    (folder / "a").unlink()
    assert not folders.is_written(folder / "a")
    (tmp_path / "alone").write_bytes(b"")
    assert not folders.is_written(tmp_path / "alone")


def test_added_files_replace_listed_ones_and_keep_the_rest(folder: Path) -> None:
    (folder / "c").write_bytes(b"5")
    folders.add_files(folder, {"a": b"4"}, existing=["c"])
    manifest = Manifest.read(folder)
    assert (manifest.kind, manifest.about, sorted(manifest.files)) == ("model", "a test", ["a", "c", "inside/b"])
    assert folders.read_bytes(folder / "a") == b"4"
    assert folders.read_bytes(folder / "c") == b"5"
    folders.verify(folder)


def test_a_replaced_file_is_unlisted_before_it_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, listed = folders.write_bytes, []

    def watch(path: Path, content: bytes) -> None:
        if path.name == "a":
            listed.append("a" in Manifest.read(folder).files)
        write(path, content)

    monkeypatch.setattr(folders, "write_bytes", watch)
    folders.add_files(folder, {"a": b"4"})
    assert listed == [False]


def test_a_manifest_is_rewritten_only_where_something_is_unlisted(folder: Path) -> None:
    before = (folder / MANIFEST).stat().st_ino
    folders.unlist(folder, "absent")
    assert (folder / MANIFEST).stat().st_ino == before
    folders.unlist(folder, "a", "absent")
    assert list(Manifest.read(folder).files) == ["inside/b"]


def test_the_manifest_of_files_written_one_by_one_lists_no_folders_and_no_lock(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    for name in ("a", ".lock", "inner/b"):
        (tmp_path / name).write_bytes(b"abc")
    folders.write_manifest(tmp_path, "study", "words")
    manifest = Manifest.read(tmp_path)
    assert (manifest.kind, manifest.about, dict(manifest.files)) == ("study", "words", {"a": ABC})
    folders.write_manifest(tmp_path, "study")  # which does not list itself
    assert dict(Manifest.read(tmp_path).files) == {"a": ABC}


def test_a_folder_is_replaced_only_on_request(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputExists, match="exists already: choose another name"):
        folders.write_folder(folder, "model", {"a": b"new"})
    assert folders.read_bytes(folder / "a") == b"abc"
    folders.write_folder(folder, "model", {"a": b"new"}, replace=True)
    assert folders.read_bytes(folder / "a") == b"new"
    assert not (folder / "inside").exists()
    assert list(tmp_path.iterdir()) == [folder]
    folders.write_folder(tmp_path / "deep/er/model", "model", {"a": b""}, replace=True)
    assert folders.kind_of(tmp_path / "deep/er/model") == "model"


def test_what_killed_processes_left_is_overwritten(tmp_path: Path) -> None:
    for name in (".model.tmp", ".model.old.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rest").write_bytes(b"")
    folders.write_folder(tmp_path / "model", "model", {"a": b"1"}, replace=True)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", MANIFEST, "model"]


def test_a_hidden_folder_is_out_of_the_way(folder: Path, tmp_path: Path) -> None:
    hidden = folders.hide(folder)
    assert hidden == tmp_path / ".model.old.tmp"
    assert not folder.exists()
    assert (hidden / "a").read_bytes() == b"abc"
    assert folders.hide(folder) == hidden  # nothing there any more
    assert not hidden.exists()


def test_parents_made_in_vain_are_removed_again(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(ValueError, match="no"), folders.folders_above(tmp_path / "there/new/er/run"):
        assert (tmp_path / "there/new/er").is_dir()
        raise ValueError("no")
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]
    with pytest.raises(ValueError, match="no"), folders.folders_above(tmp_path / "there/new/run"):
        (tmp_path / "there/new/other").write_bytes(b"")
        raise ValueError("no")
    assert (tmp_path / "there/new/other").exists()
    with folders.folders_above(tmp_path / "kept/run"):
        pass
    assert (tmp_path / "kept").is_dir()


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "the disk is full"), (errno.EACCES, "choose")],
)
def test_errors_of_the_disk_are_one_line(number: int, words: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=words) as error, folders.os_errors(tmp_path):
        raise OSError(number, os.strerror(number))
    assert "\n" not in str(error.value)


def test_json_is_readable_and_checked(tmp_path: Path) -> None:
    assert folders.to_json({"a": "é\ud800"}) == '{\n "a": "é\\ud800"\n}\n'.encode()
    contents = {"good.json": b'{"a": 1}', "list.json": b"[1]", "torn.json": b'{"a"'}
    folders.write_folder(tmp_path / "x", "model", contents)
    assert folders.read_json(tmp_path / "x/good.json") == folders.peek(tmp_path / "x/good.json") == {"a": 1}
    for name in ("list.json", "torn.json"):
        with pytest.raises(CheckpointError, match="is damaged"):
            folders.read_json(tmp_path / "x" / name)
        assert folders.peek(tmp_path / "x" / name) == {}
    assert folders.peek(tmp_path / "absent") == {}


def test_content_that_cannot_be_used_is_damage_and_our_own_errors_stay(tmp_path: Path) -> None:
    unusable = pytest.raises(CheckpointError, match=r"is damaged, or of another version \(KeyError: 'x'\)")
    with unusable, folders.reporting_damage(tmp_path):
        raise KeyError("x")
    with pytest.raises(UserError, match="^mine$"), folders.reporting_damage(tmp_path):
        raise UserError("mine")


def test_a_lock_keeps_other_writers_out_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    assert not folders.is_locked(tmp_path)
    with folders.locked(tmp_path):
        assert folders.is_locked(tmp_path)
        with pytest.raises(UserError, match="is being written by another process"), folders.locked(tmp_path):
            pass
        assert 0.5 < sum(pauses) < 1.5
    assert not folders.is_locked(tmp_path)
    pauses.clear()
    with folders.locked(tmp_path):
        assert pauses == []


def test_a_lock_that_ends_in_time_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = folders.locked(tmp_path)
    first.__enter__()
    monkeypatch.setattr("time.sleep", lambda _: first.__exit__(None, None, None))
    with folders.locked(tmp_path):
        assert folders.is_locked(tmp_path)


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with folders.one_writer(tmp_path), (tmp_path / "x").open("wb"):
        descriptor = os.open(tmp_path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # free again
    os.close(descriptor)


def test_where_the_system_has_no_locks_folders_are_still_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "fcntl", None)
    with folders.locked(tmp_path):
        assert folders.is_locked(tmp_path) is False
    folders.write_folder(tmp_path / "x", "model", {"a": b"1"})
    assert folders.read_bytes(tmp_path / "x/a") == b"1"
    assert not (tmp_path / ".lock").exists()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted in /proc")
def test_writing_leaves_no_open_files(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    folders.write_folder(tmp_path / "x", "model", {"a": b"1"})
    folders.add_files(tmp_path / "x", {"b": b"2"})
    with folders.locked(tmp_path):
        assert folders.is_locked(tmp_path) is True
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_files_are_on_the_disk_before_they_get_their_name_and_the_name_is_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[object] = []

    def watch(descriptor: int) -> None:
        status = os.fstat(descriptor)
        synced.append("folder" if stat.S_ISDIR(status.st_mode) else status.st_size)

    monkeypatch.setattr(os, "fsync", watch)
    folders.write_bytes(tmp_path / "a", b"12345")
    assert synced == [5, "folder"]
    synced.clear()
    folders.write_folder(tmp_path / "x", "model", {"a": b"123"})
    assert synced == [3, (tmp_path / "x" / MANIFEST).stat().st_size, "folder"]


def test_a_manifest_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        Manifest.find(tmp_path)
