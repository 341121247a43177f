"""Texts into byte-pair pieces in RoBERTa's layout, and pieces into blocks that leave no place empty.

A text becomes `<s> ... </s>`, the way it is read in fine-tuning; texts in random order are laid end to end and cut into blocks.
Special pieces written out in a text stand for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from attnlab.tokenizers import split_long_text

if TYPE_CHECKING:
    from transformers import RobertaTokenizer

SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
AT_ONCE = 1000  # texts that are encoded together

Ids = NDArray[np.int32]


def learn_pieces(texts: Iterable[str], vocab_size: int, longest: int) -> RobertaTokenizer:
    """RoBERTa's tokenizer with byte-pair pieces learned from texts; a word at the start is spelled like one inside."""
    from transformers import RobertaTokenizer

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(SYMBOLS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner.train_from_iterator((part for text in texts for part in split_long_text(text)), trainer)
    learned = json.loads(learner.to_str())["model"]
    merges: Any = [tuple(pair) for pair in learned["merges"]]
    return RobertaTokenizer(vocab=learned["vocab"], merges=merges, add_prefix_space=True, model_max_length=longest)


def encoded(texts: Iterable[str], tokenizer: RobertaTokenizer) -> Iterator[Ids]:
    """The ids of every text from its `<s>` to its `</s>`, some texts in memory at a time."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.encode_special_tokens = True  # a text that says <mask> hides nothing
    left = iter(texts)
    while some := list(islice(left, AT_ONCE)):
        for one in backend.encode_batch_fast(some):
            yield np.asarray(one.ids, dtype=np.int32)


def blocks_of(texts: Iterable[Ids], size: int, rng: np.random.Generator) -> Ids:
    """Encoded texts in random order, end to end, in blocks of `size` tokens; what is left over at the end is dropped."""
    every = list(texts)
    order = rng.permutation(len(every))
    flat = np.concatenate([every[at] for at in order]) if every else np.empty(0, np.int32)
    return flat[: len(flat) // size * size].reshape(-1, size)
