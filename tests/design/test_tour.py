import io

import pytest

from attnlab.design import commands
from attnlab.design.commands import stops, tour
from attnlab.errors import UserError


def test_every_part_has_a_step():
    assert [step.code for step in stops()] == [f"A{i}" for i in range(1, 13)]


@pytest.mark.parametrize("step", stops(), ids=lambda step: step.code)
def test_every_step_runs_the_commands_it_shows(capsys, step):
    tour(step=step.code)
    out = capsys.readouterr().out
    assert out.count("$ attnlab design") == len(step.commands)
    assert "undecided" not in out


def test_what_is_said_is_what_is_shown(capsys):
    tour(step="A9")
    assert capsys.readouterr().out.count("impossible") == 2


def test_an_unknown_step_is_a_mistake():
    with pytest.raises(UserError, match="did you mean"):
        tour(step="A13")


@pytest.mark.parametrize(("pressed", "shown"), [("\n\nq\n", 3), ("\n", 2), ("q\n", 1)])
def test_on_a_terminal_enter_shows_the_next_command_and_q_or_the_end_stops(capsys, monkeypatch, pressed, shown):
    keys = io.StringIO(pressed)
    monkeypatch.setattr(keys, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", keys)
    monkeypatch.setenv("FORCE_COLOR", "1")
    tour()
    out = capsys.readouterr().out
    assert out.count("$ attnlab design") == shown
    screens = out.split("\x1b[H")[1:]
    assert len(screens) == shown
    assert all("A1 " in screen or "A2 " in screen for screen in screens)


def test_all_is_printed_at_once_without_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(commands, "stops", lambda: stops()[:2])
    tour()
    out = capsys.readouterr().out
    assert out.count("$ attnlab design") == sum(len(step.commands) for step in stops()[:2])
    assert "Enter" not in out
