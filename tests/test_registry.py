from __future__ import annotations

from pathlib import Path

import pytest

from attnlab import registry
from attnlab.errors import ConfigError

SOURCE = """
from attnlab.registry import mechanism
from torch import nn

@mechanism("user_made", cost="n")
class Mine(nn.Module):
    '''Does nothing much.'''
    def __init__(self, n_embd: int, n_head: int, block_size: int, *, window: int = 8, causal: bool = True) -> None:
        super().__init__()
        self.window = window

class Plain(nn.Module):
    def __init__(self, n_embd: int, n_head: int, block_size: int) -> None:
        super().__init__()

    def forward(self, x):
        return x

class Odd:
    def __init__(self, config):
        self.config = config

class Silent(nn.Module):
    def __init__(self, config):
        super().__init__()
"""


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def test_a_class_in_a_users_file_is_found_with_its_card(user_file: Path) -> None:
    entry = registry.find("mechanism", f"{user_file}:Mine")
    assert (entry.name, entry.cost, entry.card) == ("user_made", "n", "Does nothing much.")
    assert list(entry.options) == ["window"]
    assert registry.find("mechanism", f"{user_file}:Plain").options == {}


def test_options_are_checked_and_texts_become_numbers(user_file: Path) -> None:
    entry = registry.find("mechanism", f"{user_file}:Mine")
    assert entry.check({"window": "16"}) == {"window": 16}
    with pytest.raises(ConfigError, match="did you mean window"):
        entry.check({"widnow": 16})
    with pytest.raises(ConfigError, match="window must be a whole number, not 'wide'"):
        entry.check({"window": "wide"})
    with pytest.raises(ConfigError, match="unknown option of mechanism user_made 'causal'"):
        entry.check({"causal": False})


def test_errors_of_reference(user_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Odd is not an nn.Module: let it inherit"):
        registry.find("mechanism", f"{user_file}:Odd")
    with pytest.raises(ConfigError, match=r"Silent has no forward\(x\)"):
        registry.find("mechanism", f"{user_file}:Silent")
    with pytest.raises(ConfigError, match="no class 'Absent'"):
        registry.find("mechanism", f"{user_file}:Absent")
    with pytest.raises(ConfigError, match="no such file"):
        registry.find("mechanism", f"{tmp_path / 'absent.py'}:Mine")
    with pytest.raises(ConfigError, match="did you mean dot"):
        registry.find("mechanism", "dto")


def test_the_same_name_in_two_modules_is_refused() -> None:
    class Dot:
        pass

    registry.discover("mechanism")
    with pytest.raises(ConfigError, match="registered twice"):
        registry.mechanism("dot")(Dot)
