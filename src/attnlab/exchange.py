"""`import attnlab.exchange` registers attnlab's models and mechanisms with transformers: see attnlab.hf.exchange."""

from attnlab.hf.exchange import *  # noqa: F403
from attnlab.hf.exchange import __all__ as __all__
