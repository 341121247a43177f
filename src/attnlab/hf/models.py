"""Encoders by name or folder: the one place where tokenizer and model are loaded for classification.

What cannot work is refused here in one line, before anything is trained: no such model, no padding token, a vocabulary that
does not fit. It must not know about tables or training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnlab.errors import UserError
from attnlab.hf.loading import plainly, quietly, reached
from attnlab.hf.places import locate

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PACKAGES = ("transformers", "datasets", "accelerate", "sklearn")


@dataclass(frozen=True)
class Encoder:
    """A tokenizer and a model with a head for some labels; `limit` is the longest text, in tokens, that it has places for."""

    tokenizer: PreTrainedTokenizerBase
    model: PreTrainedModel
    limit: int
    fresh: tuple[str, ...]  # weights that are new, and mean nothing before training


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, one that can pad."""
    place = reached(locate(name))
    from transformers import AutoTokenizer

    with quietly(), plainly(name):
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    if "attention_mask" not in tokenizer.model_input_names:  # or padding would be read as text
        tokenizer.model_input_names = [*tokenizer.model_input_names, "attention_mask"]
    if tokenizer.pad_token_id is None:
        raise UserError(
            f"{name} has no padding token, so that texts of different lengths cannot share a batch: choose an encoder such as"
            " roberta-base, or set tokenizer.pad_token and save the folder again"
        )
    return tokenizer


def load_encoder(name: str, labels: Sequence[str]) -> Encoder:
    """A tokenizer and a model with a new head, whose labels have the user's names."""
    tokenizer = load_tokenizer(name)
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    with quietly(), plainly(name):
        names = AutoConfig.from_pretrained(locate(name), trust_remote_code=False).id2label
        brought = [names[place] for place in sorted(names)]
        model, report = AutoModelForSequenceClassification.from_pretrained(
            locate(name),
            num_labels=len(labels),
            id2label=dict(enumerate(labels)),
            label2id={label: place for place, label in enumerate(labels)},
            problem_type="single_label_classification",
            ignore_mismatched_sizes=True,
            dtype=torch.float32,
            output_loading_info=True,
            use_safetensors=True,
            trust_remote_code=False,
        )
    missing = {*report["missing_keys"], *(key[0] for key in report.get("mismatched_keys", ()))}
    if not missing and brought != list(labels):
        missing = new_head(model)
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise UserError(
            f"{name}: the tokenizer has {len(tokenizer):,} pieces, the model only {rows:,}: they do not belong together"
        )
    if model.config.get_text_config().pad_token_id is None:
        model.config.pad_token_id = tokenizer.pad_token_id
    return Encoder(tokenizer, model, places(model, tokenizer), tuple(sorted(missing)))


def new_head(model: PreTrainedModel) -> set[str]:
    """Draw the head anew, and say which weights those are: one that was trained for other labels knows the wrong ones."""
    found = set()
    for name, module in model.named_children():
        if name != model.base_model_prefix:
            for part in (*module.modules(), *module.parameters()):
                vars(part)["_is_hf_initialized"] = False  # or it would be left as it is
            module.apply(model._init_weights)
            found |= {f"{name}.{one}" for one, _ in module.named_parameters()}
    return found


def places(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """How many tokens the model has places for; RoBERTa's table of places begins behind the padding's number."""
    from torch import nn

    tables = [
        module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings")
    ]
    if not tables:  # under another name; those that are relative to one another have no end
        said = (getattr(model.config, name, None) for name in ("max_position_embeddings", "n_positions"))
        tables = [number for number in said if isinstance(number, int) and number > 0][:1]
    return min([*tables, tokenizer.model_max_length, 10**6])


def describe(encoder: Encoder) -> dict[str, Any]:
    """What is to be known of an encoder beside a result."""
    return {
        "architecture": type(encoder.model).__name__,
        "parameters": sum(one.numel() for one in encoder.model.parameters()),
        "pieces": len(encoder.tokenizer),
        "places": encoder.limit,
        "new_weights": list(encoder.fresh),
    }
