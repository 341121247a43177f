"""The audit catches what it promises to catch: every variant here is wrong in one way, and real."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import attnlab
from attnlab import cli, registry
from attnlab.config import ModelConfig
from attnlab.errors import ConfigError, UserError
from attnlab.lm.decoding import generate
from attnlab.lm.model import LanguageModel, model_files
from attnlab.lm.tokenizers import Tokenizer
from attnlab.measure.audit import (
    CHECKS,
    LONGEST,
    Check,
    Report,
    _run_checks,
    answer,
    audit_any,
    audit_mechanism,
    audit_module,
    conclude,
    document,
    is_failure,
    leaks,
    questions,
)
from attnlab.measure.audit.leaks import (
    SAME,
    Finding,
    Setting,
    difference,
    future_leak,
    future_leak_at_all_cuts,
    influence,
    opposite_tokens,
    worst,
)
from attnlab.measure.audit.subject import NotTested, Subject, dropout_of, own_copy, randomize_zero_init
from attnlab.mechanisms.conventions import tensor_of
from attnlab.store import records
from attnlab.store.folders import write_folder
from attnlab.store.runs import Run, RunRecord

WIDTH = 8
LENGTHS = (1, 7, 64, 150)


class Sound(nn.Module):
    """Causal attention of one head, written out; variants change one thing in it."""

    def __init__(self, n_embd: int = WIDTH, n_head: int = 1, block_size: int = 513) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(n_embd, n_embd) for _ in range(3))

    def seen(self, tokens: int) -> Tensor:
        return torch.ones(tokens, tokens, dtype=torch.bool).tril()

    def weights(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2) / x.shape[-1] ** 0.5
        mask = self.seen(x.shape[1])
        if hidden is not None:
            mask = mask & ~hidden[:, None, :]
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return self.tidy(weights, mask)

    def tidy(self, weights: Tensor, mask: Tensor) -> Tensor:
        return weights.masked_fill(~mask.any(-1, keepdim=True), 0)

    def forward(self, x: Tensor) -> Tensor:
        return self.weights(x) @ self.value(x)


class Padded(Sound):
    """Sound, and takes padding."""

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        return self.weights(x, padding) @ self.value(x)


class SequenceMaximum(Sound):
    """Linear attention as in performer-pytorch: features of keys, divided by their maximum in the whole text, plus eps."""

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.query(x), self.key(x)
        q, k = (q - q.amax(-1, keepdim=True)).exp() + 1e-4, (k - k.amax((-1, -2), keepdim=True)).exp() + 1e-4
        sums = torch.einsum("btc,btd->btcd", k, self.value(x)).cumsum(1)
        return torch.einsum("btc,btcd->btd", q, sums) / (q * k.cumsum(1)).sum(-1, keepdim=True)


class VanishingBlocks(Sound):
    """Besides the window, blocks drawn at random once; in eval() they are gone, as in one known BigBird."""

    def __init__(self, n_embd: int = WIDTH, n_head: int = 1, block_size: int = 513) -> None:
        super().__init__(n_embd, n_head, block_size)
        self.register_buffer("drawn", torch.rand(block_size, block_size) < 0.1)

    def seen(self, tokens: int) -> Tensor:
        place = torch.arange(tokens)
        near = place[:, None] - place < 4
        return super().seen(tokens) & (near | self.drawn[:tokens, :tokens] if self.training else near)


class Redrawn(Sound):
    """Random tokens to look at, drawn anew at each call."""

    def seen(self, tokens: int) -> Tensor:
        drawn = (torch.rand(tokens, tokens) < 0.5) | torch.eye(tokens, dtype=torch.bool)
        return super().seen(tokens) & drawn


class Normed(Sound):
    """A BatchNorm over the texts of the batch."""

    def __init__(self, n_embd: int = WIDTH, n_head: int = 1, block_size: int = 513) -> None:
        super().__init__(n_embd, n_head, block_size)
        self.norm = nn.BatchNorm1d(n_embd)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(super().forward(x).transpose(1, 2)).transpose(1, 2)


class Deaf(Padded):
    """Takes padding and ignores it."""

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        return self.weights(x) @ self.value(x)


class Undefined(Padded):
    """A row that may see nothing is a softmax over nothing."""

    def tidy(self, weights: Tensor, mask: Tensor) -> Tensor:
        return weights


def build(kind: type[nn.Module], *arguments: Any) -> nn.Module:
    torch.manual_seed(0)
    return kind(*arguments)


def ask(name: str, module: Callable[..., Any], lengths: tuple[int, ...] = LENGTHS, **more: Any) -> float:
    """What one check finds."""
    return worst(CHECKS[name][0](Subject(module, WIDTH, **more), lengths)).value


def passes(name: str, module: Callable[..., Any], lengths: tuple[int, ...] = LENGTHS, **more: Any) -> bool:
    return ask(name, module, lengths, **more) <= CHECKS[name][1]


def failing(report: Report) -> set[str]:
    return {check.name for check in report.failing}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer questions, where it is not the answers that matter."""
    monkeypatch.setattr("attnlab.measure.audit.CHECKS", {name: CHECKS[name] for name in ("gradient", "padding")})


def test_a_sound_module_passes_and_missing_features_are_not_tested() -> None:
    report = audit_module(build(Sound), n_embd=WIDTH)
    assert report.verdict == "pass"
    assert report.causal_leak is not None
    assert report.causal_leak <= 1e-6
    assert {1, 2, 3, 63, 64, 65, 150, 255, 256, 257, 511, 512, 513} < set(report.lengths)
    assert len(report.leak_by_position) == 64
    says = {check.name: check.says for check in report.checks if check.passed is None}
    assert says == {
        "cache": "keeps no cache",
        "bidirectional": "has no bidirectional form",
        "padding": "accepts no padding mask",
        "masked": "accepts no padding mask",
    }


def test_dot_passes_every_check() -> None:
    report = audit_mechanism("dot", length=7)
    assert report.verdict == "pass"
    assert all(check.passed for check in report.checks)
    assert {check.name for check in report.checks} == {*CHECKS, "tied"}
    assert "bidirectional" in report.forms
    assert "causal dropout=0.25 n_embd=64 n_head=4" in report.forms


def test_zero_masking_is_caught_and_declared() -> None:
    report = audit_mechanism("zero_mask", length=7)
    assert report.verdict == "declared"
    assert {"future", "gradient", "prefix", "cache", "padding"} <= failing(report)
    assert report.causal_leak is not None
    assert report.causal_leak > 0.1
    assert min(report.leak_by_position[:6]) > 1e-3
    assert report.leak_by_position[6] == 0  # the last token has no future
    assert "moves by" in report.faults["future"]


@pytest.mark.parametrize(
    ("variant", "checks"),
    [
        (SequenceMaximum, {"future", "gradient", "prefix"}),
        (VanishingBlocks, {"train_eval"}),
        (Redrawn, {"repeat"}),
        (Normed, {"batch", "train_eval"}),
        (Deaf, {"padding"}),
        (Undefined, {"masked"}),
    ],
)
def test_variants_are_caught_by_name(variant: type[nn.Module], checks: set[str]) -> None:
    report = audit_module(build(variant), n_embd=WIDTH, length=64)
    assert report.verdict == "fail"
    assert checks <= failing(report)
    assert all(report.faults[name] for name in checks)


def test_sound_ones_pass_where_variants_fail() -> None:
    """What separates a variant from its control is the fault alone."""
    assert audit_module(build(Padded), n_embd=WIDTH, length=7).verdict == "pass"
    assert failing(audit_module(build(VanishingBlocks), n_embd=WIDTH, length=12)) == {"train_eval"}
    assert failing(audit_module(build(Deaf), n_embd=WIDTH, length=7)) == {"padding"}
    assert failing(audit_module(build(Undefined), n_embd=WIDTH, length=7)) == {"masked"}


class Sneaky(Sound):
    """Adds a little of the next token, under one condition only."""

    def __init__(self, when: Callable[[Sound, Tensor], bool], where: slice = slice(None), size: float = 1e-3) -> None:
        super().__init__()
        self.when, self.where, self.size = when, where, size

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if not self.when(self, x):
            return y
        extra = torch.zeros_like(y)
        extra[:, :-1] = x[:, 1:]
        only = torch.zeros(x.shape[1], 1)
        only[self.where] = self.size
        return y + only * extra


SNEAKS: dict[str, nn.Module] = {
    "long": Sneaky(lambda module, x: x.shape[1] > 128),
    "very long": Sneaky(lambda module, x: x.shape[1] > 256),
    "large": Sneaky(lambda module, x: bool(x.abs().max() > 40)),
    "small": Sneaky(lambda module, x: bool(x.abs().max() < 0.1)),
    "eval": Sneaky(lambda module, x: not module.training),
    "train": Sneaky(lambda module, x: module.training),
    "no gradient": Sneaky(lambda module, x: not torch.is_grad_enabled()),
    "batch": Sneaky(lambda module, x: len(x) > 1),
    "alone": Sneaky(lambda module, x: len(x) == 1),
    "odd": Sneaky(lambda module, x: x.shape[1] % 2 == 1),
    "first": Sneaky(lambda module, x: True, slice(0, 1)),
    "middle": Sneaky(lambda module, x: True, slice(37, 38)),
    "edge": Sneaky(lambda module, x: x.shape[1] > 128, slice(127, 128)),
    "tiny": Sneaky(lambda module, x: True, size=2e-6),
}


@pytest.mark.parametrize("name", SNEAKS)
def test_conditional_leaks_are_found(name: str) -> None:
    lengths = (1, 2, 7, 64, 150, 260)
    assert not (passes("future", SNEAKS[name], lengths) and passes("gradient", SNEAKS[name], lengths))


class OneLeak(nn.Module):
    """A running mean of the past, and at one position a little of one later token, from some length on."""

    def __init__(self, place: int, source: int, longer_than: int) -> None:
        super().__init__()
        self.place, self.source, self.longer_than = place, source, longer_than

    def forward(self, x: Tensor) -> Tensor:
        y = x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
        if x.shape[1] > max(self.source, self.longer_than):
            y[:, self.place] = y[:, self.place] + 0.01 * x[:, self.source].detach().round()
        return y


@pytest.mark.parametrize(
    ("place", "source", "longer_than"), [(163, 164, 0), (301, 340, 400), (255, 256, 0), (509, 510, 511), (511, 512, 0)]
)
def test_a_leak_at_one_position_is_found_wherever_it_is(place: int, source: int, longer_than: int) -> None:
    leaks = future_leak_at_all_cuts(Subject(OneLeak(place, source, longer_than), WIDTH), Setting(513))
    assert leaks.max(1).values.gt(1e-4).nonzero().flatten().tolist() == list(range(place, source))
    assert set(leaks.argmax(1)[place:source].tolist()) == {place}


def test_a_leak_at_one_position_fails_the_audit() -> None:
    report = audit_module(OneLeak(301, 302, 400), n_embd=WIDTH)
    assert report.verdict == "fail"
    assert "output 301 moves" in report.faults["future"]
    at_one_length = Sneaky(lambda module, x: x.shape[1] == 512, slice(301, 302))
    assert not passes("prefix", at_one_length, (1, 2, 64, 512, 513))


def test_all_cuts_at_once_agree_with_one_cut_at_a_time() -> None:
    class Mean(Sound):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 0.1 * x.mean(1, keepdim=True)

    for module in (build(Sound), build(Mean)):
        subject, setting = Subject(module, WIDTH), Setting(33, rows=1)
        leaks = future_leak_at_all_cuts(subject, setting) > 1e-6
        assert torch.equal(leaks, future_leak(subject, setting, range(32)) > 1e-6)
    ids = Subject(nn.Embedding(5, WIDTH), 5, reads_ids=True)
    x, cuts = ids.draw(1, 9), torch.arange(8)
    later = torch.arange(9) > cuts[:, None]
    assert torch.equal(opposite_tokens(ids, x, cuts, later) != x, later)


class OnlyAtOneLength(Sound):
    """Fails at every length but those it is made for."""

    lengths: tuple[int, ...] = (1,)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] not in self.lengths:
            raise ValueError("cannot")
        return super().forward(x)


def test_a_module_not_tested_for_leaks_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    report = audit_module(build(OnlyAtOneLength), n_embd=WIDTH)
    assert report.verdict == "not tested"
    assert is_failure([report], named=False)
    assert "long enough" in report.untested["future"]
    assert report.causal_leak is None
    assert report.leak_by_position == ()
    assert not report.faults
    monkeypatch.setattr(OnlyAtOneLength, "lengths", (1, 64, 128))
    report = audit_module(build(OnlyAtOneLength), n_embd=WIDTH)
    assert report.verdict == "not tested"
    assert "3 are needed" in report.untested["future"]
    monkeypatch.setattr(OnlyAtOneLength, "lengths", (64, 128, 256))
    assert audit_module(build(OnlyAtOneLength), n_embd=WIDTH).verdict == "pass"
    assert audit_module(OneLeak(1, 2, 0), n_embd=WIDTH, length=3).verdict == "fail"  # a leak is a leak at any length


def test_a_leak_without_gradient_is_found_by_change_and_the_other_way_round() -> None:
    class Detached(Sound):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 0.01 * x.detach().sum(1, keepdim=True).sign()

    class Rounded(Sound):
        """The value says nothing of the future, its gradient does."""

        def forward(self, x: Tensor) -> Tensor:
            total = x.sum(1, keepdim=True)
            return super().forward(x) + total - total.detach()

    assert passes("gradient", build(Detached))
    assert not passes("future", build(Detached))
    assert passes("future", build(Rounded))
    assert not passes("gradient", build(Rounded))


def test_a_large_constant_or_a_closed_gate_hides_nothing() -> None:
    class Offset(Sound):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1000 + 0.1 * x.mean(1, keepdim=True)

    class Gated(Sound):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.gate * x.mean(1, keepdim=True)

    assert ask("future", build(Offset)) > 0.01
    assert passes("future", build(Gated))
    report = audit_module(build(Gated), n_embd=WIDTH, length=64)
    assert {"future", "gradient"} <= failing(report)
    assert len(report.forms) == 2


def test_rows_without_gradient_give_finite_shares() -> None:
    report = audit_module(lambda x: x * (torch.arange(x.shape[1]) > 3)[:, None], n_embd=WIDTH, length=7)
    assert report.verdict == "pass"
    assert report.leak_by_position == (0.0,) * 7
    shifted = audit_module(lambda x: F.pad(x, (0, 0, 0, 1))[:, 1:], n_embd=WIDTH, length=7)  # sees the next token only
    assert shifted.causal_leak == 1
    assert shifted.leak_by_position == (1.0,) * 6 + (0.0,)


def test_a_constant_output_does_not_pass() -> None:
    report = audit_module(lambda x: torch.ones_like(x), n_embd=WIDTH, length=7)
    assert failing(report) == {"responds"}
    assert "nothing to audit" in report.faults["responds"]


class Growing(Sound):
    """With a cache it forgets the mask among new tokens; without one it is sound."""

    def new_cache(self) -> list[Tensor]:
        return []

    def forward(self, x: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        if cache is None:
            return super().forward(x)
        cache.append(x)
        seen = torch.cat(cache, dim=1)
        scores = self.query(x) @ self.key(seen).transpose(1, 2) / x.shape[-1] ** 0.5
        return scores.softmax(-1) @ self.value(seen)


def test_a_leak_through_the_cache_alone_is_found() -> None:
    assert failing(audit_module(build(Growing), n_embd=WIDTH, length=64)) == {"cache"}


class Distracted(Padded):
    """Forgets that it is causal when padding is given."""

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        if padding is None:
            return super().forward(x)
        scores = self.query(x) @ self.key(x).transpose(1, 2) / x.shape[-1] ** 0.5
        return scores.masked_fill(padding[:, None, :], -1e9).softmax(-1) @ self.value(x)


def test_a_leak_on_the_path_with_padding_is_found() -> None:
    report = audit_module(build(Distracted), n_embd=WIDTH, length=64)
    assert failing(report) == {"future", "batch"}
    assert "padding given" in report.faults["future"]


def test_a_bidirectional_form_must_see_the_future() -> None:
    report = audit_module(build(Sound), n_embd=WIDTH, length=64, causal=False)
    assert failing(report) == {"bidirectional"}
    assert report.causal_leak is None
    assert "may see the future" in {check.says for check in report.checks}

    class Open(Sound):
        def seen(self, tokens: int) -> Tensor:
            return torch.ones(tokens, tokens, dtype=torch.bool)

    assert audit_module(build(Open), n_embd=WIDTH, length=64, causal=False).verdict == "pass"
    assert {"future", "gradient", "prefix"} <= failing(audit_module(build(Open), n_embd=WIDTH, length=64))


def test_large_inputs_must_stay_finite() -> None:
    class Bare(Sound):
        """A softmax without its maximum taken off."""

        def forward(self, x: Tensor) -> Tensor:
            weights = (self.query(x) @ self.key(x).transpose(1, 2)).exp().tril()
            return weights / weights.sum(-1, keepdim=True) @ self.value(x)

    assert "large" in failing(audit_module(build(Bare), n_embd=WIDTH, length=7))


def test_seeding_the_common_generator_is_reported() -> None:
    class Seeding(Redrawn):
        def seen(self, tokens: int) -> Tensor:
            torch.manual_seed(0)
            return super().seen(tokens)

    report = audit_module(build(Seeding), n_embd=WIDTH, length=7)
    assert "random generator" in report.faults["repeat"]


def test_rounding_is_no_leak() -> None:
    class Shaky(Sound):
        """A stabiliser of the whole text that cancels, but for rounding."""

        def forward(self, x: Tensor) -> Tensor:
            much = 30 * x.sum((1, 2), keepdim=True)
            return (super().forward(x) + much) - much

    shaky, texts = Subject(build(Shaky), WIDTH), torch.randn(2, 1, 64, WIDTH)
    texts[1, :, :32] = texts[0, :, :32]
    before, after = (shaky.run(text)[:, :32] for text in texts)
    assert difference(before, after) > 1e-6
    assert audit_module(build(Shaky), n_embd=WIDTH, length=64).verdict == "pass"


class Stack(nn.Module):
    """A whole model of vectors: blocks of attention and MLP."""

    def __init__(self, blocks: list[nn.Module], loops: int = 1) -> None:
        super().__init__()
        self.blocks, self.loops = nn.Sequential(*blocks), loops

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.loops):
            x = self.blocks(x)
        return x


def make_block() -> nn.Module:
    return nn.Sequential(Sound(), nn.Linear(WIDTH, WIDTH), nn.ReLU())


@pytest.mark.usefixtures("few")
def test_a_block_reused_in_all_layers_is_caught() -> None:
    report = audit_module(Stack([make_block()] * 4), n_embd=WIDTH, length=7)
    assert failing(report) == {"tied"}
    assert "blocks.0, blocks.1, blocks.2, blocks.3" in report.faults["tied"]
    assert audit_module(Stack([make_block() for _ in range(4)]), n_embd=WIDTH, length=7).verdict == "pass"
    looped = audit_module(Stack([make_block()], loops=4), n_embd=WIDTH, length=7)
    assert "4 times through blocks" in looped.faults["tied"]


def test_shared_weights_between_layers_are_caught_and_tied_heads_are_not() -> None:
    model = Stack([make_block() for _ in range(3)])
    model.blocks[2][0].key.weight = model.blocks[0][0].key.weight  # type: ignore[index, union-attr]
    assert "blocks.0.0.key.weight, blocks.2.0.key.weight" in questions.tied(model).says
    config = ModelConfig(n_layer=2, n_head=2, n_embd=16, block_size=16, vocab_size=20)
    tied = LanguageModel(config)
    tied.head.weight = tied.tokens.weight
    assert questions.tied(tied).value == 0


SHARING = """
from torch import nn
made = {}
class Same(nn.Module):
    def __new__(cls, *arguments):
        return made.setdefault("one", super().__new__(cls))
    def __init__(self, n_embd, n_head, block_size):
        if "mix" not in self.__dict__.get("_modules", {}):
            super().__init__()
            self.mix = nn.Linear(n_embd, n_embd)
    def forward(self, x):
        return self.mix(x)
common = nn.Linear(32, 32)
class Part(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.mix = common
    def forward(self, x):
        return self.mix(x)
class Twice(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.mix = self.alias = nn.Linear(n_embd, n_embd)
    def forward(self, x):
        return self.mix(x)
class Odd(nn.Module):
    def __init__(self, folder):
        super().__init__()
    def forward(self, x):
        return x
model = nn.Sequential(nn.Linear(32, 16), nn.GELU(), nn.Linear(16, 32))
"""


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SHARING)
    return path


@pytest.mark.usefixtures("few")
def test_classes_in_a_users_file_are_audited(user_file: Path) -> None:
    assert "0, 1, 2" in audit_any(f"{user_file}:Same", length=7).faults["tied"]
    assert "0.mix, 1.mix, 2.mix" in audit_any(f"{user_file}:Part", length=7).faults["tied"]
    assert audit_any(f"{user_file}:Twice", length=7).verdict == "pass"  # within one layer it is the author's choice
    assert audit_any(f"{user_file}:model", length=7).verdict == "pass"
    with pytest.raises(ConfigError, match="cannot be built as Mechanism"):
        audit_any(f"{user_file}:Odd")


@pytest.fixture
def registered() -> Iterator[Callable[..., str]]:
    """Registers a class for one test."""
    made: list[str] = []

    def register(kind: type[nn.Module], **card: Any) -> str:
        name = f"variant_{len(made)}"
        registry.mechanism(name, **card)(kind)
        made.append(name)
        return name

    yield register
    for name in made:
        del registry._entries["mechanism", name]


@pytest.mark.usefixtures("few")
def test_a_declared_defect_that_is_absent_fails(registered: Callable[..., str]) -> None:
    report = audit_mechanism(registered(Sound, defect="leaks"), n_embd=WIDTH, n_head=1, length=7)
    assert report.verdict == "fail"
    assert not report.failing
    assert "does not have: leaks" in report.faults["declared"]


def test_a_mechanism_that_cannot_be_causal_is_audited_bidirectionally_only(registered: Callable[..., str]) -> None:
    class Mean(nn.Module):
        def __init__(self, n_embd: int, n_head: int, block_size: int, *, maximum: bool = False) -> None:
            super().__init__()
            self.maximum = maximum

        def forward(self, x: Tensor) -> Tensor:
            return x + (x.amax(1, keepdim=True) if self.maximum else x.mean(1, keepdim=True))

    report = audit_mechanism(registered(Mean, causal=False), n_embd=WIDTH, n_head=1, length=64)
    assert report.causal_leak is None
    assert report.forms == ("bidirectional", "bidirectional maximum")
    assert report.verdict == "pass"


def test_options_and_the_backbones_arguments_are_tried(registered: Callable[..., str]) -> None:
    class Choosy(Sound):
        def __init__(
            self, n_embd: int, n_head: int, block_size: int, *, wide: bool = False, bias: bool = False
        ) -> None:
            super().__init__()  # of one width only
            self.leak = wide

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.leak * x.mean(1, keepdim=True)

    report = audit_mechanism(registered(Choosy), n_embd=WIDTH, n_head=1, length=7)
    assert report.forms == ("causal", "causal rotary qk_norm bias", "causal dropout=0.25", "causal wide")
    assert {"future", "gradient"} <= failing(report)


def tiny_model(**given: Any) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(
        ModelConfig(n_layer=2, n_head=2, n_embd=16, block_size=12, vocab_size=40, dropout=0.1, **given)
    )


def test_a_whole_model_is_audited_through_its_ids() -> None:
    report = audit_module(tiny_model(zero_init=False))
    assert report.verdict == "pass"
    assert {check.name for check in report.checks if check.passed is None} == {"bidirectional"}
    assert report.lengths == (1, 2, 3, 4, 5, 7, 8, 9, 12)


@pytest.mark.usefixtures("few")
def test_a_leak_inside_a_whole_model_is_found_behind_projections_that_start_at_zero() -> None:
    report = audit_module(tiny_model(mechanism="zero_mask"))
    assert report.verdict == "declared"
    assert failing(report) == {"gradient", "padding"}
    assert report.causal_leak is not None
    assert report.causal_leak > 1e-4


def test_any_model_of_ids_is_audited() -> None:
    class Bag(nn.Module):
        """What minGPT users have: ids in, scores and a loss out."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.mix, self.head = nn.Embedding(11, WIDTH), Sound(), nn.Linear(WIDTH, 11)
            self.dropout = nn.Dropout(0.5)

        def forward(self, ids: Tensor) -> tuple[Tensor, None]:
            assert ids.shape[1] <= 64
            return self.head(self.dropout(self.mix(self.embedding(ids)))), None

    report = audit_module(build(Bag), vocab_size=11)
    assert report.verdict == "pass"
    assert report.lengths[-1] == 64
    assert any("refuses 65 tokens" in note for note in report.notes)
    with pytest.raises(UserError, match="say what it reads"):
        audit_module(build(Bag))


def test_one_token_and_the_whole_gradient_in_words() -> None:
    class Next(nn.Module):
        """Every output is the next token."""

        def forward(self, x: Tensor) -> Tensor:
            assert x.shape[1] > 1
            return x.roll(-1, 1)

    report = audit_module(Next(), n_embd=WIDTH, length=7)
    assert report.faults["gradient"].startswith("100 % of the gradient of output ")
    assert any(note.startswith("refuses 1 token: AssertionError") for note in report.notes)


def test_the_module_that_is_audited_keeps_its_state() -> None:
    module = build(Normed).train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state = torch.get_rng_state()
    audit_module(module, n_embd=WIDTH, length=7)
    assert module.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_mechanism_whose_output_has_another_width_than_its_input_fails(tmp_path: Path) -> None:
    (tmp_path / "wide.py").write_text(
        "import torch\nclass Wide(torch.nn.Module):\n    def __init__(self, n_embd, n_head, block_size):\n"
        "        super().__init__()\n    def forward(self, x, padding=None):\n        return torch.cat([x, x], -1)\n"
    )
    report = audit_mechanism(f"{tmp_path}/wide.py:Wide", n_embd=8, length=3)
    assert report.verdict == "fail"
    assert "one vector per token, 2 x 1 x 8, and has the shape (2, 1, 16)" in report.faults["responds"]


def test_a_module_that_raises_is_reported_in_one_line() -> None:
    def broken(x: Tensor) -> Tensor:
        raise ValueError("only\nfor show")

    report = audit_module(broken, n_embd=WIDTH)
    assert report.verdict == "fail"
    assert "ValueError: only for show" in report.faults["responds"]
    flat = audit_module(lambda x: x.sum(1), n_embd=WIDTH)
    assert "one vector per token" in flat.faults["responds"]

    def raises() -> Any:
        raise RuntimeError("late")

    assert answer("future", 0.0, [raises]).passed is False


def test_influence_is_the_gradient() -> None:
    module, x = build(Sound), torch.randn(1, 5, WIDTH)
    found = influence(Subject(module, WIDTH), x, [2, 4])
    assert (found[0, 3:] == 0).all()
    assert (found[0, :3] > 0).all()
    assert (found[1] > 0).all()
    with pytest.raises(NotTested, match="no gradient"):
        influence(Subject(lambda x: x.detach(), WIDTH), x, [2])


def call(*arguments: str | Path) -> int:
    try:
        cli.main(["audit", *([] if "--length" in arguments else ["--length", "7"]), *map(str, arguments)])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.usefixtures("few")
def test_exit_codes_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("dot", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["name"] == "dot"
    assert found["verdict"] == "pass"
    assert found["causal_leak"] < 1e-6
    assert records.convert(Report, found).checks[0].passed
    assert call("zero_mask", "--json") == 1
    assert json.loads(capsys.readouterr().out)[0]["verdict"] == "declared"
    assert call("dot", "zero_mask") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    start = next(number for number, line in enumerate(lines) if line.endswith("verdict "))
    assert [line.split()[-1] for line in lines[start + 1 : start + 3]] == ["pass", "declared"]
    assert "when hidden tokens change (padding is True at hidden tokens" in " ".join(" ".join(lines).split())


@pytest.mark.usefixtures("few")
def test_without_a_name_every_mechanism_is_audited(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "names", lambda kind: ["dot", "zero_mask"])
    assert call("--json") == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["dot", "zero_mask"]


@pytest.mark.usefixtures("few")
def test_a_users_class_fails_with_exit_code_1(user_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(f"{user_file}:Part") == 1
    shown = capsys.readouterr()
    assert "0.mix, 1.mix, 2.mix" in " ".join(shown.out.split())
    assert not shown.err


@pytest.mark.usefixtures("few")
def test_a_run_folder_is_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.create(tmp_path / "run", RunRecord())
    write_folder(run.path / "model", "model", model_files(tiny_model(), Tokenizer.train("char", ["abc"], 40)))
    assert call(run.path, "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["causal_leak"] <= 1e-6


PLAIN = """
import ctypes
import torch
from torch import nn
print("imported")
class Plain(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        print("constructed")
        self.mix = nn.Linear(n_embd, n_embd)
    def forward(self, x):
        print("called")
        ctypes.CDLL(None).puts(b"from C")
        return self.mix(x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None])
"""


@pytest.fixture
def plain(tmp_path: Path) -> str:
    """A class with forward(x) and nothing else: no padding, no cache, no taps."""
    (tmp_path / "plain.py").write_text(PLAIN)
    return f"{tmp_path / 'plain.py'}:Plain"


def test_output_of_audited_code_goes_to_standard_error(plain: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(plain, "--json") == 0
    shown = capfd.readouterr()
    (found,) = json.loads(shown.out)
    assert found["untested"] | {"cache": "keeps no cache", "padding": "accepts no padding mask"} == found["untested"]
    for word in ("imported", "constructed", "called", "from C"):
        assert word in shown.err
    assert call(plain) == 0
    lines = capfd.readouterr().out.splitlines()
    assert any(line.split() == ["not", "tested", "cache:", "keeps", "no", "cache"] for line in lines)


def test_a_plain_module_passes_alone_and_in_a_model(plain: str) -> None:
    """The verdict inside a model, as in a comparison and a run, is that of the module alone."""
    alone = audit_any(plain, length=12)
    model = tiny_model(mechanism=plain, positions="learned")
    inside = audit_module(model)
    assert (alone.verdict, inside.verdict) == ("pass", "pass"), inside.faults
    assert alone.untested.keys() == inside.untested.keys()
    ids = torch.randint(40, (2, 4))
    assert model.new_caches() is None
    assert generate(model.eval(), ids, 5) == generate(model, ids, 5, use_cache=False)
    with pytest.raises(UserError, match="accepts no padding mask"):
        model(ids, torch.zeros(2, 4, dtype=torch.bool))


def test_mistakes_end_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("dto") == 2
    assert "did you mean dot" in capsys.readouterr().err
    assert call("dot", "--length", "3") == 2
    assert "at least 4" in capsys.readouterr().err
    assert call("dot", "--n_embd", "9") == 2
    assert "even multiple of n_head" in capsys.readouterr().err


def test_attnlab_exports_both_audits() -> None:
    assert attnlab.audit_mechanism is audit_mechanism
    assert attnlab.audit_module is audit_module


@pytest.mark.parametrize("length", [97, pytest.param(LONGEST, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", registry.names("mechanism"))
def test_every_mechanism_passes_or_has_its_declared_defect(name: str, length: int) -> None:
    report = audit_mechanism(name, length=length)
    assert report.verdict == ("declared" if registry.find("mechanism", name).defect else "pass"), report.faults


# The parts by themselves


def test_differences_are_relative_to_the_largest_number() -> None:
    first, nan = torch.tensor([1.0, -4.0, 2.0]), torch.tensor([1.0, -4.0, float("nan")])
    assert difference(first, torch.tensor([1.0, -5.0, 2.5])) == pytest.approx(1 / 5)
    assert difference(first, -first) == 2
    assert difference(first, nan) == 1
    assert difference(nan, nan) == difference(first[:0], first[:0]) == difference(0 * first, 0 * first) == 0
    before, after = torch.zeros(2, 3, 2), torch.zeros(2, 3, 2)
    after[0, 1], after[1, 1, 0], after[1, 2, 1] = torch.tensor([1.0, -3.0]), 2, float("nan")
    before[0, 2, 0] = float("inf")  # was not finite before
    assert leaks.steps_between(before, after).tolist() == [[0, 3, 0], [0, 2, pytest.approx(1e30)]]
    assert leaks.moved(before, after).tolist() == [0, 3, pytest.approx(1e30)]


def test_lengths_and_positions_to_look_at() -> None:
    lengths = [1, 2, 3, 7, 8, 63, 65, 150, 151, 513]
    assert leaks.few(lengths) == [1, 2, 7, 63, 150, 513]
    assert leaks.few([5, 9]) == [5, 9]
    assert (leaks.ruler(lengths), leaks.ruler([64, 65]), leaks.ruler([70, 80])) == (63, 64, 70)
    assert leaks.not_long(lengths) == lengths[:8]
    assert leaks.not_long([151, 200]) == [151]
    assert leaks.positions(1, 8, 0) == []
    assert leaks.positions(9, 8, 0) == list(range(8))
    chosen = leaks.positions(10, 8, 0)
    assert {0, 1, 5, 8} <= set(chosen) <= set(range(9))
    assert len(chosen) < 9
    assert {15, 31, 47, 62} <= set(leaks.positions(64, 12, 0))
    assert 15 in leaks.positions(513, 64, 0)  # of 32 ends of blocks, every one
    assert set(range(15, 512, 16)) <= set(leaks.positions(513, 64, 1))
    assert {31, 63} <= set(leaks.positions(513, 32, 1)) | set(leaks.positions(513, 32, 3))


def test_settings_vary_norms_only_of_short_vectors() -> None:
    vectors, ids = Subject(nn.Identity(), WIDTH), Subject(nn.Identity(), WIDTH, reads_ids=True)
    found = [(one.tokens, one.norm, one.training, one.rows, one.seed) for one in leaks.settings(vectors, [64, 65])]
    assert found == [
        (64, 1.0, False, 2, 0),
        (64, 1.0, True, 1, 0),
        (64, 0.01, False, 2, 1),
        (64, 0.01, True, 1, 1),
        (64, 100.0, False, 2, 2),
        (64, 100.0, True, 1, 2),
        (65, 1.0, False, 2, 0),
        (65, 1.0, True, 1, 0),
    ]
    assert [one.norm for one in leaks.settings(ids, [3])] == [1, 1]
    assert str(Setting(1)) == "1 token, eval()"
    hidden = torch.zeros(1, 2, dtype=torch.bool)
    told = "2 tokens, inputs x 0.01, padding given, float64, train()"
    assert str(Setting(2, 0.01, True, padding=hidden, condition="float64")) == told


def test_which_tokens_are_hidden() -> None:
    assert leaks.left_padding(3, 4).int().tolist() == [[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    assert leaks.left_padding(3, 7).sum(1).tolist() == [0, 3, 6]
    hidden = questions._hidden_tokens(7, 0)
    assert hidden.shape == (6, 7)
    assert hidden[:2].int().tolist() == [[1] * 3 + [0] * 4, [1] * 6 + [0]]
    assert hidden[2:4].int().tolist() == [[0] * 4 + [1] * 3, [0] + [1] * 6]
    assert hidden[4:, 3].all()
    assert 0.2 < questions._hidden_tokens(1000, 1)[4:].float().mean() < 0.4


def test_replaced_tokens_are_as_large_ten_times_larger_or_zero() -> None:
    subject, where = Subject(nn.Identity(), 4000), torch.tensor([[False, True, True]])
    x = subject.draw(1, 3, norm=2.0)
    for number, scale in enumerate((2.0, 20.0, 0.0)):
        changed = leaks.replace_tokens(subject, x, where, Setting(3, norm=2.0), number)
        assert torch.equal(changed[0, 0], x[0, 0])
        assert changed[0, 1:].std().item() == pytest.approx(scale, rel=0.05)
    x, cuts = torch.ones(1, 4, 2), torch.arange(3)
    opposite = opposite_tokens(Subject(nn.Identity(), 2), x, cuts, torch.arange(4) > cuts[:, None])
    assert opposite[..., 0].tolist() == [[1, -2, -2, -2], [1, 1, -3, -3], [1, 1, 1, -0.5]]


def test_drawn_tokens_are_repeated_under_that_condition() -> None:
    subject = Subject(nn.Identity(), 6)
    assert torch.equal(subject.draw(2, 5, seed=3), subject.draw(2, 5, seed=3))
    assert not torch.equal(subject.draw(2, 5, seed=3), subject.draw(2, 5, seed=4))
    assert len(subject.draw(1, 50)[0].unique(dim=0)) == 50
    assert len(subject.under("repeated tokens").draw(1, 50)[0].unique(dim=0)) == 4
    assert set(Subject(nn.Identity(), 3, reads_ids=True).draw(4, 50).flatten().tolist()) == {0, 1, 2}
    double = Subject(nn.Linear(6, 6), 6).under("float64")
    assert double.run(double.draw(1, 2)).dtype == torch.float64


def test_the_tensor_in_what_a_module_returns() -> None:
    class Output:
        def __init__(self, **given: Tensor) -> None:
            self.__dict__.update(given)

    one = torch.ones(1)
    for returned in (one, (one, None), [one], Output(logits=one), Output(last_hidden_state=one)):
        assert tensor_of(returned) is one
    with pytest.raises(UserError, match=r"must be a tensor, and is tuple"):
        tensor_of(())


def test_a_copy_has_no_dropout_or_much_and_no_zeros_stay() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)).double()
    assert [dropout_of(own_copy(module, dropout=much)) for much in (False, True)] == [0.0, 0.25]
    assert dropout_of(module) == 0.1
    assert own_copy(module)[0].weight.dtype == torch.float32  # type: ignore[index]
    before = module[0].weight.detach().clone()
    assert not randomize_zero_init(module)
    with torch.no_grad():
        module[0].bias.zero_()
    assert randomize_zero_init(module)
    assert module[0].bias.all()
    assert torch.equal(module[0].weight, before)


def test_only_some_checks_run_at_every_length_and_other_forms_at_two(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, list[list[int]]] = {"future": [], "repeat": []}

    def question(name: str) -> Callable[..., Iterator[Finding]]:
        return lambda _, lengths: (asked[name].append([*lengths]), iter([Finding(0.0, "")]))[1]

    monkeypatch.setattr("attnlab.measure.audit.CHECKS", {name: (question(name), 0.0) for name in asked})
    _run_checks([Subject(nn.Identity(), 2)] * 2, [1, 2, 3, 7, 8, 64, 150, 200])
    assert asked["future"] == [[1, 2, 3, 7, 8, 64, 150, 200], [7, 150]]
    assert asked["repeat"] == [[1, 2, 7, 64, 150, 200], [7, 150]]


def not_tested(why: str) -> Any:
    raise NotTested(why)


def test_the_worst_answer_counts_and_the_first_reason_is_told() -> None:
    found = answer("future", 0.5, [lambda: [Finding(0.2, "a", (0.2, 0.0)), Finding(0.7, "b", (0.1, 0.7))]])
    assert found == Check("future", 0.7, 0.5, False, "b", (0.2, 0.7))
    passed = answer("future", 0.5, [lambda: not_tested("one"), lambda: [Finding(0.5, "a")]])
    assert passed == Check("future", 0.5, 0.5, True, "")
    untested = answer("future", 0.5, [lambda: not_tested("one"), lambda: not_tested("two")])
    assert untested == Check("future", None, 0.5, None, "one")
    with pytest.raises(NotTested, match="long enough"):
        worst([])


def checked(name: str, value: float | None, passed: bool | None) -> Check:
    return Check(name, value, 0.1, passed, "" if passed else f"{name} says", (0.0, value or 0.0))


def test_verdicts_follow_from_the_checks() -> None:
    good, leak, shared = checked("future", 0.0, True), checked("future", 0.4, False), checked("tied", 1.0, False)
    unknown, blind = checked("future", None, None), checked("bidirectional", None, None)
    for checks, defect, verdict in (
        ([good, blind], "", "pass"),
        ([leak], "", "fail"),
        ([leak], "leaks", "declared"),
        ([leak, shared], "leaks", "fail"),
        ([good], "leaks", "fail"),
        ([unknown, blind], "", "not tested"),
        ([unknown, blind, shared], "", "fail"),
    ):
        assert conclude("x", checks, defect).verdict == verdict
    found = conclude("x", [leak, checked("gradient", 0.6, False), checked("batch", 0.9, False)])
    assert (found.causal_leak, found.leak_by_position) == (0.6, (0.0, 0.6))
    reports = {
        kind: conclude("x", checks, "d" * (kind == "declared"))
        for kind, checks in (("pass", [good]), ("declared", [leak]), ("fail", [shared]), ("untested", [unknown, blind]))
    }
    for named, kinds, failure in (
        (True, ["pass"], False),
        (True, ["declared"], True),
        (False, ["declared"], False),
        (True, ["declared", "pass"], False),
        (False, ["pass", "fail"], True),
        (False, ["untested"], True),
    ):
        assert is_failure([reports[kind] for kind in kinds], named) == failure


def test_reports_as_tables() -> None:
    good = conclude("good", [checked("future", 0.0, True), checked("batch", 0.0, True)])
    several = [checked("future", 0.123, False), checked("gradient", 0.4, False), checked("packing", 0.0, True)]
    bad = conclude("bad", [*several, Check("batch", None, 0.1, False, "raises")], notes=["odd"])
    declared = conclude("known", [checked("future", 0.3, False), checked("batch", 0.0, True)], "leaks")
    table = document([good, bad, declared]).sections[0].blocks[0]
    assert [[cell.text for cell in (row.name, *row.cells)] for row in table.rows] == [  # type: ignore[union-attr]
        ["good", "ok", "ok", "-", "pass"],
        ["bad", "0.4", "error", "ok", "fail"],
        ["known", "0.3", "ok", "-", "declared"],
    ]
    assert [column.title for column in table.columns] == ["name", "future", "batch", "packing", "verdict"]  # type: ignore[union-attr]
    assert [row.cells[-1].tone for row in table.rows] == ["good", "bad", "warning"]  # type: ignore[union-attr]
    assert document([good]).lead == ["good: the audit found no fault."]
    assert document([good, bad]).lead == []
    assert len(document([good]).sections) == 1
    alone = document([bad])
    assert [row.cells[0].text for row in alone.sections[0].blocks[0].rows][:5] == [  # type: ignore[union-attr]
        "fault of size 0.4",
        *["not tested"] * 3,
        "error",
    ]
    facts = alone.sections[1].blocks[0]
    assert facts.title == "bad"  # type: ignore[union-attr]
    assert document([declared]).sections[1].blocks[0].title == "known, declared: leaks"  # type: ignore[union-attr]
    passing = document([good, declared]).sections[0].blocks
    assert [text.paragraphs for text in passing[1:]] == [  # type: ignore[union-attr]
        ["All pass: batch."],
        ["Not tested: cache, bidirectional, padding, packing, modes, repeat, finite, tied."],
    ]


def test_a_leak_of_hidden_tokens_is_told_where_it_is() -> None:
    def leaking(x: Tensor, padding: Tensor | None = None) -> Tensor:
        y = x.clone()
        y[:, 4] += 0.5 * x[:, 3]
        return y

    assert "output 4 moves by" in worst(questions.padding(Subject(leaking, WIDTH), [7])).says
    zeros = Subject(lambda x: 0 * x, WIDTH)
    assert future_leak_at_all_cuts(zeros, Setting(5)).tolist() == [[0.0] * 5] * 4


def test_an_average_of_equal_tokens_may_round(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, hidden = Subject(lambda x, padding=None: x, WIDTH), questions._hidden_tokens(7, 0)[-2:]
    for size, value in ((SAME, 0.0), (2 * SAME, 2 * SAME)):
        monkeypatch.setattr(questions, "_differ", lambda *_, size=size: Finding(size, ""))
        found = list(questions._weightless(subject, Setting(7), subject.draw(2, 7), hidden))
        assert [one.value for one in found] == [value]


def test_a_leak_in_one_precision_of_longer_texts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "CONDITIONS", ("float64",))
    monkeypatch.setattr(questions, "ruler", lambda _: 3)
    assert not passes("future", Sneaky(lambda module, x: x.dtype == torch.float64 and x.shape[1] > 3), (3, 6))


def test_what_other_objects_of_a_class_leave_behind_is_found() -> None:
    class Last(nn.Module):
        """Differs after another object of its class was called."""

        called: int | None = None

        def forward(self, x: Tensor) -> Tensor:
            before, Last.called = Last.called, id(self)
            return x + (before not in (None, id(self)))

    assert not passes("repeat", Last(), (2,))


def test_a_length_below_one_is_refused() -> None:
    with pytest.raises(UserError, match="length must be at least 1, not 0"):
        audit_module(build(Sound), n_embd=WIDTH, length=0)


def test_shared_names_are_listed_up_to_a_few() -> None:
    assert questions._first(["a", "b"], 2) == ["a", "b"]
    assert questions._first(["a", "b", "c", "d"], 2) == ["a", "b", "2 more"]
    assert questions._in_several_layers(["blocks.0.key", "blocks.1.key"])
    assert not questions._in_several_layers(["blocks.0.key", "head.weight"])
    assert not questions._in_several_layers(["0.mix.1", "0.mix.2"], depth=1)
    assert questions._in_several_layers(["0.mix.1", "0.mix.2"])
