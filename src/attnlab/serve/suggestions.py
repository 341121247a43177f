"""Names that the page proposes; finding them imports the mechanisms, so a worker does it."""

from __future__ import annotations


def mechanisms() -> list[str]:
    """The names of all mechanisms."""
    from attnlab import registry

    return list(registry.names("mechanism"))
