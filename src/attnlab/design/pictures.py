"""Pictures: keys, values and query in the plane, and the weight under noise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnlab.design.exact import Array
from attnlab.design.noisy_keys import BINS, Noise
from attnlab.design.results import Result, at_least, number, percent
from attnlab.pictures import picture_bytes, picture_kind, write_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INK, _SOFT, _KEY, _VALUE, _OUT = "#222222", "#c9ccd1", "#2f6db5", "#d0781e", "#b3261e"


def save(result: Result | Noise, data: tuple[Array, Array] | None, path: Path) -> None:
    """Write the picture of a result as PNG, SVG or PDF, by the extension; `data` are the keys and values of a query."""
    if isinstance(result, Noise):
        figure = noise_picture(result)
    else:
        assert data is not None
        figure = design_picture(result, *data)
    write_picture(path, picture_bytes(figure, picture_kind(path), dpi=160))


def design_picture(result: Result, keys: Array, values: Array) -> Figure:
    """The keys with the query on the left, the values with the output and the target on the right; hulls in grey."""
    figure, axes = _figure(2, 9.6, 4.8)
    weights = (
        np.full(len(keys), 1 / len(keys)) if result.weights is None or result.weights.ndim != 1 else result.weights
    )
    place, named = _plane(keys)
    spots = _draw(axes[0], place(keys), weights, _KEY, f"keys ({named})")
    query = result.query
    if query is not None and query.ndim == 1 and np.ptp(keys @ query) > 1e-6:
        arrow = place(query / np.abs(query).max()) - place(np.zeros_like(query))
        reach = 0.55 * max(float(np.ptp(spots, axis=0).max()), 1e-9) / max(float(np.linalg.norm(arrow)), 1e-12)
        tail = spots.mean(axis=0)
        axes[0].annotate("", tail + arrow * reach, tail, arrowprops={"arrowstyle": "-|>", "color": _INK, "lw": 1.6})
        axes[0].set_title(
            f"keys ({named})\narrow: direction of the query, norm {number(float(np.linalg.norm(query)))}", fontsize=10
        )
    if result.output is not None and result.target is not None:
        place, named = _plane(values, result.target) if result.target.ndim == 1 else _plane(values)
        _draw(axes[1], place(values), weights, _VALUE, f"values ({named})")
        wanted, output = (place(np.atleast_2d(rows)).T for rows in (result.target, result.output))
        axes[1].scatter(*wanted, s=190, facecolors="none", edgecolors=_INK, linewidths=1.4, label="wanted", zorder=4)
        axes[1].scatter(
            *output, s=60, marker="X", color=_OUT, label="output", zorder=5, edgecolors="white", linewidths=0.6
        )
        axes[1].legend(frameon=False, loc="best")
    for ax in axes:
        _square(ax)
    bound = f"error {number(result.error['float64'])}" if result.error else ""
    limit = f", every query misses by at least {at_least(result.lower_bound)}" if result.lower_bound else ""
    figure.suptitle(f"{result.task}: {result.status} ({bound}{limit})", fontsize=12, color=_INK)
    return figure


def noise_picture(noise: Noise) -> Figure:
    """One histogram per design, with the closed form drawn over it."""
    figure, axes = _figure(len(noise.designs), 3.6 * len(noise.designs), 3.9)
    edges = np.linspace(0, 1, BINS + 1)
    top = max(float(d.histogram.max()) for d in noise.designs)
    for ax, design in zip(axes, noise.designs, strict=True):
        ax.stairs(design.histogram, edges, fill=True, color="#9dbfe3", label="simulated")
        ax.stairs(design.law, edges, color=_OUT, lw=1.3, label="closed form")
        ax.axvline(1 / len(noise.indices), color=_INK, lw=0.8, ls=":")
        s = design.simulated
        ax.set_title(f"{design.name}\nsd {s.sd:.3f}, failed {percent(s.failures)}", fontsize=10, color=_INK)
        ax.set_xlabel(f"weight on $v_{{{noise.indices[0]}}}$")
        ax.set_yscale("symlog", linthresh=1e-3)
        ax.set_ylim(0, min(1.0, top * 2))
        ax.set_yticks([0, 1e-3, 1e-2, 1e-1, 1], ["0", "0.1 %", "1 %", "10 %", "100 %"])
    axes[0].set_ylabel("share of samples")
    axes[-1].legend(
        frameon=False, fontsize=8, loc="upper left" if noise.designs[-1].simulated.mean > 0.3 else "upper right"
    )
    return figure


def _figure(columns: int, width: float, height: float) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(colors="#666666", labelsize=8)
    return figure, axes


def _plane(points: Array, *also: Array) -> tuple[Any, str]:
    """A map to the plane, the identity for one or two coordinates, else the first two principal axes; and its name."""
    width = points.shape[1]
    if width <= 2:
        return lambda x: np.concatenate(
            [np.atleast_1d(x), np.zeros((*np.shape(x)[:-1], 2 - width))], axis=-1
        ), f"{width} dimension{'s' * (width > 1)}"
    centre = points.mean(axis=0)
    axes = np.linalg.svd(np.vstack([points, *also]) - centre, full_matrices=True)[2][:2]
    signs = np.where(axes[np.arange(2), np.abs(axes).argmax(axis=1)] < 0, -1.0, 1.0)
    return lambda x: (np.asarray(x) - centre) @ (axes * signs[:, None]).T, f"first 2 of {width} principal axes"


def _draw(ax: Any, spots: Array, weights: Array, colour: str, title: str) -> Array:
    from scipy.spatial import ConvexHull, QhullError

    try:
        corners = spots[ConvexHull(spots).vertices]
        ax.fill(*corners.T, facecolor="#eef0f3", edgecolor=_SOFT, lw=1.0, zorder=0)
    except (QhullError, ValueError):
        ax.plot(*spots[np.argsort(spots @ (np.ptp(spots, axis=0) + 1e-12))].T, color=_SOFT, lw=1.0, zorder=0)
    ax.scatter(*spots.T, s=30 + 320 * weights, color=colour, alpha=0.85, edgecolors="white", linewidths=0.8, zorder=3)
    if len(spots) <= 30:
        for i, spot in enumerate(spots):
            ax.annotate(str(i), spot, xytext=(6, 6), textcoords="offset points", fontsize=8, color=_INK)
    ax.set_title(title, fontsize=10, color=_INK)
    if np.ptp(spots[:, 1]) == 0:
        ax.set_yticks([])
    return spots


def _square(ax: Any) -> None:
    """Give both axes the same length, unit and distance of ticks, so that shapes and angles are true."""
    from matplotlib.ticker import MultipleLocator

    ends = np.array([ax.get_xlim(), ax.get_ylim()])
    middle, half = ends.mean(axis=1), 0.62 * float(np.ptp(ends, axis=1).max())
    ax.set(xlim=(middle[0] - half, middle[0] + half), ylim=(middle[1] - half, middle[1] + half), aspect="equal")
    ticks = ax.get_xticks()
    if len(ax.get_yticks()):
        ax.yaxis.set_major_locator(MultipleLocator(ticks[1] - ticks[0]))
