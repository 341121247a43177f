"""Kernels are built once; where they cannot be, one line says why and attention is the same in plain torch."""

from __future__ import annotations

import os
import pwd
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from attnlab import ops
from attnlab.kernels import build
from attnlab.kernels.additive import additive_attention

GOOD = 'extern "C" { int answer() { return 42; } int probe() { return 0; } }'
DYING = '#include <csignal>\n#include <cstdlib>\nextern "C" int probe() { %s; return 0; }'


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of libraries in an empty cache, and nothing remembered from before or for later."""
    for name in ("ATTNLAB_KERNELS", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    build.load_file.cache_clear()
    yield tmp_path / "cache" / "kernels"
    build.load_file.cache_clear()


@pytest.fixture
def compiler() -> str:
    try:
        return shlex.join(build.find_compiler())
    except build.KernelError:
        pytest.skip("there is no C++ compiler")


class Counter:
    """A compiler that writes down what it is asked to compile."""

    def __init__(self, folder: Path, compiler: str, before: str = "") -> None:
        self.path, self.log = folder / "counting", folder / "asked"
        asked = f'case "$*" in *--version*) ;; *)\necho "$*" >> {self.log}\n{before}\n;; esac'
        self.path.write_text(f'#!/bin/sh\n{asked}\nexec {compiler} "$@"\n', encoding="utf-8")
        self.path.chmod(0o755)

    def calls(self) -> list[str]:
        return self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []


@pytest.fixture
def counter(tmp_path: Path, compiler: str, monkeypatch: pytest.MonkeyPatch) -> Counter:
    counting = Counter(tmp_path, compiler)
    monkeypatch.setenv("CXX", str(counting.path))
    return counting


def write(folder: Path, text: str, name: str = "tiny") -> Path:
    source = folder / f"{name}.cpp"
    source.write_text(text, encoding="utf-8")
    return source


def asking(source: Path) -> list[str]:
    """A process that loads a library, says where it is and what it answers."""
    lines = (
        "from attnlab.kernels import build",
        "from pathlib import Path",
        f"library = build.load_file(Path({str(source)!r}))",
    )
    return [sys.executable, "-c", "\n".join((*lines, "print(library._name, library.answer())"))]


def anew(source: Path) -> bool:
    """Whether a library is found as by another process."""
    build.load_file.cache_clear()
    return build.load_file(source) is not None


def assert_attention_is_right(plain: bool = True) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 2, 2, 19, 5)
    w, v = torch.randn(5), torch.randn(2, 2, 19, 3)
    padding = torch.rand(2, 19) < 0.3
    inputs = [one.requires_grad_() for one in (a, b, w, v)]
    scores = (w * torch.tanh(a[:, :, :, None] + b[:, :, None])).sum(-1)
    expected = ops.masked_softmax(scores, ops.visible(19, 19, padding, True)) @ v
    out = additive_attention(a, b, w, v, padding, True)
    assert out.grad_fn.compiled is not plain  # type: ignore[union-attr]
    assert torch.allclose(out, expected, atol=1e-5)
    for one, other in zip(
        torch.autograd.grad(out.square().sum(), inputs),
        torch.autograd.grad(expected.square().sum(), inputs),
        strict=True,
    ):
        assert torch.allclose(one, other, atol=1e-4)


def test_a_library_is_built_once_and_found_again(
    tmp_path: Path, cache: Path, counter: Counter, capfd: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path, GOOD)
    library = build.load_file(source)
    assert library is not None
    assert library.answer() == 42
    assert build.load_file(source) is library
    assert len(counter.calls()) == 1
    assert build.NATIVE in counter.calls()[0]
    said = capfd.readouterr().err.splitlines()
    assert said == ["attnlab: compiling the tiny kernel for this processor, once; it takes some seconds"]
    assert anew(source)
    other = subprocess.run(asking(source), capture_output=True, text=True, check=True)
    assert other.stdout.endswith(".so 42\n")
    assert other.stderr == ""
    assert len(counter.calls()) == 1
    assert [one.suffix for one in cache.iterdir()] == [".so"]


def test_what_a_library_depends_on_gives_it_another_name(
    tmp_path: Path, cache: Path, counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path, GOOD)
    assert anew(source)
    write(tmp_path, GOOD + "\n// changed")
    assert anew(source)
    monkeypatch.setattr(build, "processor", lambda: "another")
    assert anew(source)
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-DOTHER"))
    assert anew(source)
    monkeypatch.setenv("CXX", f"{counter.path} -DMINE")
    assert anew(source)
    assert len(counter.calls()) == len([*cache.iterdir()]) == 5
    assert "-DMINE" in counter.calls()[-1]


def test_the_kernel_of_this_folder_is_built_and_used(
    cache: Path, compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "FLAGS", tuple(flag.replace("-O3", "-O0") for flag in build.FLAGS))  # in half the time
    assert build.load("additive") is not None
    assert [one.suffix for one in cache.iterdir()] == [".so"]
    assert_attention_is_right(plain=False)


def test_kernels_are_turned_off_in_silence(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATTNLAB_KERNELS", "0")
    assert build.load("additive") is None
    assert_attention_is_right()
    assert capfd.readouterr().err == ""
    assert not cache.exists()


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (None, "there is no C++ compiler: install g++ or clang++, or set ATTNLAB_KERNELS=0 to stop this message"),
        ("no-such-compiler -O1", "CXX names no-such-compiler, which is not there: set it to a C++ compiler"),
    ],
)
def test_without_a_compiler_one_line_says_so_and_attention_is_right(
    asked: str | None, reason: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CXX", asked or "")
    assert_attention_is_right()
    assert build.load("additive") is None
    assert_attention_is_right()
    said = capfd.readouterr().err.splitlines()
    assert said == [f"attnlab: the additive kernel runs in plain torch, the same but slower: {reason}"]


def test_of_many_processes_only_the_first_speaks(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("RANK", "1")
    assert build.load("additive") is None
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("this is not C++", "it does not compile: "),
        ('extern "C" int probe() { return 3; }', "its probe failed: exit code 3"),
        ('extern "C" int answer() { return 42; }', "its probe failed: "),
        (DYING % "std::raise(SIGILL)", "its probe failed: killed by SIGILL"),
        (DYING % "std::abort()", "its probe failed: killed by SIGABRT"),
    ],
    ids=["broken", "wrong", "without", "illegal", "abort"],
)
def test_a_failure_is_remembered_until_its_note_is_removed(
    text: str, reason: str, tmp_path: Path, cache: Path, counter: Counter, capfd: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path, text)
    assert build.load_file(source) is None
    assert len(counter.calls()) == 2  # for this processor, then for any of its kind
    [note] = cache.iterdir()
    assert note.suffix == ".failed"
    assert note.read_text(encoding="utf-8").startswith(reason)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2
    assert f"the tiny kernel runs in plain torch, the same but slower: {reason}" in lines[1]

    assert not anew(source)
    assert len(counter.calls()) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert reason in line
    assert f"(to try again, remove {note})" in line

    note.unlink()
    assert not anew(source)
    assert len(counter.calls()) == 4


def test_the_reason_is_the_compilers_error_and_not_what_surrounds_it(tmp_path: Path, compiler: str) -> None:
    source = write(tmp_path, "int good;\nint f() { return missing_name; }\n")
    with pytest.raises(build.KernelError, match="it does not compile: .*error.*missing_name"):
        build.find_library(source)


def test_where_this_processor_is_not_understood_any_of_its_kind_will_do(
    tmp_path: Path, cache: Path, compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    picky = Counter(tmp_path, compiler, f'case "$*" in *{build.NATIVE}*) echo "error: native?" >&2; exit 1;; esac')
    monkeypatch.setenv("CXX", str(picky.path))
    library = build.load_file(write(tmp_path, GOOD))
    assert library is not None
    assert library.answer() == 42
    assert [build.NATIVE in call for call in picky.calls()] == [True, False]
    assert [one.suffix for one in cache.iterdir()] == [".so"]


@pytest.mark.parametrize("kind", ["a file in the way", "a name too long", "a closed folder"])
def test_a_cache_that_cannot_be_written_is_replaced_for_this_process(
    kind: str, tmp_path: Path, counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 300 if kind == "a name too long" else "closed") / "cache"
    if kind == "a file in the way":
        folder.parent.write_text("", encoding="utf-8")
    if kind == "a closed folder":
        if os.geteuid() == 0:
            pytest.skip("no folder is closed to root")
        folder.parent.mkdir(mode=0)
    monkeypatch.setenv("ATTNLAB_CACHE", str(folder))
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    library = build.load_file(write(tmp_path, GOOD))
    assert library is not None
    assert library.answer() == 42
    assert len(counter.calls()) == 1
    assert len([*tmp_path.glob("attnlab-*/tiny-*.so")]) == 1


def test_a_private_folder_goes_with_its_process(tmp_path: Path, compiler: str) -> None:
    (tmp_path / "cache").write_text("", encoding="utf-8")
    source, private = write(tmp_path, GOOD), tmp_path / "temporary"
    private.mkdir()
    environment = {**os.environ, "TMPDIR": str(private)}
    done = subprocess.run(asking(source), capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.startswith(str(private))
    assert not [*private.iterdir()]


def test_the_cache_may_be_named_from_here_or_from_home(
    tmp_path: Path, compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path, GOOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in (".", "~/kept"):
        monkeypatch.setenv("ATTNLAB_CACHE", name)
        assert anew(source)
    assert len([*tmp_path.glob("kernels/tiny-*.so")]) == len([*tmp_path.glob("home/kept/kernels/tiny-*.so")]) == 1
    monkeypatch.delenv("ATTNLAB_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert build.cache_folder() == tmp_path / "home" / ".cache" / "attnlab"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert build.cache_folder() == tmp_path / "elsewhere" / "attnlab"


def test_without_a_home_the_line_says_what_to_set(
    compiler: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def nobody(_: int) -> None:
        raise KeyError

    for name in ("HOME", "ATTNLAB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert build.load("additive") is None
    [line] = capfd.readouterr().err.splitlines()
    assert line.endswith("there is no home folder: set ATTNLAB_CACHE to a folder")


def test_two_processes_may_build_at_once(
    tmp_path: Path, cache: Path, compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Neither compiles before both have been asked to.
    waiting = f"n=0; while [ $(wc -l < {tmp_path / 'asked'}) -lt 2 ] && [ $n -lt 500 ]; do n=$((n+1)); sleep 0.02; done"
    meeting = Counter(tmp_path, compiler, waiting)
    monkeypatch.setenv("CXX", str(meeting.path))
    source = write(tmp_path, GOOD)
    both = [subprocess.Popen(asking(source), stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert all(one.communicate(timeout=60)[0].endswith(".so 42\n") for one in both)
    assert len(meeting.calls()) == 2
    assert [one.suffix for one in cache.iterdir()] == [".so"]


def test_who_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PATIENCE", 0.1)
    with pytest.raises(build.KernelError, match="it sleeps: .*timed out"):
        build.run([sys.executable, "-c", "import time; time.sleep(30)"], "it sleeps")


def test_a_header_is_part_of_what_is_compiled(tmp_path: Path, compiler: str) -> None:
    source, header = tmp_path / "one.cpp", tmp_path / "one.h"
    source.write_text('#include "one.h"\n')
    header.write_text("#define ONE 1\n")
    before = build.fingerprint(source, (compiler,))
    header.write_text("#define ONE 2\n")
    assert build.fingerprint(source, (compiler,)) != before


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def open_to_others(path: Path) -> None:
    path.chmod(0o722)


def link(path: Path) -> None:
    path.symlink_to(path.rename(path.with_suffix(".moved")))


@pytest.mark.parametrize("damage", [truncate, flip, open_to_others, link])
def test_a_library_that_is_not_as_it_was_built_is_built_again_in_silence(
    damage: Callable[[Path], None], tmp_path: Path, counter: Counter, capfd: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path, GOOD)
    path = build.find_library(source)
    built = path.read_bytes()
    capfd.readouterr()
    damage(path)
    assert build.find_library(source) == path
    assert capfd.readouterr().err == ""
    assert path.read_bytes() == built
    assert build.is_intact(path)
    assert len(counter.calls()) == 2


def test_a_folder_that_others_may_write_to_is_emptied(tmp_path: Path, cache: Path, compiler: str) -> None:
    source = write(tmp_path, GOOD)
    path = build.find_library(source)
    cache.chmod(0o777)
    (cache / "foreign").touch()
    assert build.find_library(source) == path
    assert cache.stat().st_mode & 0o777 == 0o700
    assert [*cache.iterdir()] == [path]


def test_a_folder_of_somebody_else_is_not_used(
    tmp_path: Path, cache: Path, compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build.find_library(write(tmp_path, GOOD))
    moved = cache.rename(tmp_path / "moved")
    cache.symlink_to(moved)
    assert build.private_folder() != cache
    with monkeypatch.context() as patch:
        patch.setattr(build.os, "geteuid", lambda: 12345)
        assert not build.is_intact(moved / path.name)
        assert build.private_folder() != cache
    assert build.is_intact(moved / path.name)


def test_a_library_whose_numbers_differ_from_plain_torch_is_not_used(
    tmp_path: Path, cache: Path, compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "differing.py").write_text("def matches_plain(): return False", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(build.KernelError, match="its probe failed: its numbers differ from those of plain torch"):
        build.find_library(write(tmp_path, GOOD), "differing")
    assert [one.suffix for one in cache.iterdir()] == [".failed"]
