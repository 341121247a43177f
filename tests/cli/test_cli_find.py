"""`attnlab corpus find`: the lines about a name, or the most similar names."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from verbs import call


@pytest.fixture
def wiki(tmp_path: Path) -> str:
    lines = [
        "Ann Lee. Lee was born in York .",
        "Ann Lee. The other [bold]Ann[/bold] came from Bath .",
        "Bo Ek. Ek left .",
    ]
    (tmp_path / "wiki.txt").write_text("\n".join(lines), encoding="utf-8")
    return str(tmp_path / "wiki.txt")


def test_the_lines_about_a_name(wiki: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("corpus", "find", " Ann Lee ", "--corpus", wiki) == 0
    lines = "Ann Lee. Lee was born in York .\nAnn Lee. The other [bold]Ann[/bold] came from Bath .\n"
    assert capsys.readouterr() == (lines, "")


def test_the_names_most_like_one_that_is_not_there(wiki: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("corpus", "find", "Anne Lee", "--corpus", wiki, "--n", "1") == 0
    assert capsys.readouterr().out == "no line is about 'Anne Lee'; the most similar names:\n   93 %  Ann Lee\n"
    assert call("corpus", "find", "Qqqq", "--corpus", wiki) == 0
    assert capsys.readouterr().out == "no line is about 'Qqqq' or a similar name\n"


def test_a_huge_number_of_names_takes_no_memory(wiki: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("corpus", "find", "Ann Leh", "--corpus", wiki, "--n", "2147483647") == 0
    assert "ann lee" in capsys.readouterr().out.lower()


def test_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("corpus", "find", "Cody Allen", "--corpus", "people:300", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["name"], shown["corpus"], shown["nearest"]) == ("Cody Allen", "people:300", [])
    assert [line["number"] for line in shown["lines"]] == [3]
    assert call("corpus", "find", "Cody Alen", "--corpus", "people:300", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["lines"] == []
    assert shown["nearest"][0]["name"] == "Cody Allen"
    assert 0.9 < shown["nearest"][0]["similarity"] < 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Ann", "--corpus", "no.txt"], "no.txt does not exist"),
        (["Ann", "--corpus", "poeple"], "did you mean people"),
        (["Ann", "--n", "0"], "--n must be at least 1"),
        ([" "], "the name is empty"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("corpus", "find", *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_neither_help_nor_the_verb_needs_torch() -> None:
    program = (
        "import sys, attnlab.cli; assert 'rapidfuzz' not in sys.modules;"
        "attnlab.cli.main(['corpus', 'find', 'Cody Allen', '--corpus', 'people:60']); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
