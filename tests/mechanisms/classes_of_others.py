"""Attention classes in the manners of courses and libraries, written for the tests: minGPT's, nanoGPT's, torch's and others.

LEAKS has, for every class, a mistake as students make them: a text in its source, and what to replace it by.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


class MinGPT(nn.Module):
    """A config without a class, a mask buffer of its block, and a cache that nobody fills."""

    def __init__(self, config):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.query, self.key, self.value, self.proj = (nn.Linear(config.n_embd, config.n_embd) for _ in range(4))
        self.attn_drop, self.resid_drop = nn.Dropout(config.attn_pdrop), nn.Dropout(config.resid_pdrop)
        self.register_buffer("mask", torch.tril(torch.ones(config.block_size, config.block_size))[None, None])
        self.n_head = config.n_head

    def forward(self, x, layer_past=None):
        q, k, v = (
            part(x).unflatten(2, (self.n_head, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(self.mask[:, :, : x.shape[1], : x.shape[1]] == 0, -1e10)
        y = self.attn_drop(scores.softmax(-1)) @ v
        return self.resid_drop(self.proj(y.transpose(1, 2).flatten(2)))


@dataclass
class GPTConfig:
    block_size: int = 1024
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    bias: bool = True
    temperature: float = 1.0

    @property
    def width(self):
        return self.n_embd // self.n_head


class NanoGPT(nn.Module):
    """A config with a class in the file: `temperature` and `width` are fields that no other library has."""

    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_head * config.width, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = config.dropout
        self.config = config

    def forward(self, x):
        q, k, v = (part.unflatten(2, (self.config.n_head, -1)) for part in self.c_attn(x).chunk(3, dim=-1))
        q, k, v = q.transpose(1, 2) / self.config.temperature, k.transpose(1, 2), v.transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout * self.training, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class Infinite(nn.Module):
    """A config with `in` and `get`, and a buffer that holds -inf."""

    def __init__(self, cfg, layer_idx):
        super().__init__()
        self.proj = nn.Linear(cfg["emb_dim"], 3 * cfg["emb_dim"], bias=cfg.get("qkv_bias", False))
        self.out_proj = nn.Linear(cfg["emb_dim"], cfg["emb_dim"])
        self.heads, self.scale = cfg["n_heads"], cfg.get("no_such_field", 1.0)
        self.register_buffer("future", torch.full((cfg["context_length"],) * 2, -torch.inf).triu(1))

    def forward(self, x):
        q, k, v = self.proj(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = self.scale * q @ k.mT / math.sqrt(q.shape[-1]) + self.future[: x.shape[1], : x.shape[1]]
        return self.out_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class FromScratch(nn.Module):
    """Keywords of a book, and outputs with weights."""

    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        self.W = nn.ModuleList(nn.Linear(d_in, d_out, bias=qkv_bias) for _ in range(3))
        self.out_proj, self.drop, self.num_heads = nn.Linear(d_out, d_out), nn.Dropout(dropout), num_heads
        self.register_buffer("mask", torch.ones(context_length, context_length).triu(1).bool())

    def forward(self, x):
        q, k, v = (part(x).unflatten(2, (self.num_heads, -1)).transpose(1, 2) for part in self.W)
        scores = (q @ k.mT).masked_fill(self.mask[: x.shape[1], : x.shape[1]], -torch.inf)
        weights = self.drop((scores / k.shape[-1] ** 0.5).softmax(-1))
        return self.out_proj((weights @ v).transpose(1, 2).flatten(2)), weights


class Annotated(nn.Module):
    """Heads before the width, queries, keys and values, and a mask [1, T, T] that is True where visible."""

    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))
        self.h, self.drop = h, nn.Dropout(dropout)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)
        inputs = zip(self.linears, (query, key, value), strict=False)
        q, k, v = (part(x).view(len(x), -1, self.h, x.shape[-1] // self.h).transpose(1, 2) for part, x in inputs)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return self.linears[-1]((self.drop(scores.softmax(-1)) @ v).transpose(1, 2).flatten(2))


class Hidden(nn.Module):
    """A required mask that is True where hidden."""

    def __init__(self, d_model, num_heads, max_len=512):
        super().__init__()
        self.qkv, self.out, self.num_heads = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model), num_heads
        self.decay = nn.Parameter(torch.zeros(max_len))

    def forward(self, inputs, attn_mask):
        q, k, v = self.qkv(inputs).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / math.sqrt(q.shape[-1]) + self.decay[: inputs.shape[1]]
        scores.masked_fill_(attn_mask, -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@dataclass
class ModelArgs:
    dim: int = 4096
    n_heads: int = 32
    n_kv_heads: int | None = None


class Llama(nn.Module):
    """An annotated config, the number of the layer, and a mask that is added."""

    def __init__(self, layer_id: int, args: ModelArgs):
        super().__init__()
        self.n_heads, self.n_kv, width = args.n_heads, args.n_kv_heads or args.n_heads, args.dim // args.n_heads
        self.wq, self.wo = (nn.Linear(args.dim, args.dim, bias=False) for _ in range(2))
        self.wk, self.wv = (nn.Linear(args.dim, self.n_kv * width, bias=False) for _ in range(2))

    def forward(self, x, mask: torch.Tensor | None):
        q, k, v = (
            part(x).unflatten(2, (-1, x.shape[2] // self.n_heads)).transpose(1, 2)
            for part in (self.wq, self.wk, self.wv)
        )
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        scores = scores if mask is None else scores + mask
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class HuggingFace(nn.Module):
    """The fields and outputs of transformers, and a mask [1, 1, T, T] that is added."""

    def __init__(self, config, layer_idx=None):
        super().__init__()
        self.heads = config.num_attention_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(config.hidden_size, config.hidden_size, bias=config.attention_bias) for _ in range(4)
        )
        self.dropout = config.attention_dropout

    def forward(self, hidden_states, attention_mask=None, past_key_value=None, use_cache=False, **kwargs):
        shape = (*hidden_states.shape[:2], self.heads, -1)
        q, k, v = (part(hidden_states).view(shape).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj))
        weights = q @ k.mT / math.sqrt(q.shape[-1])
        if attention_mask is not None:
            assert attention_mask.shape[:2] == (1, 1)
            weights = weights + attention_mask[:, :, :, : k.shape[2]]
        weights = F.dropout(weights.softmax(-1), self.dropout, self.training)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2)), weights, past_key_value


class Torch(nn.MultiheadAttention):
    """A class of torch: batch_first, queries, keys and values, and attn_mask that is True where hidden."""


class Lucid(nn.Module):
    """The width of a head, and whether it is causal."""

    def __init__(self, dim, heads=8, dim_head=64, causal=False, dropout=0.0):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * heads * dim_head), nn.Linear(heads * dim_head, dim)
        self.attend = nn.Dropout(dropout)

    def forward(self, x, context=None):
        q, k, v = self.to_qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if self.causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf)
        return self.to_out((self.attend(scores.softmax(-1)) @ v).transpose(1, 2).flatten(2))


class Flagged(nn.Module):
    """Whether it is causal is said in the call."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.qkv, self.out, self.num_heads = (
            nn.Linear(embed_dim, 3 * embed_dim),
            nn.Linear(embed_dim, embed_dim),
            num_heads,
        )

    def forward(self, x, is_causal=False):
        q, k, v = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=is_causal).transpose(1, 2).flatten(2))


class Multiplied(nn.Module):
    """A mask of numbers, 1 where visible, and weights before the outputs' list."""

    def __init__(self, input_dim, embed_dim, num_heads):
        super().__init__()
        self.qkv, self.o_proj, self.num_heads = (
            nn.Linear(input_dim, 3 * embed_dim),
            nn.Linear(embed_dim, embed_dim),
            num_heads,
        )

    def forward(self, x, mask):
        q, k, v = self.qkv(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / math.sqrt(q.shape[-1]) - (1.0 - mask) * 1e9
        return [self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))]


class Rotated(nn.Module):
    """A base of angles without a default, and positions that every call must give."""

    def __init__(self, d_model: int, num_heads: int, max_seq_len: int, theta: float):
        super().__init__()
        self.proj, self.output_proj = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.num_heads, width = num_heads, d_model // num_heads
        angles = torch.outer(torch.arange(max_seq_len), theta ** (-torch.arange(0, width, 2) / width))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, x, token_positions):
        q, k, v = self.proj(x).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        turns = torch.view_as_real(self.turns[token_positions]).to(x).contiguous()
        q, k = (
            torch.view_as_real(
                torch.view_as_complex(part.unflatten(3, (-1, 2)).contiguous()) * torch.view_as_complex(turns)
            )
            for part in (q, k)
        )
        y = F.scaled_dot_product_attention(q.flatten(3), k.flatten(3), v, is_causal=True)
        return self.output_proj(y.transpose(1, 2).flatten(2))


LEAKS = {
    "MinGPT": ("torch.tril(torch.ones(", "torch.tril(diagonal=1, input=torch.ones("),
    "NanoGPT": ("is_causal=True", "is_causal=self.training"),
    "Infinite": ("-torch.inf).triu(1)", "-torch.inf).triu(2)"),
    "FromScratch": ("x.shape[1]], -torch.inf)\n        weights", "x.shape[1]], -2.0)\n        weights"),
    "Annotated": ("masked_fill(mask == 0, -1e9)", "masked_fill(mask == 0, -3.0)"),
    "Hidden": ("scores.softmax(-1)", "(scores.softmax(-1) + 0.01)"),
    "Llama": ("scores + mask", "scores.softmax(-1) + mask.exp()"),
    "HuggingFace": ("weights.softmax(-1)", "weights.softmax(-2)"),
    "Torch": (
        "\n\n\nclass Lucid",
        """
    def forward(self, query, key, value, attn_mask=None):
        return super().forward(query, key, value + value.roll(-1, 1), attn_mask=attn_mask)


class Lucid""",
    ),
    "Lucid": ("torch.ones_like(scores).triu(1)", "torch.ones_like(scores).triu(len(scores) + 1)"),
    "Flagged": ("(q, k, v, is_causal=is_causal)", "(q, k, v + v.mean(2, keepdim=True), is_causal=is_causal)"),
    "Rotated": ("v, is_causal=True", "v, is_causal=self.training"),
    "Multiplied": (
        "(scores.softmax(-1) @ v).transpose(1, 2).flatten(2))]",
        "((scores.softmax(-1) + 0.01) @ v).transpose(1, 2).flatten(2))]",
    ),
}
