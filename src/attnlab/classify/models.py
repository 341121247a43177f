"""Encoders by name or folder: the one place where tokenizer and model are loaded for classification.

What cannot work is refused here in one line, before anything is trained: no such model, no padding token, a vocabulary that
does not fit. It must not know about tables or training.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab.errors import UserError

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


def require_extra(packages: Sequence[str] = PACKAGES) -> None:
    """Refuse to go on without the packages of the extra."""
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise UserError(f"classify needs {', '.join(missing)}: pip install 'attnlab[hf]'")


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the libraries' own bars and remarks from the screen: what matters is said once, by us."""
    import datasets
    from transformers.utils import logging as told

    logging: Any = told  # half of it has no types
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    more_bars = not datasets.are_progress_bars_disabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
        if more_bars:
            datasets.enable_progress_bars()


def locate(name: str) -> str:
    """Where a model lies: a folder, with its model inside if it is one of ours, or a name for the hub."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        if name.startswith((".", "/", "~")) or name.count("/") > 1 or folder.is_file():
            raise UserError(f"{name}: no such folder; name the folder of a saved model, or a model of the hub")
        return name
    for place in (folder, folder / "model"):
        if (place / "config.json").is_file() and is_transformers(place / "config.json"):
            return str(place)
    raise UserError(
        f"{name} holds no transformers model: it needs a config.json with a model_type, weights and a tokenizer"
    )


def is_transformers(path: Path) -> bool:
    """Whether a config.json is one of transformers, and not of a run of ours."""
    import json

    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError):
        return False
    return isinstance(config, dict) and "model_type" in config


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, one that can pad."""
    from transformers import AutoTokenizer

    with quiet(), plainly(name):
        tokenizer = AutoTokenizer.from_pretrained(locate(name))
    if tokenizer.pad_token_id is None:
        raise UserError(
            f"{name} has no padding token, so that texts of different lengths cannot share a batch: choose an encoder such as"
            " roberta-base, or set tokenizer.pad_token and save the folder again"
        )
    return tokenizer


def load_encoder(name: str, labels: Sequence[str]) -> Encoder:
    """A tokenizer and a model with a new head, whose labels have the user's names."""
    import torch
    from transformers import AutoModelForSequenceClassification

    tokenizer = load_tokenizer(name)
    with quiet(), plainly(name):
        model, report = AutoModelForSequenceClassification.from_pretrained(
            locate(name),
            num_labels=len(labels),
            id2label=dict(enumerate(labels)),
            label2id={label: place for place, label in enumerate(labels)},
            problem_type="single_label_classification",
            ignore_mismatched_sizes=True,
            dtype=torch.float32,
            output_loading_info=True,
        )
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise UserError(
            f"{name}: the tokenizer has {len(tokenizer):,} pieces, the model only {rows:,}: they do not belong together"
        )
    if model.config.get_text_config().pad_token_id is None:
        model.config.pad_token_id = tokenizer.pad_token_id
    fresh = {*report["missing_keys"], *(key[0] for key in report.get("mismatched_keys", ()))}
    return Encoder(tokenizer, model, places(model, tokenizer), tuple(sorted(fresh)))


def places(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """How many tokens the model has places for; RoBERTa's table of places begins behind the padding's number."""
    from torch import nn

    tables = [
        module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings")
    ]
    return min([*tables, tokenizer.model_max_length, 10**6])


@contextmanager
def plainly(name: str) -> Iterator[None]:
    """Turn what transformers says of a model that it cannot load into one line with the fix."""
    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, TypeError) as error:
        raise UserError(explained(name, error)) from None


def explained(name: str, error: Exception) -> str:
    """Why a model could not be loaded, and what to do."""
    from huggingface_hub import constants

    said = " ".join(str(error).split())
    if Path(name).expanduser().is_dir():
        return f"{name} cannot be loaded for classification ({shortened(said)}): it needs an encoder's weights and tokenizer"
    if constants.HF_HUB_OFFLINE:
        return f"{name} is no folder, and HF_HUB_OFFLINE keeps the hub closed: unset it, or name a saved model's folder"
    if isinstance(error, OSError):
        return f"{name} is no folder, and the hub did not give it: check name and connection, or name a saved model's folder"
    return f"{name} cannot be loaded for classification ({shortened(said)}): choose an encoder such as roberta-base"


def shortened(text: str, most: int = 160) -> str:
    """The beginning of what a library says."""
    return text if len(text) <= most else text[: most - 1] + "…"


def describe(encoder: Encoder) -> dict[str, Any]:
    """What is to be known of an encoder beside a result."""
    return {
        "architecture": type(encoder.model).__name__,
        "parameters": sum(one.numel() for one in encoder.model.parameters()),
        "pieces": len(encoder.tokenizer),
        "places": encoder.limit,
        "new_weights": list(encoder.fresh),
    }
