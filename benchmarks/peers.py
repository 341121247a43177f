"""Other libraries as contestants. Imported in their own environment only (mechanisms.py makes it).

Like is compared with like. performer-pytorch, local-attention and transformers' BigBird can be handed queries, keys and
values, so they and ours are timed without projections. linformer and perceiver-pytorch are modules with projections, and
ours are timed whole, too; of perceiver-pytorch that is its attention twice, tokens to latents and back. transformers' states
are handed their decays and strengths as well, in float32; its functions are the paths that it takes without a GPU.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from importlib import import_module

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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


def on_states(case: Case, inputs: Inputs, call: Callable[..., Tensor], decays: int = 0) -> Work:
    """Work on queries, keys, values, decays and strengths, tokens before heads; `decays` per head, 0 for one without width."""
    shape, width = (case.batch, case.tokens, case.n_head), case.n_embd // case.n_head
    q, k, v = (inputs.get(role, case.batch, case.n_head, case.tokens, width).transpose(1, 2) for role in "qkv")
    decay = -inputs.get("decay", *shape, decays or 1).detach().exp() / 20
    decay = decay if decays else decay[..., 0]
    given = (F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, decay, inputs.get("strength", *shape).sigmoid())
    return Work(call, tuple(x.detach().requires_grad_() for x in given), torch.randn(*shape, width))


def transformers_gated_delta(case: Case, inputs: Inputs) -> Work:
    """The gated delta rule of Qwen3-Next, by chunks."""
    rule = import_module("transformers.models.qwen3_next.modeling_qwen3_next").torch_chunk_gated_delta_rule
    return on_states(case, inputs, lambda *given: rule(*given)[0])


def transformers_kda(case: Case, inputs: Inputs) -> Work:
    """The delta rule of Kimi Linear, with a decay per channel, by chunks."""
    rule = import_module("transformers.models.kimi_linear.modeling_kimi_linear").chunk_kimi_delta_attention
    return on_states(case, inputs, lambda *given: rule(*given)[0], case.n_embd // case.n_head)


def transformers_mamba2(case: Case, inputs: Inputs) -> Work:
    """The scan of Mamba-2, by chunks, with as many groups as heads."""
    rule = import_module("transformers.models.mamba2.modeling_mamba2").mamba2_chunk_scan

    def scan(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, strength: Tensor) -> Tensor:
        rates = decay.new_full((case.n_head,), -1.0)
        return rule(v, -decay, rates, k, q * strength[..., None], chunk_size=64)

    return on_states(case, inputs, scan)


PEERS: dict[str, Callable[[Case, Inputs], Work]] = {
    "performer-pytorch": performer_pytorch,
    "local-attention": local_attention,
    "transformers BigBird": transformers_bigbird,
    "linformer 0.2.3": linformer,
    "perceiver-pytorch": perceiver_pytorch,
    "transformers gated delta": transformers_gated_delta,
    "transformers KDA": transformers_kda,
    "transformers Mamba-2": transformers_mamba2,
}
cases.EXTERNAL.update(PEERS)
