import pytest

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
