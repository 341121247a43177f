"""Meters: the card of a mechanism with what can be counted, and how far it lies from exact attention, measured honestly.

    found = examine(registry.find("mechanism", "performer"), random_source())
    found.nearness.rows, found.spectrum, found.kernel

Knows mechanisms by what the registry says of them, never by name; trains nothing.
"""

from __future__ import annotations

import csv
import io
from dataclasses import asdict, dataclass, fields
from typing import Any

from attnlab.measure.approximation import pictures
from attnlab.measure.approximation.error import Nearness, Row, measure
from attnlab.measure.approximation.forms import refuse_others
from attnlab.measure.approximation.kernels import KernelRow, as_dicts, kernel_rows
from attnlab.measure.approximation.patterns import pattern_picture
from attnlab.measure.approximation.samples import Source, random_source, run_source
from attnlab.measure.approximation.spectrum import Spectrum, spectrum
from attnlab.measure.cards import card, entries
from attnlab.measure.page import page
from attnlab.registry import Entry
from attnlab.runs import to_json

__all__ = ["Findings", "card", "entries", "examine", "measure", "page", "pattern_files", "random_source", "run_source"]


@dataclass(frozen=True)
class Findings:
    """What was measured of a mechanism: errors; singular values where it is of low rank; its kernel, if it has one."""

    nearness: Nearness
    spectrum: Spectrum | None
    kernel: list[KernelRow]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            **self.nearness.to_dict(),
            "spectrum": self.spectrum.to_dict() if self.spectrum else None,
            "kernel": as_dicts(self.kernel),
        }

    def files(self) -> dict[str, bytes]:
        """The numbers as JSON and CSV, and the pictures, by file name."""
        files = {"error.json": to_json(self.to_dict()), "error.csv": to_csv(self.nearness.rows)}
        files |= pictures.files_of("error", pictures.error_picture(self.nearness))
        if self.spectrum:
            files |= pictures.files_of("spectrum", pictures.spectrum_picture(self.spectrum))
        return files


def examine(entry: Entry, source: Source, draws: int = 32, seed: int = 0) -> Findings:
    """Measure all there is to measure; refused for what is no approximation of dot-product attention."""
    refuse_others(entry, entries())
    ranked = entry.weights in ("low rank", "kernel")
    return Findings(
        measure(entry, source, draws, seed), spectrum(source) if ranked else None, kernel_rows(entry, source, seed=seed)
    )


def to_csv(rows: tuple[Row, ...]) -> bytes:
    """A table with a heading."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [one.name for one in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return stream.getvalue().encode()


def pattern_files(entry: Entry) -> dict[str, bytes]:
    """The patterns of a mechanism beside the exact one, as pictures."""
    return pictures.files_of("pattern", pattern_picture(entry))
