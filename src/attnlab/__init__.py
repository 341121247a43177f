"""attnlab: an attention laboratory."""

__version__ = "0.1.0"
