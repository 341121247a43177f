"""A tokenizer and a model from a folder or the hub, without noise, and with what may go wrong said in one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnlab.encoders.places import need_extra
from attnlab.errors import UserError


@contextmanager
def quietly() -> Iterator[None]:
    """Keep the libraries' own bars and remarks from the screen: what matters is said once, by us."""
    from transformers.utils import logging as untyped

    logging: Any = untyped
    datasets: Any = sys.modules.get("datasets")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    more_bars = datasets is not None and not datasets.are_progress_bars_disabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if datasets is not None:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
        if more_bars:
            datasets.enable_progress_bars()


@contextmanager
def plainly(name: str) -> Iterator[None]:
    """Turn what transformers says of a model that it cannot load into one line with the fix."""
    from safetensors import SafetensorError

    try:
        yield
    except UserError:
        raise
    except (SafetensorError, OSError, ValueError, KeyError, ImportError, RuntimeError, TypeError) as error:
        raise UserError(explained(name, error)) from None


def explained(name: str, error: Exception) -> str:
    """Why a model could not be loaded, and what to do."""
    from huggingface_hub import constants

    said = " ".join(str(error).split())
    if Path(name).expanduser().is_dir():
        return f"{name} cannot be loaded ({shortened(said)}): it needs an encoder's weights and tokenizer"
    if constants.HF_HUB_OFFLINE:
        return f"{name} is no folder, and HF_HUB_OFFLINE keeps the hub closed: unset it, or name a saved model's folder"
    if isinstance(error, OSError):
        return f"{name} is no folder, and the hub did not give it: check name and connection, or name a saved model's folder"
    return f"{name} cannot be loaded ({shortened(said)}): choose another, such as roberta-base"


def shortened(text: str, most: int = 160) -> str:
    """The beginning of what a library says."""
    return text if len(text) <= most else text[: most - 1] + "…"


def load(place: str, kind: str, **settings: Any) -> tuple[Any, Any]:
    """The tokenizer and the model of a place that `locate` gave; `kind` is one of transformers' Auto classes."""
    need_extra()
    import transformers

    with quietly(), plainly(place):
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=False)
        model = getattr(transformers, kind).from_pretrained(place, dtype="float32", trust_remote_code=False, **settings)
    return tokenizer, model
