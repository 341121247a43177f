"""What `--help` of every command looks like, and that the promised commands parse."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from cyclopts import App
from rich.console import Console

from attnlab.cli import app
from attnlab.cli.common import respell
from attnlab.cli.studies import with_study
from verbs import call


def commands(group: App = app, *names: str) -> Iterator[tuple[str, ...]]:
    yield names
    for name in group:
        if not name.startswith("-"):
            yield from commands(group[name], *names, name)


COMMANDS = list(commands())


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_help_is_readable(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app, "console", Console(width=100))
    assert call(*names, "--help") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Usage: attnlab")
    assert max(map(len, lines)) <= 100
    assert [line for line in lines if line.endswith(" ")] == []  # no text was wrapped
    rows = [line.strip("│").rstrip() for line in lines if line.startswith("│")]
    starts = re.compile(r" (\* )? *(--?[a-z]|[A-Z_]+ |[a-z][a-z-]*  )")
    assert [row for row in rows if not starts.match(row)] == []  # one line per option and command
    for row in rows:
        said = re.split(r" {2,}", row.lstrip(" *"), maxsplit=1)[1]
        said = re.sub(r"( \[(required|default|choices|env var)\b[^\]]*\])+$", "", said)
        assert said[0].isupper() or not said[0].isalpha(), row
        assert said.endswith("."), row


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_options_are_spelled_with_hyphens_and_described(names: tuple[str, ...]) -> None:
    command = app
    for name in names:
        command = command[name]
    if command.default_command is None:
        return
    for argument in command.assemble_argument_collection():
        if argument.show and argument.index is None:
            assert argument.parameter.help, argument.names
            assert not any("_" in name for name in argument.names)


def parsed(*arguments: str) -> tuple[str, dict[str, Any]]:
    function, bound, _ = app.parse_args(with_study(respell(arguments)), exit_on_error=False, print_error=False)
    return function.__name__, dict(bound.arguments)


FILES = ("--corpus", "c.txt", "--facts", "f.tsv", "--exam", "e.tsv")


def test_run_without_a_name_is_recall() -> None:
    assert parsed("run") == parsed("run", "recall")
    assert parsed("run", "--quick") == parsed("run", "recall", "--quick")
    assert parsed("run", "--quick")[1]["plan"].quick
    assert parsed("run", *FILES) == parsed("run", "recall", *FILES)


@pytest.mark.parametrize(
    "command",
    [
        "run recall --corpus c --facts f --exam e --out o --track assisted --held-out 3 --seed 4",
        "run trust --max-risk 0.2 --quick",
        "run why --forms 1,4 --exposures 8 --seeds 3 --workers 2",
        "run additive-vs-dot --corpus c --dev d --quick",
        "run shared-projections --seeds 3,4",
        "run masking --quick",
        "run efficient --facts f --exam e",
        "design select --keys 1,0;0,1 --values 1,0;0,1 --index 0 --json",
        "design blend --keys 1,0;0,1 --values 1,0;0,1 --weights .3,.7 --json",
        "design reach --keys 1,0;0,1 --values 1,0;0,1 --target .5,.5 --json",
        "audit dot --json",
        "audit mine.py:Mine --json",
        "check sheet.toml answers.toml",
        "params mingpt",
    ],
)
def test_promised_commands_parse(command: str) -> None:
    parsed(*command.split())


@pytest.mark.parametrize(
    ("other", "shown"),
    [
        ("run --held_out 3", "run --held-out 3"),
        ("run trust --max_risk=0.2", "run trust --max-risk=0.2"),
        ("generate r --max_new_tokens 5 --top_k 3", "generate r --max-new-tokens 5 --top-k 3"),
        ("pretrain --model.n-head 4", "pretrain --model.n_head 4"),
        ("classify --batch_size 3", "classify --batch-size 3"),
        ("resume r --trust_code", "resume r --trust-code"),
        (
            "design edit-key --keys 1 --values 1 --query -1 --index 0",
            "design edit-key --keys=1 --values=1 --query=-1 --index=0",
        ),
    ],
)
def test_other_spellings_are_accepted(other: str, shown: str) -> None:
    assert parsed(*other.split()) == parsed(*shown.split())


def test_what_follows_the_end_of_options_stays_as_it_is() -> None:
    assert respell(["ask", "--max_risk=1", "--", "r", "--a_b"]) == ["ask", "--max-risk=1", "--", "r", "--a_b"]
    assert respell(["pretrain", "--model.options.my-file.py:M.a_b", "1"])[1] == "--model.options.my-file.py:M.a_b"


def test_settings_are_listed_in_one_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("pretrain", "--help") == 0
    shown = capsys.readouterr().out
    assert shown.count("--model.") == 2  # the hint, and what --mechanism is short for
    assert "`attnlab settings` lists them" in shown
