"""Attention solved backwards: queries and matrices for wanted outputs, with error bounds, or a proof that none exist.

>>> from attnlab.design import select
>>> select([[1, 0], [0, 1]], [[1, 0], [0, 1]], 0, tolerance=0.01).status
'solved'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnlab.design.conditions import when
    from attnlab.design.derivations import Derivation, Formula, Step
    from attnlab.design.matrices import layer, project
    from attnlab.design.noisy_keys import noise
    from attnlab.design.results import Result
    from attnlab.design.solve import average, blend, edit_key, reach, select
    from attnlab.design.theorems import derive
    from attnlab.design.verifier import verify


_HOMES = {"Result": "results", "when": "conditions", "noise": "noisy_keys", "verify": "verifier"}
_HOMES |= dict.fromkeys(("average", "blend", "edit_key", "reach", "select"), "solve")
_HOMES |= dict.fromkeys(("layer", "project"), "matrices")
_HOMES |= dict.fromkeys(("Derivation", "Formula", "Step"), "derivations") | {"derive": "theorems"}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    """Load modules on first use, so that `--help` needs neither numpy nor scipy."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
