"""The word-level model as a plain script writes it: the contestant of words.py, in the manner of minGPT.

One linear map for queries, keys and values, attention written out with its mask, the scores of every word at every place,
padding included, a loss that ignores the padding afterwards, and AdamW as it is constructed without a thought. The same
function of the same weights as `LanguageModel`: `copy_weights` brings them over, and a test compares the losses.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnlab.config import ModelConfig, TrainConfig
from attnlab.lm.model import LanguageModel
from attnlab.tasks import Example

NOTHING = -1  # a target that is not counted


class EagerAttention(nn.Module):
    """Causal dot-product attention, written out."""

    mask: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        self.projections = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.out = nn.Linear(config.n_embd, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)
        past = torch.ones(config.block_size, config.block_size).tril()
        self.register_buffer("mask", past[None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The mixed tokens."""
        batch, tokens, width = x.shape
        cut = (batch, tokens, self.n_head, width // self.n_head)
        q, k, v = (one.view(cut).transpose(1, 2) for one in self.projections(x).split(width, dim=2))
        scores = q @ k.transpose(-2, -1) * (width // self.n_head) ** -0.5
        scores = scores.masked_fill(self.mask[:, :, :tokens, :tokens] == 0, float("-inf"))
        mixed = scores.softmax(dim=-1) @ v
        return self.dropout(self.out(mixed.transpose(1, 2).contiguous().view(batch, tokens, width)))


class EagerBlock(nn.Module):
    """Attention, then MLP, each added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.attn = EagerAttention(config)
        self.up = nn.Linear(config.n_embd, config.mlp_ratio * config.n_embd)
        self.out = nn.Linear(config.mlp_ratio * config.n_embd, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """The residual stream after this block."""
        x = x + self.attn(self.norm1(x))
        return x + self.dropout(self.out(F.gelu(self.up(self.norm2(x)))))


class EagerModel(nn.Module):
    """A GPT that returns its loss."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.n_embd)
        self.positions = nn.Embedding(config.block_size, config.n_embd)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(EagerBlock(config) for _ in range(config.n_layer))
        self.norm = nn.LayerNorm(config.n_embd)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """The mean loss over the targets that count."""
        x = self.dropout(self.tokens(ids) + self.positions(torch.arange(ids.shape[1])[None]))
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.norm(x))
        return F.cross_entropy(scores.view(-1, scores.shape[-1]), targets.reshape(-1), ignore_index=NOTHING)


@torch.no_grad()
def copy_weights(model: LanguageModel, eager: EagerModel) -> None:
    """Give the eager model the weights of ours, which must be of the kind of preset nano-words."""
    weights = dict(model.state_dict())
    for layer in range(len(model.blocks)):
        inner = f"blocks.{layer}"
        for kind in ("weight", "bias"):
            three = [weights.pop(f"{inner}.attn.heads.{name}.{kind}") for name in ("query", "key", "value")]
            weights[f"{inner}.attn.projections.{kind}"] = torch.cat(three)
            for name in ("up", "out"):
                weights[f"{inner}.{name}.{kind}"] = weights.pop(f"{inner}.mlp.{name}.{kind}")
    eager.load_state_dict(weights)  # strict: a weight that has no place on the other side is an error


def make_optimizer(model: EagerModel, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW as it comes, with weight decay on the matrices of linear maps only."""
    decayed = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    chosen = {id(one) for one in decayed}
    rest = [one for one in model.parameters() if id(one) not in chosen]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2))


def to_rows(batch: Sequence[Example], longest: int, pad: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a batch, every row filled up to the same number of tokens."""
    rows = torch.tensor([[*example.ids, *[pad] * (longest - len(example.ids))] for example in batch])
    targets = rows[:, 1:].clone()
    targets[targets == pad] = NOTHING
    return rows[:, :-1], targets


class EagerTrainer:
    """The model on its way, step by step."""

    def __init__(self, model: EagerModel, config: TrainConfig, pad: int) -> None:
        self.model, self.clip, self.pad = model.train(), config.clip, pad
        self.optimizer = make_optimizer(model, config)

    def update(self, batch: Sequence[Example], longest: int = 0) -> float:
        """One step on rows of `longest` tokens, or where there is none of those of the batch's longest; its loss."""
        ids, targets = to_rows(batch, longest or max(len(example.ids) for example in batch), self.pad)
        loss = self.model(ids, targets)
        self.model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return loss.item()
