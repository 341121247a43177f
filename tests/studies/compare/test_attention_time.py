"""The time of attention alone: which paths are measured, and what they keep. Times themselves are not tested."""

from __future__ import annotations

from pathlib import Path

import torch

from attnlab.config import ModelConfig
from attnlab.studies.compare.attention_time import attention_times


def model(mechanism: str, **options: dict[str, int]) -> ModelConfig:
    return ModelConfig(
        n_layer=1, n_head=2, n_embd=16, block_size=64, vocab_size=10, mechanism=mechanism, options=options
    )


def test_written_out_additive_attention_keeps_a_number_per_pair_and_channel() -> None:
    threads = torch.get_num_threads()
    names = {"plain": model("dot"), "added": model("additive"), "near": model("sliding", sliding={"window": 4})}
    found = {(one.name, one.path): one for one in attention_times(names, texts=4, tokens=24)}
    assert {("plain", "fast"), ("added", "fast"), ("added", "reference"), ("near", "fast")} <= set(found)
    assert found["plain", "fast"].ratio == found["plain", "fast"].low == 1
    assert all(one.low <= one.ratio <= one.high and one.seconds > 0 for one in found.values())
    pairs = 4 * 2 * 24 * 24 * 4  # bytes of one number per text, head and pair
    assert found["added", "reference"].kept >= 8 * pairs  # a head has eight channels
    assert found["added", "fast"].kept < 8 * pairs
    assert found["plain", "fast"].kept < pairs
    assert torch.get_num_threads() == threads


def test_mechanisms_that_take_no_queries_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "class Own(nn.Module):\n"
        '    """Nothing."""\n'
        "    def __init__(self, n_embd, n_head, block_size):\n"
        "        super().__init__()\n"
        "    def forward(self, x):\n"
        "        return x\n"
    )
    own = model(f"{tmp_path / 'mine.py'}:Own")
    assert [one.name for one in attention_times({"dot": model("dot"), "own": own}, 1, 8)] == ["dot", "dot"]
    assert attention_times({"own": own, "dot": model("dot")}, 1, 8) == []
