"""Every mechanism beside its definition, written out once more in the plainest way."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from attnlab import ops, registry
from attnlab.errors import ConfigError
from attnlab.inside.taps import capture
from attnlab.mechanisms.performer import draw_directions

WIDTH, HEADS, BLOCK, TOKENS = 32, 4, 64, 20
HEAD = WIDTH // HEADS


def make(name: str, length: int = BLOCK, **asked: Any) -> Any:
    torch.manual_seed(0)
    return registry.find("mechanism", name).build(WIDTH, HEADS, length, **asked).eval()


def parts(module: Any, tokens: int = TOKENS) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    q, k, v = module.heads(torch.randn(2, tokens, WIDTH))
    return q.detach(), k.detach(), v.detach()


def pattern_of(module: Any, x: Tensor) -> Tensor:
    with capture(module, "hook_pattern") as seen:
        module(x)
    return seen["hook_pattern"]


def test_gqa_with_as_many_groups_as_heads_is_dot() -> None:
    dot, grouped = make("dot"), make("gqa", groups=HEADS)
    grouped.load_state_dict(dot.state_dict())
    x = torch.randn(2, TOKENS, WIDTH)
    assert torch.allclose(dot(x), grouped(x), atol=1e-6)


def test_the_heads_of_a_group_share_keys_and_values() -> None:
    module = make("gqa", groups=2)
    q, k, v = parts(module)
    assert k.shape == v.shape == (2, 2, TOKENS, HEAD)
    plain = torch.stack([make_average(q[:, h], k[:, h // 2], v[:, h // 2]) for h in range(HEADS)], dim=1)
    assert torch.allclose(module.fast(q, k, v, None), plain, atol=1e-6)


def make_average(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal softmax attention, token by token."""
    rows = []
    for t in range(q.shape[1]):
        weights = torch.softmax((k[:, : t + 1] @ q[:, t, :, None])[..., 0] / q.shape[-1] ** 0.5, dim=-1)
        rows.append((weights[..., None] * v[:, : t + 1]).sum(1))
    return torch.stack(rows, dim=1)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gqa", {"groups": 3}),
        ("differential", {"start": 1.0}),
        ("dot", {"dropout": 1.0}),
        ("additive", {"dropout": 1.0}),
    ],
)
def test_options_out_of_range_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make(name, **options)


@pytest.mark.parametrize("name", ["sliding", "bigbird", "linformer", "perceiver", "performer"])
def test_negative_options_are_refused(name: str) -> None:
    for option, parameter in registry.find("mechanism", name).options.items():
        if isinstance(parameter.default, int):
            with pytest.raises(ConfigError):
                make(name, **{option: -1})


def test_alibi_charges_by_the_papers_slopes() -> None:
    module = registry.find("mechanism", "alibi").build(64, 8, BLOCK)
    assert torch.allclose(module.slopes, torch.tensor([2.0**-i for i in range(1, 9)]))
    assert torch.equal(module.biases(1, 3)[0, 0], torch.tensor([-1.0, -0.5, 0.0]))


def test_alibi_stays_exact_in_a_long_text() -> None:
    module, tokens = make("alibi", length=4096), 4096
    q, k, v = (torch.randn(1, HEADS, tokens, HEAD) for _ in range(3))
    z = module.fast(q, k, v, None)[:, :, -1].double()
    scores = (k.double() @ q[:, :, -1, :, None].double())[..., 0] / HEAD**0.5
    scores = scores - module.slopes.double()[:, None] * torch.arange(tokens - 1, -1, -1)
    exact = (scores.softmax(-1)[..., None] * v.double()).sum(2)
    assert (z - exact).abs().max() < 2e-6


def test_differential_is_the_difference_of_two_softmaxes() -> None:
    module = make("differential", start=0.3)
    q, k, v = parts(module)
    (q1, q2), (k1, k2) = (
        (one[..., [0, 1, 4, 5]], one[..., [2, 3, 6, 7]]) for one in (q.flatten(0, 1), k.flatten(0, 1))
    )
    a, b, c, d = module.exponents
    share = torch.exp(a.dot(b)) - torch.exp(c.dot(d)) + 0.3
    z = make_average(q1, k1, v.flatten(0, 1)) - share * make_average(q2, k2, v.flatten(0, 1))
    z = 0.7 * z / (z.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert torch.allclose(module.fast(q, k, v, None).flatten(0, 1), z, atol=1e-5)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_differential_keeps_rotary_pairs_together(layout: ops.RotaryLayout) -> None:
    module = make("differential", rotary=True, rotation=ops.Rotary(layout))
    x = torch.randn(1, 1, WIDTH).expand(1, TOKENS, WIDTH)  # equal tokens: scores depend on distances only
    q, k, _ = module.heads(x)
    for one, other in zip(*(map_halves(y, layout) for y in (q, k)), strict=True):
        scores = one @ other.transpose(-2, -1)
        assert torch.allclose(scores[..., :-1, :-1], scores[..., 1:, 1:], atol=1e-4)


def map_halves(x: Tensor, layout: ops.RotaryLayout) -> tuple[Tensor, Tensor]:
    from attnlab.mechanisms.differential import halves

    return halves(x, layout)


def test_differential_refuses_to_cut_a_part_that_is_rotated() -> None:
    with pytest.raises(ConfigError, match="rotary_fraction 1"):
        make("differential", rotary=True, rotation=ops.Rotary(fraction=0.5))


def test_a_synthesizer_compares_nothing() -> None:
    x, other = torch.randn(2, 1, TOKENS, WIDTH)
    other = other.clone()
    other[:, 9] = x[:, 9]
    dense, random = make("synthesizer"), make("synthesizer", kind="random")
    assert torch.allclose(pattern_of(dense, x)[:, :, 9], pattern_of(dense, other)[:, :, 9], atol=1e-7)
    assert not torch.allclose(pattern_of(dense, x)[:, :, 8], pattern_of(dense, other)[:, :, 8], atol=1e-4)
    assert torch.equal(pattern_of(random, x), pattern_of(random, other))


def test_the_control_of_zero_masking_is_dot_and_the_variant_is_not() -> None:
    dot, control, wrong = make("dot"), make("zero_mask_control"), make("zero_mask")
    for module in (control, wrong):
        module.load_state_dict(dot.state_dict())
    x = torch.randn(2, TOKENS, WIDTH)
    assert torch.allclose(dot(x), control(x), atol=1e-6)
    sums = pattern_of(wrong, x).sum(-1)
    assert (sums[..., :-1] < 1).all()
    assert torch.allclose(sums[..., -1], torch.ones(()))


def test_a_sliding_window_ends_where_it_says() -> None:
    pattern = pattern_of(make("sliding", window=5), torch.randn(1, TOKENS, WIDTH))
    for t in range(TOKENS):
        assert ((pattern[0, :, t] > 0).nonzero()[:, 1].unique() == torch.arange(max(0, t - 4), t + 1)).all()


def test_bigbird_sees_global_window_and_random_blocks() -> None:
    module = make("bigbird", block=4, window_blocks=2, random_blocks=2, global_blocks=1)
    seen = module.allowed(BLOCK)
    assert seen.sum(-1).tolist() == [1, 2, 3, 4] + [5] * 12
    assert seen[:, 0].all()
    assert all(seen[i, i] and seen[i, i - 1] for i in range(1, 16))
    assert not seen.triu(1).any()
    both = make("bigbird", block=4, window_blocks=3, random_blocks=2, global_blocks=1, causal=False).allowed(BLOCK)
    assert both[0].all()
    assert both[:, 0].all()
    assert (both[2:15].sum(-1) == 6).all()


def test_bigbirds_draw_is_saved_and_differs_between_layers() -> None:
    first, second = (registry.find("mechanism", "bigbird").build(WIDTH, HEADS, 1024) for _ in range(2))
    assert not torch.equal(first.drawn, second.drawn)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.allowed(1000), second.allowed(1000))
    third, x = registry.find("mechanism", "bigbird").build(WIDTH, HEADS, 1024), torch.randn(1, 1000, WIDTH)
    third(x)  # has laid out its own draw
    third.load_state_dict(first.state_dict())
    assert torch.equal(third(x), first(x))


@pytest.mark.parametrize("kind", ["positive", "hyperbolic", "trigonometric"])
def test_performers_features_are_right_on_average(kind: str) -> None:
    q, k = 0.5 * torch.randn(2, 1, 1, 3, HEAD)
    exact = (q @ k.transpose(-2, -1) / HEAD**0.5).exp()
    draws = []
    for seed in range(60):
        torch.manual_seed(seed)
        module = registry.find("mechanism", "performer").build(WIDTH, HEADS, BLOCK, kind=kind, features=512)
        (log_q, sign_q), (log_k, sign_k) = module.features(q), module.features(k)
        if kind == "trigonometric":
            estimate = (log_q.exp() * sign_q) @ (log_k.exp() * sign_k).transpose(-2, -1) / 256
        else:
            estimate = log_q.exp() @ log_k.exp().transpose(-2, -1) / 512
        draws.append(estimate)
    every = torch.stack(draws)
    error = (every.mean(0) - exact).abs() / (every.std(0) / 60**0.5)
    assert error.max() < 4.5  # standard errors, of nine averages


def test_orthogonal_directions_are_orthogonal_and_normal_in_length() -> None:
    directions = draw_directions(4 * HEAD, HEAD, orthogonal=True)
    for group in directions.split(HEAD):
        products = group @ group.T
        assert (products - products.diag().diag()).abs().max() < 1e-4
    drawn = make("performer", directions="iid", features=2 * HEAD).directions[:HEAD]
    assert (drawn @ drawn.T - (drawn @ drawn.T).diag().diag()).abs().max() > 0.1
    lengths = draw_directions(8000, HEAD, orthogonal=True).square().sum(-1)
    assert abs(lengths.mean().item() - HEAD) < 0.2


def test_performer_redraws_in_training_only_and_remembers() -> None:
    module, x = make("performer", redraw=2), torch.randn(1, 5, WIDTH)
    first = module.directions.clone()
    module(x)
    assert torch.equal(module.directions, first)
    module.train()
    module(x)
    assert torch.equal(module.directions, first)
    module(x)
    assert not torch.equal(module.directions, first)
    second = module.directions.clone()
    module(x)
    module(x)
    assert not torch.equal(module.directions, second)
    other = make("performer", redraw=2)
    other.load_state_dict(module.state_dict())
    assert other.steps == 4
    assert torch.equal(other(x), module.eval()(x))


def test_linear_attention_is_its_sum() -> None:
    module = make("linear")
    q, k, v = parts(module)
    f, g = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1
    weights = (f @ g.transpose(-2, -1)).tril()
    assert torch.allclose(module.fast(q, k, v, None), weights @ v / weights.sum(-1, keepdim=True), atol=1e-5)


def test_linformer_mixes_keys_and_values_along_the_text() -> None:
    module = make("linformer", rank=6, causal=False)
    q, k, v = parts(module)
    keys, values = (
        torch.einsum("rt,bhtc->bhrc", m[:, :TOKENS], x) for m, x in ((module.mix_keys, k), (module.mix_values, v))
    )
    plain = (q @ keys.transpose(-2, -1) / HEAD**0.5).softmax(-1) @ values
    assert torch.allclose(module.fast(q, k, v, None), plain, atol=1e-5)


@pytest.mark.parametrize("name", ["linformer", "perceiver"])
def test_the_first_block_of_a_causal_bottleneck_is_exact(name: str) -> None:
    module = make(name, length=8 * 8)
    q, k, v = parts(module)
    exact = make_average(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)).unflatten(0, (2, HEADS))
    z = module.fast(q, k, v, None)
    assert torch.allclose(z[:, :, :8], exact[:, :, :8], atol=1e-5)
    assert not torch.allclose(z[:, :, 8:], exact[:, :, 8:], atol=1e-3)


def test_a_perceivers_latents_read_the_text_and_the_text_reads_them() -> None:
    module = make("perceiver", latents=3, causal=False)
    q, k, v = parts(module)
    asking = module.heads.query(module.latents).view(3, HEADS, HEAD).transpose(0, 1)
    read = (asking @ k.transpose(-2, -1) / HEAD**0.5).softmax(-1)
    plain = (q @ (read @ k).transpose(-2, -1) / HEAD**0.5).softmax(-1) @ (read @ v)
    assert torch.allclose(module.fast(q, k, v, None), plain, atol=1e-5)


@pytest.mark.parametrize("name", ["performer", "linear", "sliding"])
def test_the_cache_does_not_grow(name: str) -> None:
    module, sizes = make(name, **({"window": 6} if name == "sliding" else {})), []
    cache = module.new_cache()
    for _ in range(30):
        module(torch.randn(1, 1, WIDTH), cache=cache)
        kept = cache.state if hasattr(cache, "state") else cache._stored
        sizes.append(sum(one.numel() for one in kept))
    assert cache.length == 30
    assert sizes[10] == sizes[-1]


def test_hyperbolic_features_come_in_opposite_pairs() -> None:
    module, x = make("performer", kind="hyperbolic", features=6), torch.randn(1, 1, 4, HEAD)
    logs, _ = module.features(x)
    lengths = x.square().sum(-1, keepdim=True) / 2 / HEAD**0.5
    assert torch.allclose(logs[..., :3] + logs[..., 3:], -2 * lengths.expand(-1, -1, -1, 3), atol=1e-5)


def test_a_dense_synthesizer_scores_places_by_a_hidden_layer() -> None:
    module = make("synthesizer", causal=False, length=300)
    q, k, v = parts(module, 300)
    scores = torch.einsum("bhtc,hsc->bhts", q.clamp_min(0), module.places)
    assert torch.allclose(module.fast(q, k, v, None), scores.softmax(-1) @ v, atol=1e-5)


def test_bidirectional_alibi_charges_both_ways_alike() -> None:
    module = make("alibi", causal=False)
    q, k, v = parts(module)
    away = (torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)).abs()
    scores = q @ k.transpose(-2, -1) / HEAD**0.5 - module.slopes[:, None, None] * away
    assert torch.allclose(module.fast(q, k, v, None), scores.softmax(-1) @ v, atol=1e-5)


def test_causal_linformer_mixes_what_comes_before_the_block() -> None:
    module = make("linformer", rank=3, block=4)
    q, k, v = parts(module, 8)
    rows = [
        torch.einsum("rt,bhtc->bhrc", mix[:, :4], x[:, :, :4]) / 2  # the root of the four tokens before
        for mix, x in ((module.mix_keys, k), (module.mix_values, v))
    ]
    keys, values = (torch.cat([row, x[:, :, 4:7]], dim=2) for row, x in zip(rows, (k, v), strict=True))
    z = (q[:, :, 6:7] @ keys.transpose(-2, -1) / HEAD**0.5).softmax(-1) @ values
    assert torch.allclose(module.fast(q, k, v, None)[:, :, 6:7], z, atol=1e-5)


def test_latents_ask_with_normalised_queries_where_queries_are() -> None:
    sizes = make("perceiver", qk_norm=True).asking().square().mean(-1)
    assert torch.allclose(sizes, torch.ones_like(sizes), atol=1e-4)


@pytest.mark.parametrize("kind", ["positive", "hyperbolic"])
@pytest.mark.parametrize("causal", [True, False])
def test_watching_a_performer_changes_nothing_at_large_norms(kind: str, causal: bool) -> None:
    module, x = make("performer", kind=kind, causal=causal), 30 * torch.randn(1, 40, WIDTH)
    plain = module(x)
    with capture(module, "hook_pattern"):
        watched = module(x)
    assert (plain - watched).abs().max() < 1e-3 * plain.abs().max()


@pytest.mark.parametrize("name", registry.names("mechanism"))
def test_a_layer_refuses_what_it_was_not_made_for(name: str) -> None:
    with pytest.raises(ValueError, match="too many") if make(name).bounded else nullcontext():
        make(name, length=16)(torch.randn(1, 17, WIDTH))
    if not registry.find("mechanism", name).accepts("causal"):
        return  # it is always causal
    both_ways = make(name, causal=False)
    with pytest.raises(ValueError, match="cannot generate"):
        both_ways(torch.randn(1, 3, WIDTH), cache=both_ways.new_cache())


@pytest.mark.parametrize("name", registry.names("mechanism"))
def test_double_precision_is_as_right(name: str) -> None:
    module = make(name, length=320).double()
    x = torch.randn(1, 300, WIDTH, dtype=torch.float64)
    plain = module(x)
    with capture(module, "hook_pattern"):
        watched = module(x)
    assert (plain - watched).abs().max() < 1e-8
