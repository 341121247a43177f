"""What reaches a terminal, and what becomes of errors that nobody expected."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from attnlab.cli import common
from attnlab.terminal import Terminal, printable
from verbs import call

HOSTILE = "a\x1b[2J\x1b]0;title\x07b\x9b31m\u202ec\ud800"


def test_control_characters_are_written_out() -> None:
    assert printable("a\x1b[2J\tb\nc\x9b\u202e\u2066é\udcff") == "a\\x1b[2J\tb\nc\\x9b\\u202e\\u2066é\\udcff"


def test_zero_columns_are_as_many_as_without_the_setting() -> None:
    program = "from attnlab.terminal import Terminal; Terminal().print('twelve words')"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "COLUMNS": "0"}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "twelve words\n"


def test_the_console_escapes_texts_and_keeps_its_own_styles() -> None:
    stream = io.StringIO()
    screen = Terminal(file=stream, force_terminal=True, color_system="standard", width=200)
    table = Table("name")
    table.add_row(HOSTILE)
    table.add_row(Text(HOSTILE, "red"))
    screen.print(table)
    screen.print(HOSTILE)
    written = stream.getvalue()
    assert "\x1b[31m" in written
    assert "\x1b[2J" not in written
    assert "\\x1b[2J" in written
    assert not set("\x07\x9b\u202e\ud800") & set(written)


def test_names_texts_and_messages_are_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    hostile = HOSTILE.replace("\ud800", "")
    (tmp_path / "runs" / hostile).mkdir(parents=True)
    (tmp_path / "lines.txt").write_text(f"Ann{hostile} was born in Rome.\n" * 5)
    assert call("runs") == 0
    assert call("corpus", "show", "--corpus", "lines.txt", "--n", "2") == 0
    assert call("settings", hostile) == 2
    shown = capsys.readouterr()
    assert "\\x1b" in shown.out
    assert "\\x1b" in shown.err
    assert not set("\x1b\x07\x9b\u202e") & set(shown.out + shown.err)
    assert call("runs", "--json") == 0
    shown = capsys.readouterr()
    assert not set("\x1b\x07\x9b\u202e") & set(shown.out)
    assert json.loads(shown.out)[0]["name"] == hostile


@pytest.mark.parametrize("error", [KeyError("\x1b[2J"), MemoryError(), RecursionError("too deep")])
def test_unexpected_errors_end_in_one_line(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def break_down(*_: object) -> None:
        raise error

    monkeypatch.setattr(common, "refuse_unreadable", break_down)
    assert call("presets") == 70
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "\x1b" not in said
    (saved,) = (tmp_path / "attnlab" / "crashes").iterdir()
    assert str(saved) in said
    assert "break_down" in saved.read_text()
    assert saved.stat().st_mode & 0o777 == 0o600


def test_arguments_that_are_not_text_are_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "attnlab", "settings", b"\xff"]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"is not UTF-8" in done.stderr


def test_what_the_system_refuses_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("runs", "n" * 5000) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_message_is_one_short_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("settings", "a\nb" + "n" * 9000) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert len(said) < 2100


def test_errors_in_a_users_code_are_said_of_that_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "bad.py").write_text("def X(n_embd, n_head, block_size):\n    return 1 / 0\n")
    (tmp_path / "three.py").write_text("def X(n_embd, n_head, block_size):\n    return 3\n")
    assert call("mechanisms", "show", f"{tmp_path}/bad.py:X") == 2
    said = capsys.readouterr().err
    assert "cannot be built as Mechanism(n_embd, n_head, block_size): ZeroDivisionError" in said
    assert f"({tmp_path}/bad.py, line 2)" in said
    assert said.count("\n") == 1
    for verb in (("mechanisms", "show"), ("bench", "--lengths=16"), ("params", "mingpt", "--model.mechanism")):
        assert call(*verb, f"{tmp_path}/three.py:X") == 2
        assert "must build an nn.Module, not int" in capsys.readouterr().err
