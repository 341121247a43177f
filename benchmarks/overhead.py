"""What validation and logging cost, and whether another version of attnlab trains the same weights as fast.

    python benchmarks/overhead.py [--rounds 5] [--other SRC]

Each round trains the same run several times, one after the other in processes of their own: as it is, with validation after
every epoch, with TensorBoard, and with both. --other names the `src` folder of another version, which trains the plain run
too; its weights are compared with ours, bit by bit. Ratios are medians over the rounds.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from birthplaces import options

SRC = Path(__file__).parents[1] / "src"
RUN = (
    "--corpus",
    "people:1000",
    "--facts",
    "people:1000:train",
    "--train.epochs",
    "4",
    "--train.threads",
    "1",
    "--seed",
    "0",
)
WATCH, LOG = ("--dev", "people:1000:dev"), ("--log", "tensorboard")
KINDS = {"plain": (), "validation": WATCH, "logging": LOG, "both": (*WATCH, *LOG)}


def train(source: Path, more: tuple[str, ...], folder: Path) -> tuple[float, str]:
    """Tokens per second of a run, and the checksum of its weights."""
    command = [sys.executable, "-m", "attnlab", "pretrain", *RUN, *more, "--out", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(source)})
    result = json.loads((folder / "result.json").read_text())
    weights = hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest()
    return result["tokens"] / result["seconds"], weights


def main() -> None:
    """Print the rates, the ratios to the plain run, and whether the weights are the same."""
    given = options(__doc__, rounds=5, other="").parse_args()
    runs = {name: (SRC, more) for name, more in KINDS.items()}
    if given.other:
        runs["other version"] = (Path(given.other), ())
    rates: dict[str, list[float]] = {name: [] for name in runs}
    weights: dict[str, str] = {}
    for number in range(given.rounds):
        order = list(runs)[number % len(runs) :] + list(runs)[: number % len(runs)]
        for name in order:
            with tempfile.TemporaryDirectory() as folder:
                rate, weights[name] = train(*runs[name], Path(folder) / "run")
            rates[name].append(rate)
    for name, found in rates.items():
        ratio = statistics.median(plain / one for plain, one in zip(rates["plain"], found, strict=True))
        same = "same weights" if weights[name] == weights["plain"] else "OTHER WEIGHTS"
        print(f"{name:14s} {statistics.median(found):9,.0f} tokens/s  time x {ratio:.3f}  {same}")


if __name__ == "__main__":
    main()
