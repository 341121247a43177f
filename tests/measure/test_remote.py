"""Modules in another process compute what they compute here: outputs, gradients, random numbers, training."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from attnlab import registry, sandbox
from attnlab.errors import ConfigError
from attnlab.measure.audit import audit_mechanism
from attnlab.measure.remote import Array, Remote
from attnlab.supervisor import ChildError

CODE = '''
import torch
from torch import nn
from torch.nn import functional as F
from typing import Literal

class Mine(nn.Module):
    """A mean of the values so far."""

    def __init__(self, n_embd, n_head, block_size, *, kind: Literal["mean", "sum"] = "mean", dropout: float = 0.0):
        super().__init__()
        self.values, self.out = nn.Linear(n_embd, n_embd), nn.Linear(n_embd, n_embd, bias=False)
        self.scale = nn.Parameter(torch.ones(n_embd))
        self.register_buffer("steps", torch.arange(1.0, block_size + 1)[:, None])
        self.kind, self.drop, self.calls = kind, nn.Dropout(dropout), 0

    def forward(self, x, padding=None, cache=None):
        self.calls += 1
        v = self.values(x)
        if padding is not None:
            v = v.masked_fill(padding[:, -x.shape[1]:, None], 0)
        if cache is not None:
            cache.append(v)
            v = torch.cat(cache, 1)
        v = v.cumsum(1) / (self.steps[: v.shape[1]] if self.kind == "mean" else 1)
        return self.drop(self.out(self.scale * v[:, -x.shape[1]:]))

    def new_cache(self):
        return []

class Tied(Mine):
    shared = nn.Linear(16, 16)

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.values = self.shared

class Raises(Mine):
    def forward(self, x):
        raise LookupError("nothing here")

built = Mine(16, 2, 9)
'''
SIZES = (16, 2, 9)


@pytest.fixture(scope="module")
def remote() -> Iterator[Remote]:
    with Remote("mine.py", CODE.encode(), seconds=60, memory=10**9, sandbox=not sandbox.missing()) as opened:
        yield opened


@pytest.fixture(scope="module")
def original() -> type[nn.Module]:
    names: dict[str, type[nn.Module]] = {}
    exec(CODE, names)
    return names["Mine"]


def both(remote: Remote, original: type[nn.Module], **options: object) -> tuple[nn.Module, nn.Module]:
    """The same module there and here, with the same weights."""
    torch.manual_seed(3)
    there = remote.entry("Mine").make(SIZES, **options)
    torch.manual_seed(3)
    here = original(*SIZES, **options)
    for (name, first), (other, second) in zip(there.named_parameters(), here.named_parameters(), strict=True):
        assert name == f"original.{other}"
        assert torch.equal(first, second)
    return there, here


def test_outputs_gradients_and_random_numbers_are_equal(remote: Remote, original: type[nn.Module]) -> None:
    for module in (modules := both(remote, original, dropout=0.3)):
        module.train()
    x, gradient = torch.randn(2, 3, 7, 16)
    hidden = torch.arange(7).expand(3, 7) > 4
    results: list[list[Tensor]] = []
    for module in modules:
        torch.manual_seed(5)
        mine = x.clone().requires_grad_()
        outputs = [module(mine), module(mine, padding=hidden), module(mine)]
        total = sum((output * gradient).sum() for output in outputs)
        gradients = torch.autograd.grad(total, [mine, *module.parameters()])
        results.append([*(output.detach() for output in outputs), *gradients, torch.get_rng_state()])
    for there, here in zip(*results, strict=True):
        torch.testing.assert_close(there, here, rtol=0, atol=1e-6)
    assert not torch.equal(results[0][0], results[0][2])  # dropout is drawn anew


def test_modes_precision_copies_and_caches(remote: Remote, original: type[nn.Module]) -> None:
    there, here = both(remote, original, dropout=0.5)
    x = torch.randn(1, 6, 16)
    for change in (nn.Module.eval, nn.Module.double, copy.deepcopy, nn.Module.float):
        there, here = change(there), change(here)
        x = x.to(next(here.parameters()).dtype)
        assert torch.equal(there(x), here(x))
    with torch.no_grad():
        for module in (there, here):
            next(module.parameters()).mul_(2)  # weights that changed here are sent
    assert torch.equal(there(x), here(x))
    cache = there.new_cache()
    parts = [there(x[:, begin : begin + 2], cache=cache) for begin in (0, 2, 4)]
    torch.testing.assert_close(torch.cat(parts, 1), here(x))
    there.train().dropout = 0.0
    assert torch.equal(there(x), here(x))
    with torch.inference_mode():
        assert torch.equal(there(x), here(x))


def test_an_entry_is_that_of_the_class(remote: Remote, original: type[nn.Module]) -> None:
    entry, own = remote.entry("Mine"), registry.Entry("mechanism", "Mine", original)
    assert list(entry.options) == list(own.options) == ["kind"]
    assert entry.hints()["kind"] == own.hints()["kind"]
    assert entry.accepts("dropout")
    assert not entry.accepts("causal")
    with pytest.raises(ConfigError, match="^built is a module that was built; name its class$"):
        remote.entry("built")
    with pytest.raises(ConfigError, match="^mine.py has no class 'Other': choose from Mine, "):
        remote.entry("Other")


def test_the_verdicts_are_those_of_an_audit_here(remote: Remote, original: type[nn.Module]) -> None:
    entries = [remote.entry("Mine"), registry.Entry("mechanism", "Mine", original)]
    reports = []
    for entry in entries:
        registry.add(entry)
        reports.append(audit_mechanism("Mine", n_embd=16, n_head=2, length=9))
    assert reports[0] == reports[1]
    assert reports[0].verdict == "fail"  # padding counts as a value
    assert set(reports[0].faults) == {"padding"}
    registry.add(remote.entry("Tied"))
    assert "the same weights serve as" in audit_mechanism("Tied", n_embd=16, n_head=2, length=9).faults["tied"]


def test_errors_have_the_name_and_the_words_of_the_code(remote: Remote) -> None:
    module = remote.entry("Raises").make(SIZES)
    with pytest.raises(Exception, match="^nothing here$") as caught:
        module(torch.zeros(1, 2, 16))
    assert type(caught.value).__name__ == "LookupError"
    assert not remote.ended


@pytest.mark.parametrize(
    "array",
    [Array("float32", (2, 2), bytes(15)), Array("object", (1,), bytes(8)), Array("float32", (-1, -1), bytes(4))],
)
def test_malformed_tensors_are_refused(array: Array) -> None:
    with pytest.raises(ChildError, match="malformed"):
        array.tensor()


@pytest.mark.parametrize("dtype", ["bool", "int64", "bfloat16", "float64"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensors_survive_the_way(dtype: str, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape).to(getattr(torch, dtype))
    again = Array.of(tensor).tensor()
    assert again.dtype == tensor.dtype
    assert torch.equal(again, tensor)
