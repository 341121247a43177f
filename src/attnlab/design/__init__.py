"""Attention solved backwards: queries and matrices from wanted outputs, with bounds, or a proof that there are none.

>>> from attnlab.design import select
>>> select([[1, 0], [0, 1]], [[1, 0], [0, 1]], 0, tolerance=0.01).status
'solved'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnlab.design.check import mark
    from attnlab.design.edits import edit_key
    from attnlab.design.matrices import layer, project
    from attnlab.design.noisy_keys import noise
    from attnlab.design.results import Result
    from attnlab.design.solve import average, blend, reach, select
    from attnlab.design.verifier import verify

__all__ = ["Result", "average", "blend", "edit_key", "layer", "mark", "noise", "project", "reach", "select", "verify"]

_HOMES = {
    "edits": ("edit_key",),
    "matrices": ("layer", "project"),
    "noisy_keys": ("noise",),
    "check": ("mark",),
    "results": ("Result",),
    "solve": ("average", "blend", "reach", "select"),
    "verifier": ("verify",),
}


def __getattr__(name: str) -> Any:
    """Modules load when a name is first used, so that `--help` needs neither numpy nor scipy."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
