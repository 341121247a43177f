"""Encoders with or without a model hub: where one lies, a small RoBERTa of one's own, and what it fills in.

Each name is imported when it is first used, so that the command line starts without torch; transformers, which takes seconds,
is imported by the functions that need it, and without it they say what to install.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnlab.encoders.filling import Filling, fill
    from attnlab.encoders.loading import load
    from attnlab.encoders.places import locate, need_extra
    from attnlab.encoders.pretraining import pretrain
    from attnlab.encoders.settings import EncoderConfig

_HOMES = {
    "EncoderConfig": "settings",
    "Filling": "filling",
    "fill": "filling",
    "load": "loading",
    "locate": "places",
    "need_extra": "places",
    "pretrain": "pretraining",
}

__all__ = ["EncoderConfig", "Filling", "fill", "load", "locate", "need_extra", "pretrain"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'attnlab.encoders' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
