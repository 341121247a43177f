"""A tokenizer and a model from a folder or the hub, with what may go wrong said in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnlab.encoders.places import need_transformers
from attnlab.errors import UserError


@contextmanager
def quietly() -> Iterator[None]:
    """Keep transformers from bars for what takes a moment, and from reports on heads that a load leaves out or adds."""
    from transformers.utils import logging as untyped

    logging: Any = untyped
    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()


def load(place: str, kind: str, **settings: Any) -> tuple[Any, Any]:
    """The tokenizer and the model of a place that `locate` gave; `kind` is one of transformers' Auto classes."""
    need_transformers()
    import transformers

    try:
        with quietly():
            tokenizer = transformers.AutoTokenizer.from_pretrained(place)
            model = getattr(transformers, kind).from_pretrained(place, dtype="float32", **settings)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        if Path(place).is_dir():
            raise UserError(f"{place} cannot be loaded: {reason}") from None
        raise UserError(
            f"{place} cannot be had from the model hub: check the name and the connection, or name a folder, or minilm"
        ) from None
    return tokenizer, model
