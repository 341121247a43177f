"""What training costs here, and what it would cost with more processes and more documents.

    python benchmarks/scale.py [--rounds 3]

Measured on this machine: tokens per CPU second of training (one thread, preset `small`, task `text`), the time in which two
processes add up their gradients, tokens per document and characters per token of the built-in people. Projected from that:
time and storage of one epoch for other numbers of processes and documents, under assumptions that are printed.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
from birthplaces import options
from torch import distributed
from torch.multiprocessing.spawn import spawn

from attnlab import corpora
from attnlab.lm.tokenizers import Tokenizer

PEOPLE = corpora.load_corpus("people")
BATCH = 4096  # tokens per process and step
BANDWIDTH, LATENCY = 1.25e9, 50e-6  # of a network of 10 Gb/s: bytes per second, seconds per message
PROCESSES, DOCUMENTS = (1, 8, 1000), (10**6, 10**7, 10**8, 10**9)


def training_rate() -> tuple[float, int]:
    """Tokens per CPU second of one process with one thread, and its number of parameters.

    The difference of a longer and a shorter run: neither the start nor other programs of the machine count.
    """
    spent, tokens, parameters = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("\n".join(PEOPLE.lines), encoding="utf-8")
        for epochs in (0.2, 1.2):
            run = Path(folder) / f"run-{epochs}"
            settings = ("--preset", "small", "--task.name", "text", "--train.threads", "1", "--device", "cpu")
            where = ("--corpus", str(text), "--out", str(run), "--train.epochs", str(epochs))
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-m", "attnlab", "pretrain", *where, *settings]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            result = json.loads((run / "result.json").read_text())
            tokens.append(result["tokens"])
            parameters = result["parameters"]
    return (tokens[1] - tokens[0]) / (spent[1] - spent[0]), parameters


def _add_up(rank: int, parameters: int, port: int, folder: str) -> None:
    """Time one addition of all gradients over two processes."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=2, timeout=timedelta(seconds=60))
    gradients, times = torch.ones(parameters), []
    for _ in range(6):
        began = time.perf_counter()
        distributed.all_reduce(gradients)
        times.append(time.perf_counter() - began)
    distributed.destroy_process_group()
    if rank == 0:
        (Path(folder) / "seconds").write_text(str(statistics.median(times[1:])))


def reduction(parameters: int) -> float:
    """Seconds in which two processes of this machine add up their gradients."""
    with tempfile.TemporaryDirectory() as folder:
        port = 20_000 + os.getpid() % 20_000
        spawn(_add_up, (parameters, port, folder), nprocs=2)
        return float((Path(folder) / "seconds").read_text())


def step_seconds(rate: float, parameters: int, processes: int) -> tuple[float, float]:
    """Seconds of computing and of communication in a step of many processes, a ring on the network assumed above."""
    share = 2 * (processes - 1) / processes
    network = share * 4 * parameters / BANDWIDTH + 2 * (processes - 1) * LATENCY
    return BATCH / rate, network


def duration(seconds: float) -> str:
    """Seconds in a readable unit."""
    for unit, size in (("years", 365 * 86_400), ("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} seconds"


def main() -> None:
    """Print what was measured, what is assumed, and the projection."""
    given = options(__doc__, rounds=3).parse_args()
    rates = [training_rate() for _ in range(given.rounds)]
    rate, parameters = statistics.median(found for found, _ in rates), rates[0][1]
    tokenizer = Tokenizer.train("bpe", PEOPLE.lines, 3500)
    tokens = sum(len(tokenizer.encode(line)) + 1 for line in PEOPLE.lines) / len(PEOPLE.lines)
    characters = sum(map(len, PEOPLE.lines)) / len(PEOPLE.lines)
    each = ", ".join(f"{one:,.0f}" for one, _ in rates)
    print(f"measured: {rate:,.0f} tokens per CPU second in a process of one thread ({each}),")
    print(f"  {parameters:,} parameters, {1e9 / rate / 3600:.1f} core hours per 1e9 tokens;")
    print(f"  {1000 * reduction(parameters):.1f} ms to add up the gradients of two processes of this machine;")
    print(f"  {tokens:.1f} tokens and {characters:.0f} characters per document")
    print(f"assumed: every process has a core like this one and {BATCH} tokens per step; a ring over 10 Gb/s with")
    print("  50 us per message, not hidden behind computing; one epoch; no failures; 2 bytes per token on disk")
    print(f"{'documents':>10} {'tokens':>8} {'on disk':>9}  " + "  ".join(f"{one:>6,} processes" for one in PROCESSES))
    for documents in DOCUMENTS:
        total = documents * tokens
        cells = []
        for processes in PROCESSES:
            computing, network = step_seconds(rate, parameters, processes)
            cells.append(duration(total / (BATCH * processes) * (computing + network)))
        print(f"{documents:10.0e} {total:8.1e} {2 * total / 1e9:6.1f} GB  " + "  ".join(f"{one:>16}" for one in cells))
    for processes in PROCESSES[1:]:
        computing, network = step_seconds(rate, parameters, processes)
        share = computing / (computing + network)
        print(
            f"{processes:,} processes: {1000 * computing:.0f} ms computing, {1000 * network:.0f} ms network, {share:.0%} used"
        )


if __name__ == "__main__":
    main()
