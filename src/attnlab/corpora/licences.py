"""What is written of data in a model card: the name of a source, and its licence as far as it is known."""

from __future__ import annotations

from collections.abc import Iterable

from attnlab.corpora.sources import is_built_in

_OWN = "The licence of data of one's own is not known here: see to it before you share the model."
_LICENCES = {
    "people": "The text is made from the Lahman Baseball Database (SABR), CC BY-SA 3.0: share what you make of it under the"
    " same licence, and name the source.",
    "prose": "The text is that of Python itself, © Python Software Foundation, under its licence.",
}


def licences_of(sources: Iterable[str]) -> list[str]:
    """What is known of the licences of some sources, each said once."""
    return sorted({_LICENCES.get(one.split(":")[0], _OWN) if one and is_built_in(one) else _OWN for one in sources})


def shown(source: str) -> str:
    """The name of a source without the folders of the machine it lay on."""
    return source if is_built_in(source) else source.replace("\\", "/").rsplit("/", 1)[-1]
