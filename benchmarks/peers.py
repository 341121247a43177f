"""Other libraries as contestants. Imported in their own environment only (mechanisms.py makes it).

Like is compared with like. performer-pytorch, local-attention and transformers' BigBird can be handed queries, keys and
values, so they and ours are timed without projections. linformer and perceiver-pytorch are modules with projections, and
ours are timed whole, too; of perceiver-pytorch that is its attention twice, tokens to latents and back.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from importlib import import_module

import torch
from torch import Tensor, nn

from attnlab.measure.bench import cases
from attnlab.measure.bench.cases import Case, Inputs, Work, on_heads, on_stream

BLOCK, RANDOM = 64, 3  # of BigBird
WINDOW = 128
ROWS = LATENTS = 256


def performer_pytorch(case: Case, inputs: Inputs) -> Work:
    """Its attention with its own number of features, width·ln(width)."""
    with contextlib.redirect_stdout(io.StringIO()):  # it says that there is no CUDA
        made = import_module("performer_pytorch").FastAttention(case.n_embd // case.n_head, causal=case.causal)
    return on_heads(case, inputs, made)


def local_attention(case: Case, inputs: Inputs) -> Work:
    """A window of 128 tokens, exactly."""
    made = import_module("local_attention").LocalAttention(
        window_size=WINDOW, causal=case.causal, exact_windowsize=True, autopad=True
    )
    return on_heads(case, inputs, made)


def transformers_bigbird(case: Case, inputs: Inputs) -> Work:
    """Its block-sparse attention as in training. It looks both ways: there is no causal one."""
    module, width = import_module("transformers.models.big_bird.modeling_big_bird"), case.n_embd // case.n_head
    config = import_module("transformers").BigBirdConfig(
        hidden_size=case.n_embd,
        num_attention_heads=case.n_head,
        max_position_embeddings=case.tokens,
        block_size=BLOCK,
        num_random_blocks=RANDOM,
    )
    made = module.BigBirdBlockSparseAttention(config, seed=0).train()
    everything = torch.ones(case.batch, case.tokens)
    blocked, band, rows, columns = module.BigBirdModel.create_masks_for_block_sparse_attn(everything, BLOCK)
    sizes = (case.n_head, RANDOM, width, BLOCK, BLOCK, case.batch, case.tokens, case.tokens)

    def average(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        context, _ = made.bigbird_block_sparse_attention(
            q, k, v, band, rows, columns, blocked, blocked, *sizes, 0, plan_from_length=None, plan_num_rand_blocks=None
        )
        return context.reshape(case.batch, case.tokens, case.n_head, width).transpose(1, 2)

    return on_heads(case, inputs, average)


def linformer(case: Case, inputs: Inputs) -> Work:
    """Its self-attention module."""
    made = import_module("linformer").LinformerSelfAttention(case.n_embd, case.tokens, k=ROWS, heads=case.n_head)
    return on_stream(case, inputs, made)


class Bottleneck(nn.Module):
    """perceiver-pytorch's attention twice: latents look at the tokens, tokens at the latents."""

    def __init__(self, n_embd: int, n_head: int) -> None:
        super().__init__()
        attention = import_module("perceiver_pytorch.perceiver_pytorch").Attention
        self.latents = nn.Parameter(torch.randn(1, LATENTS, n_embd))
        self.down = attention(n_embd, n_embd, heads=n_head, dim_head=n_embd // n_head)
        self.up = attention(n_embd, n_embd, heads=n_head, dim_head=n_embd // n_head)

    def forward(self, x: Tensor) -> Tensor:
        """The tokens by way of the latents."""
        return self.up(x, context=self.down(self.latents.expand(len(x), -1, -1), context=x))


def perceiver_pytorch(case: Case, inputs: Inputs) -> Work:
    """The bottleneck as a module."""
    return on_stream(case, inputs, Bottleneck(case.n_embd, case.n_head))


PEERS: dict[str, Callable[[Case, Inputs], Work]] = {
    "performer-pytorch": performer_pytorch,
    "local-attention": local_attention,
    "transformers BigBird": transformers_bigbird,
    "linformer 0.2.3": linformer,
    "perceiver-pytorch": perceiver_pytorch,
}
cases.EXTERNAL.update(PEERS)
