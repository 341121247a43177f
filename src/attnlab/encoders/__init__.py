"""Encoders with or without a model hub: where one lies, a small RoBERTa of one's own, and what it fills in.

transformers is imported by the functions that need it, since that takes seconds; without it they say what to install.
"""

from attnlab.encoders.filling import Filling, fill
from attnlab.encoders.places import locate, need_transformers
from attnlab.encoders.pretraining import pretrain
from attnlab.encoders.settings import EncoderConfig

__all__ = ["EncoderConfig", "Filling", "fill", "locate", "need_transformers", "pretrain"]
