"""The loader of running text alone: tokens per second, memory, and the start of a second run, against the size of the text.

    python benchmarks/loader.py                         3, 30, 300 and 1000 MB, byte-pair pieces
    python benchmarks/loader.py --sizes 3 --kind char

The text is made in a temporary folder from the sentences of the built-in prose, with a random word in every other, so that
there are ever new words as in real text. Each size is loaded by two processes of its own, whose peak memory is their own: the
first learns the tokenizer and makes the tokens, the second finds both in the cache. Both then read a million windows, or an
epoch if that is less. Speeds are per second of one core, also on a busy machine; the start of the second run is what the
clock says. Libraries, without torch, take the memory of the third column.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from attnlab.config import TaskConfig
from attnlab.corpora import load_corpus, open_text
from attnlab.lm.shards import learn_tokenizer
from attnlab.machine import memory_held
from attnlab.tasks import TaskData, make_task

BLOCK, ROWS, MOST = 128, 32, 1_000_000
VOCABULARY = {"char": 0, "byte": 0, "bpe": 3500}


def write_text(path: Path, size: int) -> None:
    """Write sentences, each with a random word, up to `size` bytes."""
    sentences = [line.split(" ") for line in load_corpus("prose").lines]
    draw, written = random.Random(0), 0
    with path.open("w", encoding="ascii", errors="replace") as stream:
        while written < size:
            words = list(draw.choice(sentences))
            if draw.random() < 0.5:
                words[draw.randrange(len(words))] = "".join(draw.choices("etaoinshrdlu", k=draw.randint(3, 9)))
            written += stream.write(" ".join(words) + "\n")


def load(path: str, kind: str) -> dict[str, float]:
    """Load a text as a run does, and measure."""
    before, began, started = memory_held("VmHWM") or 0, time.process_time(), time.perf_counter()
    text = open_text(path)
    learned = learn_tokenizer(text, kind, VOCABULARY[kind])  # type: ignore[arg-type]
    ready = time.process_time()
    task = make_task(TaskConfig("text"), TaskData(learned, BLOCK, text))
    windows = task.examples(np.random.default_rng(0))
    made = time.process_time()
    first = windows[:ROWS]
    start = time.perf_counter() - started
    count = min(len(windows), MOST)
    reading = time.process_time()
    for at in range(0, count, ROWS):
        windows[at : at + ROWS]
    return {
        "before": before,
        "peak": memory_held("VmHWM") or 0,
        "learning": ready - began,
        "tokenising": made - ready,
        "start": start,
        "tokens": len(windows) * (len(first[0].ids) - 1),
        "reading": count * BLOCK / (time.process_time() - reading),
    }


def main() -> None:
    """Measure every size in processes of its own."""
    parser = argparse.ArgumentParser(description="speed and memory of the loader of running text")
    parser.add_argument("--sizes", type=int, nargs="+", default=[3, 30, 300, 1000], help="megabytes")
    parser.add_argument("--kind", choices=VOCABULARY, default="bpe")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.load:
        print(json.dumps(load(asked.load, asked.kind)))
        return
    print(
        "  MB text  M tokens  libraries MB  first MB  second MB  learn s  tokenise s  M tokens/s  read M tokens/s  restart s"
    )
    for size in asked.sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "text.txt"
            write_text(path, size * 10**6)
            os.utime(path, (0, 0))  # a file changed just now is read again to be sure
            command = [sys.executable, __file__, "--kind", asked.kind, "--load", str(path)]
            environment = {**os.environ, "ATTNLAB_CACHE": f"{folder}/cache"}
            first, second = (
                json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
                for _ in range(2)
            )
        print(
            f"{size:9,}{first['tokens'] / 1e6:10.1f}{first['before'] / 1e6:14.0f}{first['peak'] / 1e6:10.0f}"
            f"{second['peak'] / 1e6:11.0f}{first['learning']:9.1f}{first['tokenising']:12.1f}"
            f"{first['tokens'] / first['tokenising'] / 1e6:12.2f}{second['reading'] / 1e6:17.2f}{second['start']:11.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
