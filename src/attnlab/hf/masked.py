"""The loss of hidden tokens and of no others, in training and in validation.

RobertaForMaskedLM scores every word at every place, and then looks at the hidden ones: with 15 % of the tokens hidden 85 % of
that work is thrown away. Here the head, and of the last layer what follows its attention, are computed where
something is hidden, with the same loss and gradients. Blocks are full, so that there is no padding to mask.
Imports transformers; nobody imports this module at start-up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset
from transformers import DataCollatorForLanguageModeling, RobertaForMaskedLM

from attnlab.hf.pieces import SYMBOLS, Ids
from attnlab.kernels import vocabulary

NOTHING = -100  # a label that is not counted
VALIDATION_HIDES = 0.15

Row = dict[str, Tensor]


def masked_loss_reference(model: RobertaForMaskedLM, input_ids: Tensor, labels: Tensor) -> Tensor:
    """The mean loss of the hidden tokens, as transformers computes it."""
    loss: Tensor = model(input_ids=input_ids, labels=labels).loss
    return loss


def hidden_features(model: RobertaForMaskedLM, input_ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """What the last map of the head sees at the hidden tokens, and the tokens themselves."""
    chosen = labels != NOTHING
    states = model.roberta.embeddings(input_ids=input_ids)
    layers: Any = model.roberta.encoder.layer
    *first, last = layers
    for layer in first:
        states = layer(states)
    mixed, _ = last.attention.self(states)
    states = last.feed_forward_chunk(last.attention.output(mixed[chosen], states[chosen]))
    head = model.lm_head
    return head.layer_norm(functional.gelu(head.dense(states))), labels[chosen]


def masked_loss(model: RobertaForMaskedLM, input_ids: Tensor, labels: Tensor) -> Tensor:
    """The same as the reference, computed for the hidden tokens only and never with all scores in memory."""
    features, targets = hidden_features(model, input_ids, labels)
    decoder = model.lm_head.decoder
    if decoder.out_features < vocabulary.LARGE:
        return functional.cross_entropy(decoder(features), targets, reduction="sum") / max(1, len(targets))
    # The bias is one more column, seen with a one.
    widened = torch.cat((features, features.new_ones(len(features), 1)), dim=1)
    weight = torch.cat((decoder.weight, decoder.bias[:, None]), dim=1)
    return vocabulary.summed_losses(widened, weight, targets) / max(1, len(targets))


class Blocks(Dataset[Row]):
    """Blocks of tokens, of which every epoch hides others."""

    def __init__(self, blocks: Ids) -> None:
        self.blocks = torch.from_numpy(blocks)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> Row:
        ids = self.blocks[index].long()
        return {"input_ids": ids, "special_tokens_mask": (ids < len(SYMBOLS)).long()}


def hidden_once(blocks: Ids, hide: DataCollatorForLanguageModeling, seed: int) -> Row:
    """Blocks with tokens hidden once and for all: validation asks the same each time."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    hidden: Any = hide([Blocks(blocks)[at] for at in range(len(blocks))])
    torch.set_rng_state(state)
    return {"input_ids": hidden["input_ids"], "labels": hidden["labels"]}


def frequencies(train: Ids, vocab_size: int) -> NDArray[np.float64]:
    """The logarithm of every token's share, as if each had been seen once more; special ones, never hidden, as if once."""
    counts = np.bincount(train.ravel(), minlength=vocab_size).astype(np.float64)
    counts[: len(SYMBOLS)] = 0
    shares: NDArray[np.float64] = np.log(counts + 1) - np.log((counts + 1).sum())
    return shares


def unigram(shares: NDArray[np.float64], labels: Tensor) -> dict[str, float]:
    """Loss and accuracy of who knows how frequent every token is, and nothing else."""
    targets = labels[labels != NOTHING].numpy()
    return {"loss": float(-shares[targets].mean()), "accuracy": float((targets == shares.argmax()).mean())}


@torch.no_grad()
def begin_at(model: RobertaForMaskedLM, shares: NDArray[np.float64]) -> None:
    """Have a fresh model guess by frequency: it need not spend its first hundreds of steps on finding that out."""
    model.lm_head.decoder.bias.copy_(torch.from_numpy(shares))


@torch.no_grad()
def measure(model: RobertaForMaskedLM, validation: Row, size: int) -> dict[str, float]:
    """Mean loss of the hidden tokens of validation, and the share of them that is found."""
    model.train(False)
    loss, found, total = 0.0, 0, 0
    for ids, labels in zip(validation["input_ids"].split(size), validation["labels"].split(size), strict=True):
        features, targets = hidden_features(model, ids, labels)
        scores = model.lm_head.decoder(features)
        loss += float(functional.cross_entropy(scores, targets, reduction="sum"))
        found += int((scores.argmax(dim=-1) == targets).sum())
        total += len(targets)
    return {"loss": loss / total, "accuracy": found / total}
