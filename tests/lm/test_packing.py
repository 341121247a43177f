"""Several documents in one row: each as if it were alone, whatever the mechanism."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnlab import ops, registry
from attnlab.config import resolve
from attnlab.errors import ConfigError
from attnlab.lm.model import LanguageModel, Packing
from attnlab.measure.audit import questions
from attnlab.measure.audit.leaks import worst
from attnlab.measure.audit.subject import Subject

LENGTHS = [[5, 1, 9, 1, 8], [24], [3, 21]]
DOCUMENTS = torch.tensor([[number for number, size in enumerate(row) for _ in range(size)] for row in LENGTHS])
SOUND = [
    name
    for name in registry.names("mechanism")
    if (entry := registry.find("mechanism", name)).causal and not entry.defect
]


def model_with(mechanism: str, positions: str = "learned") -> LanguageModel:
    """A small model whose positions and outputs are not zero."""
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 24, "vocab_size": 50}
    given: dict[str, Any] = {"mechanism": mechanism, "positions": positions, "zero_init": False, **sizes}
    model = LanguageModel(replace(resolve("small").model, **given)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def one_by_one(model: LanguageModel, ids: Tensor) -> Tensor:
    """The reference: every document in a call of its own."""
    rows = [[model.hidden(part) for part in row[None].split(sizes, 1)] for row, sizes in zip(ids, LENGTHS, strict=True)]
    return torch.cat([torch.cat(row, dim=1) for row in rows])


@pytest.mark.parametrize("name", SOUND)
def test_a_packed_document_is_as_alone(name: str) -> None:
    for positions in ("learned", "rotary") if registry.find("mechanism", name).accepts("rotary") else ("learned",):
        model, ids = model_with(name, positions), torch.randint(50, DOCUMENTS.shape)
        packed, alone = model(ids, documents=DOCUMENTS), model.head(one_by_one(model, ids))
        assert torch.allclose(packed, alone, atol=1e-4)
        learned = [
            parameter for part, parameter in model.named_parameters() if "indexer" not in part
        ]  # taught per call
        of_packed, of_alone = (torch.autograd.grad(one.square().mean(), learned) for one in (packed, alone))
        for one, other in zip(of_packed, of_alone, strict=True):
            assert torch.allclose(one, other, atol=1e-4 * other.abs().max().item())


def test_dot_is_attention_under_a_block_diagonal_mask() -> None:
    module = registry.find("mechanism", "dot").build(16, 2, 24, rotary=True)
    x = torch.randn(3, 24, 16)
    q, k, v = module.heads(x)  # rotary scores depend on distances only
    mask = (DOCUMENTS[:, :, None] == DOCUMENTS[:, None]).tril()[:, None]
    z = ops.attention_pattern(q, k, mask) @ v
    packed = Packing.of(DOCUMENTS).attend(lambda rows, _: module(rows), x)
    assert torch.allclose(packed, module.finish(z, x), atol=1e-6)


def test_the_filler_is_at_most_half_and_hidden_where_there_is_padding() -> None:
    packing, x = Packing.of(DOCUMENTS), torch.randn(3, 24, 16)
    padding = torch.zeros(3, 24, dtype=torch.bool)
    padding[2, 20:] = True
    seen = []

    def attention(rows: Tensor, hidden: Tensor | None) -> Tensor:
        assert hidden is not None
        seen.append((rows, hidden))
        return rows

    assert torch.equal(packing.attend(attention, x, padding), x)
    assert sum(rows[..., 0].numel() for rows, _ in seen) < 2 * x[..., 0].numel()
    assert sum(int((~hidden).sum()) for _, hidden in seen) == int((~padding).sum())
    assert packing.positions[0].tolist() == [place for size in LENGTHS[0] for place in range(size)]


def test_what_cannot_be_packed_is_refused() -> None:
    sizes = {"n_embd": 16, "n_head": 2, "block_size": 16, "bottleneck": 4}
    ids = torch.zeros(1, 8, dtype=torch.long)
    with pytest.raises(ConfigError, match="bottleneck 0"):
        LanguageModel(replace(resolve("mingpt-perceiver").model, **sizes)).hidden(ids, documents=ids)
    model = model_with("dot")
    with pytest.raises(ValueError, match="without packing"):
        model.hidden(ids, caches=model.new_caches(), documents=ids)


class Alone(nn.Module):
    """A mechanism as simple as it may be: the mean of all earlier tokens, and with `mixing` of all rows."""

    def __init__(self, mixing: bool = False) -> None:
        super().__init__()
        self.mixing = mixing

    def forward(self, x: Tensor) -> Tensor:
        mean = x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
        return mean + x.mean() if self.mixing else mean


class Deaf(LanguageModel):
    """A model that ignores where documents begin."""

    def _pack(self, documents: Tensor | None, caches: Any) -> None:
        return None


def test_the_audit_answers_for_packed_texts() -> None:
    def found(call: nn.Module, width: int, ids: bool) -> tuple[float, str]:
        finding = worst(questions.packing(Subject(call, width, reads_ids=ids), [12]))
        return finding.value, finding.says

    good = model_with("dot", "rotary")
    assert found(good, 50, True)[0] < 1e-6
    bad = Deaf(good.config)
    bad.load_state_dict(good.state_dict())
    size, says = found(bad, 50, True)
    assert size > 1e-3
    assert "packed into its row" in says
    assert found(Alone(), 16, False)[0] < 1e-6
    assert found(Alone(mixing=True), 16, False)[0] > 1e-3
