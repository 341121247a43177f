"""A tokenizer and a model from a folder or the hub, without noise, and with what may go wrong said in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Event, Thread
from typing import Any

from attnlab.errors import UserError
from attnlab.hf.places import need_extra

PATIENCE = 3.0  # seconds until the hub counts as out of reach


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


@cache
def hub_answers() -> bool:
    """Whether the model hub answers a request in time; transformers would try for more than a minute."""
    from huggingface_hub import constants, get_session

    answered = Event()

    def ask() -> None:
        with suppress(Exception):
            get_session().head(constants.ENDPOINT, timeout=patience())
            answered.set()

    # A thread of its own, since nothing limits how long a name is looked up.
    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(patience())
    return answered.is_set()


def patience() -> float:
    """Seconds to wait for the hub: those of its own setting, if the user gave one."""
    from huggingface_hub import constants

    return constants.HF_HUB_ETAG_TIMEOUT if "HF_HUB_ETAG_TIMEOUT" in os.environ else PATIENCE


def reached(place: str) -> str:
    """A place that can be loaded now: a folder or a name of the hub, from the local cache where the hub is closed."""
    if Path(place).is_dir():
        return place
    need_extra()
    from huggingface_hub import constants, try_to_load_from_cache

    if constants.HF_HUB_OFFLINE or not hub_answers():
        cached = None
        with suppress(ValueError):  # not even a name of the hub
            cached = try_to_load_from_cache(place, "config.json")
        if not isinstance(cached, str):
            raise UserError(closed(place))
        constants.HF_HUB_OFFLINE = True
    return place


def closed(name: str) -> str:
    """Why a model of the hub cannot be had now, and what to do."""
    if hub_answers.cache_info().currsize:  # it was asked
        fix = "check the connection, set HF_HUB_ETAG_TIMEOUT=30 if it is slow, or name a saved model's folder"
        return f"{name} is no folder, and the hub cannot be reached (the local cache lacks it): {fix}"
    fix = "unset it, or name a saved model's folder"
    return f"{name} is no folder, and HF_HUB_OFFLINE keeps the hub closed (the local cache lacks it): {fix}"


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
        return closed(name)
    if isinstance(error, OSError):
        return f"{name} is no folder, and the hub did not give it: check name and connection, or name a saved model's folder"
    return f"{name} cannot be loaded ({shortened(said)}): choose another, such as roberta-base"


def shortened(text: str, most: int = 160) -> str:
    """The beginning of what a library says."""
    return text if len(text) <= most else text[: most - 1] + "…"


def load(place: str, kind: str, **settings: Any) -> tuple[Any, Any]:
    """The tokenizer and the model of a place that `locate` gave; `kind` is one of transformers' Auto classes."""
    need_extra()
    reached(place)
    import transformers

    settings |= {"dtype": "float32", "use_safetensors": True, "trust_remote_code": False}
    with quietly(), plainly(place):
        tokenizer = transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=False)
        model = getattr(transformers, kind).from_pretrained(place, **settings)
    return tokenizer, model
