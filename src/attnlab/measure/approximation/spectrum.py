"""The singular values of exact patterns: how nearly of low rank attention is, on random input and in a trained model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnlab import ops
from attnlab.measure.approximation.samples import Source

LEVELS = (0.5, 0.2, 0.1, 0.01)


@dataclass(frozen=True)
class Spectrum:
    """Of every sample, by rank: singular values over the largest, their cumulative share, and the least possible error."""

    source: str
    width: int
    samples: tuple[str, ...]
    values: list[list[float]]
    cumulative: list[list[float]]
    error: list[list[float]]

    def rank_for(self, sample: int, level: float) -> int:
        """The smallest rank at which a pattern can come this near."""
        return next(rank for rank, error in enumerate(self.error[sample]) if error <= level)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON, with the ranks for some errors."""
        ranks = {
            name: {str(level): self.rank_for(number, level) for level in LEVELS}
            for number, name in enumerate(self.samples)
        }
        return {**asdict(self), "rank_for_error": ranks}


def tail(values: Float[Tensor, "... R"]) -> Float[Tensor, "... R1"]:
    """The relative error of the nearest matrix of rank 0, 1, 2 ...: the norm of the singular values that are left out."""
    squares = values.double().square().flip(-1).cumsum(-1).flip(-1)
    squares = torch.cat([squares, torch.zeros_like(squares[..., :1])], dim=-1)
    return (squares / squares[..., :1]).sqrt()


@torch.no_grad()
def spectrum(source: Source, draws: int = 8) -> Spectrum:
    """The spectra of the exact patterns, averaged over draws and heads."""
    found = []
    for number in range(draws):
        drawn = source.draw(number)
        found.append(torch.linalg.svdvals(ops.attention_pattern(drawn.q, drawn.k, source.mask)))
    values = torch.stack(found)  # draw, sample, head, rank
    cumulative = values.cumsum(-1) / values.sum(-1, keepdim=True)

    def averaged(x: Tensor) -> list[list[float]]:
        return x.mean(dim=(0, 2)).tolist()

    relative = values / values[..., :1]
    return Spectrum(
        source.words, source.width, source.names, averaged(relative), averaged(cumulative), averaged(tail(values))
    )
