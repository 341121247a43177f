"""A language model as students hand it in, answers to f2.toml. The tests of marking change a part of it at a time."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class MLP(nn.Module):
    """The MLP of GPT-2."""

    def __init__(self, n_embd):
        """Make the parameters."""
        super().__init__()
        self.fc, self.proj = nn.Linear(n_embd, 4 * n_embd), nn.Linear(4 * n_embd, n_embd)

    def forward(self, x):
        """Compute the output."""
        return self.proj(F.gelu(self.fc(x)))


class Attention(nn.Module):
    """Causal attention of several heads."""

    def __init__(self, n_embd, n_head, block_size):
        """Make the parameters."""
        super().__init__()
        self.n_head = n_head
        self.q, self.k, self.v, self.proj = (nn.Linear(n_embd, n_embd) for _ in range(4))

    def forward(self, x):
        """Compute the output."""
        q, k, v = (part(x).unflatten(-1, (self.n_head, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1) > 0, -math.inf).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2)), weights


class Block(nn.Module):
    """Attention and MLP, each after a norm and added to what it reads."""

    def __init__(self, n_embd, n_head, block_size):
        """Make the parameters."""
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn, self.mlp = Attention(n_embd, n_head, block_size), MLP(n_embd)

    def forward(self, x):
        """Compute the output."""
        x = x + self.attn(self.ln1(x))[0]
        return x + self.mlp(self.ln2(x))


class Model(nn.Module):
    """A language model with learned positions."""

    def __init__(self, vocab_size, block_size, n_layer, n_head, n_embd):
        """Make the parameters."""
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList(Block(n_embd, n_head, block_size) for _ in range(n_layer))
        self.ln, self.head = nn.LayerNorm(n_embd), nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, ids, targets=None):
        """Compute the output."""
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.head(self.ln(x)), None


def loss(logits, targets):
    """Mean cross-entropy per token."""
    return -logits.log_softmax(-1).gather(-1, targets[..., None]).mean()


def generate(model, tokens, count):
    """Continue texts with the likeliest tokens."""
    for _ in range(count):
        tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], dim=1)
    return tokens
