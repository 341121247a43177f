"""What a calibration says, in words and pairs of name and value. Pure; knows no HTML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnlab.report.words import count, interval, percent


def certified(calibration: Mapping[str, Any], max_risk: float = 0.1) -> str:
    """The guarantee at an allowed risk, as its rule puts it."""
    rules = [rule for rule in calibration["rules"] if rule["max_risk"] == max_risk]
    return str(rules[0]["words"]) if rules else ""


def confidence_facts(calibration: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The numbers of a calibration."""
    area = calibration["auroc"]
    known = f"{area['value']:.3f}" if area else "-"
    if area and area["low"] is not None:
        known += f" ({area['low']:.3f} to {area['high']:.3f})"
    right = f"{percent(calibration['accuracy'])} ({interval(calibration['low'], calibration['high'])})"
    return [
        ("Questions not trained on", count(calibration["questions"])),
        ("Right among them, of the likeliest answers", right),
        ("Answers that it chooses among", count(calibration["candidates"])),
        ("Temperature", f"{calibration['temperature']:.2f}"),
        ("Calibration error before it", percent(calibration["ece_before"])),
        ("Calibration error after it", percent(calibration["ece_after"])),
        ("Calibration error of a perfect one, by chance", percent(calibration["ece_if_calibrated"])),
        ("AUROC, right against wrong answers", known),
    ]
