"""What it costs to run a class in a sandbox: starting its process, and auditing it from another process.

    python benchmarks/sandbox.py [--rounds 10]

Processes with and without a sandbox start in turns and import what a class needs (wall time); then `dot`, as a class in a
file, is audited in this process, in another one, and in a sandbox (processor time of both processes). Prints medians and
ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from attnlab import registry, sandbox
from attnlab.measure.audit import audit_mechanism
from attnlab.measure.remote import Remote
from attnlab.supervisor import Child

CODE = b"from attnlab.mechanisms.dot import Dot\n"
SIZE = {"n_embd": 64, "n_head": 4, "length": 65}  # as `attnlab check` audits a class


def start(memory: int) -> float:
    """The milliseconds from nothing to the first answer of a process."""
    began = time.perf_counter()
    with Child(imports=["attnlab.measure.remote"], sandbox=memory) as child:
        child.call(abs, -1)
        return 1e3 * (time.perf_counter() - began)


def audit(confined: bool) -> float:
    """The milliseconds of an audit through another process that has started."""
    with Remote("dot.py", CODE, 600, 4 * 10**9, sandbox=confined) as remote:
        registry.add(remote.entry("Dot"))
        began = time.process_time() + remote.processor_seconds()
        audit_mechanism("Dot", **SIZE)
        return 1e3 * (time.process_time() + remote.processor_seconds() - began)


def audit_here() -> float:
    """The milliseconds of an audit in this process."""
    began = time.process_time()
    audit_mechanism("dot", **SIZE)
    return 1e3 * (time.process_time() - began)


def in_turns(rounds: int, **measurements: Callable[[], float]) -> None:
    """Measure in turns, and print the medians and their ratios to the first."""
    times: dict[str, list[float]] = {name: [] for name in measurements}
    for _ in range(rounds):
        for name, measurement in measurements.items():
            times[name].append(measurement())
    medians = {name: statistics.median(values) for name, values in times.items()}
    first = next(iter(medians.values()))
    for name, median in medians.items():
        print(f"{name.replace('_', ' '):32} {median:8.1f} ms, {median - first:+8.1f} ms, {median / first:.3f}x")


def main() -> None:
    """Print what starting and auditing cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    if reason := sandbox.missing():
        raise SystemExit(f"there is no sandbox here: {reason}")
    torch.set_num_threads(1)
    in_turns(rounds, start_without_sandbox=lambda: start(0), start_in_sandbox=lambda: start(4 * 10**9))
    audits = {"audit_here": audit_here, "audit_in_another_process": lambda: audit(False)}
    in_turns(max(1, rounds // 3), **audits, audit_in_a_sandbox=lambda: audit(True))


if __name__ == "__main__":
    main()
