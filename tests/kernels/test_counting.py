"""Counts against what was written down by hand, and against what torch's kernel can be seen to compute."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attnlab.kernels import build
from attnlab.kernels.additive import additive_attention
from attnlab.kernels.counting import TILE, Counter, counted_as, pairs_seen

NAN = float("nan")


def counted(run: Callable[[], object]) -> int:
    with Counter() as counter:
        run()
    return counter.total


def rows_that_meet(key: int, tokens: int) -> int:
    """How many queries torch's fused kernel multiplies with a key, by the rule that is counted by."""
    return sum(key < min(tokens, -(-(row + 1) // TILE) * TILE) for row in range(tokens))


@pytest.mark.parametrize("tokens", [100, 700, 1100])
def test_torchs_kernel_skips_the_tiles_that_are_not_counted(tokens: int) -> None:
    """A value that is no number shows in every average whose tile holds it, weighed by zero or not."""
    q, k = torch.randn(2, 1, 1, tokens, 32)
    met = 0
    for first in range(0, tokens, 32):
        keys = torch.arange(first, min(tokens, first + 32))
        v = torch.zeros(1, 1, tokens, 32)
        v[0, 0, keys, keys - first] = NAN
        met += int(F.scaled_dot_product_attention(q, k, v, is_causal=True).isnan().sum())
    assert (
        met == pairs_seen(tokens, tokens, True, tile=TILE) == sum(rows_that_meet(key, tokens) for key in range(tokens))
    )
    assert counted(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)) == met * 2 * 2 * 32


@pytest.mark.parametrize("key", [0, 511, 512, 1023, 1024, 1099])
def test_torchs_kernel_skips_the_same_tiles_on_the_way_back(key: int) -> None:
    q, k, v, gradient = torch.randn(4, 1, 1, 1100, 16)
    z, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)
    v[0, 0, key] = NAN
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    of_queries, _, _ = backward(gradient, q, k, v, z, sums, 0.0, True)
    assert int(of_queries[0, 0, :, 0].isnan().sum()) == rows_that_meet(key, 1100)


def test_a_mask_saves_nothing() -> None:
    q, k, v = (torch.randn(2, heads, 20, 8, requires_grad=True) for heads in (6, 2, 2))
    mask = torch.ones(20, 20, dtype=torch.bool).tril()
    with Counter() as counter:
        z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        assert counter.total == 2 * 6 * 20 * 20 * 2 * (8 + 8)
        z.sum().backward()
    assert counter.total == 2 * 6 * 20 * 20 * 2 * (8 + 8) * 7 // 2


a, b, vector, batch = torch.randn(3, 5), torch.randn(5, 7), torch.randn(5), torch.randn(4, 3, 5)
square = torch.eye(5)
PRODUCTS: dict[str, tuple[Callable[[], object], int]] = {
    "matrices": (lambda: a @ b, 2 * 3 * 5 * 7),
    "into another": (lambda: torch.mm(a, b, out=torch.empty(3, 7)), 2 * 3 * 5 * 7),
    "added to another": (lambda: torch.zeros(3, 7).addmm_(a, b), 2 * 3 * 5 * 7),
    "a batch": (lambda: batch @ b, 2 * 4 * 3 * 5 * 7),
    "two batches": (lambda: batch @ batch.mT, 2 * 4 * 3 * 5 * 3),
    "einsum": (lambda: torch.einsum("bik,bjk->bij", batch, batch), 2 * 4 * 3 * 5 * 3),
    "linear": (lambda: F.linear(batch, b.T, torch.zeros(7)), 2 * 4 * 3 * 5 * 7),
    "with a vector": (lambda: a @ vector, 2 * 3 * 5),
    "of vectors": (lambda: vector @ vector, 2 * 5),
    "a triangle, solved for columns": (lambda: torch.linalg.solve_triangular(square, b, upper=True), 5 * 5 * 7),
    "a triangle, solved for rows": (
        lambda: torch.linalg.solve_triangular(square, a, upper=True, left=False),
        5 * 5 * 3,
    ),
    "convolution": (lambda: F.conv1d(torch.randn(1, 4, 10), torch.randn(6, 4, 3)), 2 * 8 * 6 * 4 * 3),
    "number by number": (lambda: (a * 2 + a.tanh()).softmax(-1).sum(), 0),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_count_two_for_a_multiply_add(name: str) -> None:
    run, expected = PRODUCTS[name]
    assert counted(run) == expected
    with torch.inference_mode():
        assert counted(run) == expected


def test_a_linear_layer_and_its_gradients_take_three_products() -> None:
    layer, x = torch.nn.Linear(5, 7), torch.randn(3, 5, requires_grad=True)
    assert counted(lambda: layer(x).sum().backward()) == 3 * 2 * 3 * 5 * 7


def test_a_kernel_says_what_it_takes_to_all_who_count() -> None:
    asked = []

    def claimed() -> int:
        asked.append(True)
        return 1000

    def run() -> None:
        with counted_as(claimed):
            a @ b

    run()
    assert not asked
    with Counter() as outer:
        a @ b
        with Counter() as inner:
            run()
        run()
    assert inner.total == 1000
    assert outer.total == 2 * 3 * 5 * 7 + 2000
    run()
    assert outer.total == 2 * 3 * 5 * 7 + 2000


def additive_inputs() -> tuple[Tensor, ...]:
    shapes = ((2, 3, 9, 5), (2, 3, 11, 5), (5,), (2, 3, 11, 7))
    return tuple(torch.randn(shape, requires_grad=True) for shape in shapes)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_additive_attention_counts_the_same_compiled_and_plain(
    compiled: bool, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setenv("ATTNLAB_KERNELS", "0")
    elif build.load("additive") is None:
        pytest.skip("there is no compiler")
    # Nine queries, the last of eleven tokens: the first one sees three.
    pairs = 2 * 3 * (sum(range(3, 12)) if causal else 9 * 11)
    tensors = additive_inputs()
    with Counter() as counter:
        z = additive_attention(*tensors, None, causal)
        # A sum, a tanh and a multiply-add for each of 5 channels; a multiply-add for each of 7 coordinates.
        assert counter.total == pairs * (5 * (1 + 1 + 2) + 7 * 2)
        forward = counter.total
        z.sum().backward()
    assert counter.total - forward == pairs * (5 * (4 + 6) + 7 * 4)
