"""What tokenizer and loader make of the user's texts: every tensor of the first batch, and padding and cuts, counted.

The batch is made by the very collator that training uses, from the first lines of the training table in their order. Nothing is
trained, and no weights are read: how many places a model has is known from its configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnlab.corpora.labelled import Tables
from attnlab.errors import UserError
from attnlab.hf.loading import PACKAGES, load_tokenizer, longest_text_of, need_extra, quietly
from attnlab.hf.settings import BAG_OF_WORDS, FineTuning

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MEANINGS = {
    "input_ids": "the number of every piece in the tokenizer's vocabulary, padding on the {side} of short texts",
    "attention_mask": "1 where a piece of the text stands, 0 where there is padding, which no attention may see",
    "token_type_ids": "which of two texts a piece belongs to; with one text all are 0",
    "labels": "the number of each text's label: what the model learns to say",
}


def explain_batch(name: str, tables: Tables, settings: FineTuning) -> dict[str, Any]:
    """The first batch of the training table, tensor by tensor, and what padding costs in the whole table."""
    if name == BAG_OF_WORDS:
        raise UserError(f"{BAG_OF_WORDS} has no tokenizer and no batches: explain those of an encoder, with --model")
    need_extra(*PACKAGES)
    tokenizer = load_tokenizer(name)
    limit = min(settings.max_length, longest_text_of(name, tokenizer))
    whole = _lengths(tokenizer, tables.train.texts)
    batch = _make_batch(tokenizer, tables, settings, limit)
    return {
        "model": name,
        "source": tables.train.source,
        "labels": dict(enumerate(tables.labels)),
        "tokenizer": _describe_tokenizer(tokenizer, limit, settings),
        "tensors": [
            {
                "name": key,
                "dtype": str(value.dtype).removeprefix("torch."),
                "shape": list(value.shape),
                "meaning": MEANINGS.get(key, "what this model asks for beside the others").format(
                    side=tokenizer.padding_side
                ),
            }
            for key, value in sorted(batch.items(), key=lambda pair: _order(pair[0]))
        ],
        "batch": _counted(whole[: settings.batch_size], limit, batch["input_ids"].shape[1]),
        "text": _shown_text(tokenizer, tables, batch),
        "table": {**_counted(whole, limit), "batching": compare_batching(whole, limit, settings)},
    }


def _order(name: str) -> int:
    """Where a tensor is told: the text, what belongs to it, and the labels last."""
    known = list(MEANINGS)
    return known.index(name) if name in known else len(known) - 2


def _lengths(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[int]:
    """Tokens of every text, special tokens included, before anything is cut."""
    with quietly():
        return [len(ids) for ids in tokenizer(texts)["input_ids"]]


def _make_batch(tokenizer: PreTrainedTokenizerBase, tables: Tables, settings: FineTuning, limit: int) -> Any:
    """The first lines of the training table as the collator hands them to the model."""
    from attnlab.hf.fine_tuning import collator, tokenized

    first = range(min(settings.batch_size, len(tables.train.rows)))
    with quietly():
        rows = tokenized(tables.train, tables.ids(tables.train), tokenizer, limit).remove_columns("row")
        return collator(tokenizer, settings, limit)([rows[place] for place in first])


def _describe_tokenizer(tokenizer: PreTrainedTokenizerBase, limit: int, settings: FineTuning) -> dict[str, Any]:
    """The settings that decide what a batch looks like."""
    special = {
        name: {"token": str(token), "id": tokenizer.convert_tokens_to_ids(str(token))}
        for name, token in tokenizer.special_tokens_map.items()
        if isinstance(token, str)
    }
    return {
        "class": type(tokenizer).__name__,
        "pieces": len(tokenizer),
        "special_tokens": special,
        "added_to_a_text": tokenizer.num_special_tokens_to_add(),
        "padding": "to the limit" if settings.batching == "fixed" else "to the longest text of the batch",
        "padding_side": tokenizer.padding_side,
        "truncation": True,
        "max_length": settings.max_length,
        "limit": limit,
    }


def _counted(whole: Sequence[int], limit: int, width: int | None = None) -> dict[str, Any]:
    """Texts, tokens, cuts; and padding, if they stand in one batch of some width."""
    kept = [min(length, limit) for length in whole]
    cut = [length - limit for length in whole if length > limit]
    ordered = sorted(whole)
    found: dict[str, Any] = {
        "texts": len(whole),
        "tokens": sum(kept),
        "shortest": ordered[0],
        "median": ordered[len(ordered) // 2],
        "longest": ordered[-1],
        "truncated": len(cut),
        "tokens_cut": sum(cut),
        "most_cut": max(cut, default=0),
    }
    if width is not None:
        found |= {"width": width, "padding": width * len(kept) - sum(kept)}
        found |= {"padded_to_limit": limit * len(kept), "padding_to_limit": limit * len(kept) - sum(kept)}
    return found


def compare_batching(whole: Sequence[int], limit: int, settings: FineTuning) -> dict[str, dict[str, Any]]:
    """Places computed in one epoch, and how many of them are padding, for each way to make batches."""
    import torch
    from transformers import trainer_pt_utils

    group: Any = trainer_pt_utils.get_length_grouped_indices  # without types
    kept = [min(length, limit) for length in whole]

    def drawn() -> torch.Generator:
        return torch.Generator().manual_seed(settings.seed)

    orders = {
        "grouped": group(kept, settings.batch_size, generator=drawn()),
        "random": torch.randperm(len(kept), generator=drawn()).tolist(),
    }
    computed = {name: padded_places(kept, order, settings.batch_size) for name, order in orders.items()}
    computed["fixed"] = limit * len(kept)
    return {
        name: {"places": places, "padding": places - sum(kept), "share": (places - sum(kept)) / places}
        for name, places in computed.items()
    }


def padded_places(kept: Sequence[int], order: Sequence[int], size: int) -> int:
    """Places of all batches in this order, each as wide as its longest text."""
    batches = [order[begin : begin + size] for begin in range(0, len(order), size)]
    return sum(len(batch) * max(kept[place] for place in batch) for batch in batches)


def _shown_text(tokenizer: PreTrainedTokenizerBase, tables: Tables, batch: Any) -> dict[str, Any]:
    """The shortest text of the batch, piece by piece: where there is padding, it has some."""
    masks = batch["attention_mask"].tolist()
    place = min(range(len(masks)), key=lambda number: sum(masks[number]))
    ids, row = batch["input_ids"][place].tolist(), tables.train.rows[place]
    return {
        "line": tables.train.place(place),
        "text": row.text,
        "label": row.label,
        "label_id": int(batch["labels"][place]),
        "pieces": [
            {"piece": piece, "id": number, "mask": mask}
            for piece, number, mask in zip(tokenizer.convert_ids_to_tokens(ids), ids, masks[place], strict=True)
        ],
    }
