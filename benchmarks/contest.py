"""The contest of mechanisms.py: who runs against whom, and what is asked of ours.

One thread, float32, 8 heads of 32, batch 1 unless said, forward + backward, all contestants of a length in turns.
transformers' BigBird, which looks both ways, runs among the causal ones, since nobody has a causal one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peers import BLOCK, LATENTS, PEERS, RANDOM, ROWS, WINDOW
from rich.console import Console

from attnlab import registry
from attnlab.config import resolve
from attnlab.lm import optim
from attnlab.lm.model import LanguageModel
from attnlab.lm.train import SummedLoss
from attnlab.machine import retain_freed_memory
from attnlab.measure.bench import NAIVE, SDPA, BenchResult, ratios
from attnlab.measure.bench.cases import LEAST_TOKENS, Case, Inputs, build, choose_cases, split_options, work_of
from attnlab.measure.bench.timing import Limits, measure, read_lengths, spare_memory, take_turns
from attnlab.report.screen import show_all
from attnlab.store.records import plain

IMPORTS = ("peers",)  # of the process that measures memory, which finds it through PYTHONPATH
LENGTHS = "512,2048,8192,16384"
LEVEL = 1.05  # times repeat to a few per cent
PROPORTIONAL = 1.15  # the exponent of memory over length, with room for what does not grow
LONG = 2048  # tokens; in shorter texts sparse patterns are dense
LEAK_TOKENS, LEAK = 512, 1e-6
REFERENCE_SIZES = ((128, 8), (512, 8), (2048, 1))  # tokens, batch

ADDITIVE, PERFORMER = "additive", "performer"
BIGBIRD, SLIDING = f"bigbird:block={BLOCK},random_blocks={RANDOM}", f"sliding:window={WINDOW}"
LINFORMER, PERCEIVER = f"linformer:rank={ROWS}", f"perceiver:latents={LATENTS}"
WHOLE = ", whole module"
MAMBA2 = "mamba2:expand=1"  # values as wide as those of the others
STATES = ("gated_delta", "kda", "gla", MAMBA2)
# At most so many times SDPA's time, by length: with the compiled scan, and in plain torch.
STATE_TIMES = {True: {512: 0.2, 2048: 0.08, 8192: 0.025}, False: {512: 1.3, 2048: 0.45, 8192: 0.15}}
COMPILED = os.environ.get("ATTNLAB_KERNELS") != "0"
SHORT_CONTEXT, LONG_CONTEXT = 1_000, 100_000

console = Console(markup=False, width=120)


@dataclass(frozen=True)
class Target:
    """Ours takes at most so many times as long as another, at a length or, where there is none, at every length."""

    ours: str
    other: str
    most: float
    tokens: int | None = None


@dataclass(frozen=True)
class Group:
    """Contestants that run in turns, and what is asked of ours among them; `linear` ones need memory in proportion."""

    title: str
    cores: tuple[str, ...] = ()
    wholes: tuple[str, ...] = ()
    targets: tuple[Target, ...] = ()
    linear: tuple[str, ...] = ()
    causal: bool = True
    batch: int = 1
    lengths: tuple[int, ...] = ()  # where not those of all


GROUPS = (
    Group(
        "Additive attention, batch 32",
        (ADDITIVE,),
        targets=(Target(ADDITIVE, NAIVE, 2.5, 128),),
        batch=32,
        lengths=(128,),
    ),
    Group(
        "Causal",
        (PERFORMER, "performer-pytorch", BIGBIRD, "transformers BigBird", SLIDING, "local-attention"),
        targets=(
            Target(PERFORMER, SDPA, 0.5, 8192),
            Target(PERFORMER, "performer-pytorch", 0.2, 8192),
            Target(BIGBIRD, SDPA, 0.4, 8192),
            Target(BIGBIRD, "transformers BigBird", 0.2, 8192),
            Target(BIGBIRD, SDPA, 0.25, 16384),
            Target(SLIDING, SDPA, 0.1, 16384),
            Target(SLIDING, "local-attention", LEVEL),
        ),
        linear=(PERFORMER, BIGBIRD, SLIDING),
    ),
    Group(
        "States",
        (*STATES, "transformers gated delta", "transformers KDA", "transformers Mamba-2"),
        targets=(
            *(Target(name, SDPA, most, tokens) for name in STATES for tokens, most in STATE_TIMES[COMPILED].items()),
            Target("gated_delta", "transformers gated delta", LEVEL),
            Target("kda", "transformers KDA", LEVEL),
            Target(MAMBA2, "transformers Mamba-2", LEVEL),
        ),
        linear=STATES,
    ),
    Group(
        "Bidirectional",
        (PERFORMER, "performer-pytorch"),
        (LINFORMER, "linformer 0.2.3", PERCEIVER, "perceiver-pytorch"),
        targets=(
            Target(PERFORMER, "performer-pytorch", LEVEL),
            Target(LINFORMER + WHOLE, f"linformer 0.2.3{WHOLE}", LEVEL),
            Target(PERCEIVER + WHOLE, f"perceiver-pytorch{WHOLE}", LEVEL),
        ),
        linear=(PERFORMER, LINFORMER + WHOLE, PERCEIVER + WHOLE),
        causal=False,
    ),
)


@dataclass(frozen=True)
class Verdict:
    """What was asked, what was found, and whether that will do; None where it could not be measured."""

    asked: str
    found: str
    met: bool | None

    def __str__(self) -> str:
        word = "–" if self.met is None else "pass" if self.met else "FAIL"
        return f"{word:4s}  {self.asked}: {self.found}"


# Who runs


def belongs(name: str, only: Sequence[str]) -> bool:
    """Whether a contestant is there and was asked for."""
    there = name in PEERS or split_options(name)[0] in registry.names("mechanism")
    return there and (not only or any(word in name.lower() for word in only))


def cases_of(group: Group, only: Sequence[str]) -> list[Case]:
    """The contestants of a group, the baselines first; nobody if none of ours or theirs was asked for."""
    like = Case(SDPA, causal=group.causal, batch=group.batch)
    cores = [replace(like, name=name) for name in group.cores if belongs(name, only)]
    wholes = [replace(like, name=name, whole=True) for name in group.wholes if belongs(name, only)]
    baselines = [like, replace(like, name=NAIVE)] if cores else []
    return [*baselines, *cores, *(one.baseline for one in wholes[:1]), *wholes]


# What is asked


def judge_times(result: BenchResult, targets: Sequence[Target]) -> Iterator[Verdict]:
    """Every target about time, by the worst length where it is about all."""
    rows = {row.label: row for row in result.rows}
    for target in targets:
        where = "every length" if target.tokens is None else f"{target.tokens:,}"
        asked = f"{target.ours} at {where}: at most {target.most:g}x {target.other}"
        if target.ours not in rows or target.other not in rows:
            yield Verdict(asked, "not there", None)
            continue
        found = ratios(rows[target.ours], rows[target.other])
        found = {n: ratio for n, ratio in found.items() if target.tokens in (None, n)}
        text = ", ".join(f"{ratio:.3f}x" if target.tokens else f"{ratio:.3f}x at {n:,}" for n, ratio in found.items())
        yield Verdict(asked, text or "no time", max(found.values()) <= target.most if found else None)


def judge_memory(result: BenchResult, linear: Sequence[str]) -> Iterator[Verdict]:
    """Whether memory grows in proportion to the length, between the two longest."""
    for row in result.rows:
        sizes = [(one.tokens, one.bytes) for one in row.points if one.bytes and one.tokens >= LONG]
        if row.label in linear:
            asked = f"{row.label}: memory in proportion to the length"
            if len(sizes) < 2:
                yield Verdict(asked, "fewer than two long texts", None)
                continue
            (n0, small), (n1, large) = sizes[-2:]
            exponent = math.log(large / small) / math.log(n1 / n0)
            found = f"exponent {exponent:.2f} from {n0:,} to {n1:,} ({small / 1e6:,.0f} and {large / 1e6:,.0f} MB)"
            yield Verdict(asked, found, exponent <= PROPORTIONAL)


def leak(case: Case) -> float:
    """How much the first half of what comes out moves when the second half of what goes in is that of another text."""
    torch.manual_seed(0)
    work, other = (work_of(case.at(LEAK_TOKENS), Inputs(seed)) for seed in (0, 1))

    def first_half(x: torch.Tensor) -> torch.Tensor:
        return x.narrow(x.shape.index(LEAK_TOKENS), 0, LEAK_TOKENS // 2)

    def changed(x: torch.Tensor, later: torch.Tensor) -> torch.Tensor:
        if LEAK_TOKENS not in x.shape:  # learned, not of the text
            return x
        tokens = x.shape.index(LEAK_TOKENS)
        return torch.cat([first_half(x), later.narrow(tokens, LEAK_TOKENS // 2, LEAK_TOKENS // 2)], tokens)

    with torch.no_grad():
        before, after = work.call(*work.arguments), work.call(*map(changed, work.arguments, other.arguments))
        return float((first_half(before) - first_half(after)).abs().max())


def judge_leaks(cases: Sequence[Case]) -> Iterator[Verdict]:
    """The leak of every causal contestant; only ours must have none."""
    for case in cases:
        if case.causal and case.name != "transformers BigBird":
            peer = case.name in PEERS
            try:
                found = leak(case)
            except Exception as error:  # whatever a peer may raise
                yield Verdict(f"{case.label}: leak", f"{type(error).__name__}: {error}", None if peer else False)
                continue
            asked = f"{case.label}: leak" + (" (of a peer, no target)" if peer else f" below {LEAK:g}")
            yield Verdict(asked, f"{found:.1e}", None if peer else found < LEAK)


def judge_references(only: Sequence[str], limits: Limits) -> Iterator[Verdict]:
    """No mechanism may be slower than its own reference."""
    names = [name for name in registry.names("mechanism") if belongs(name, only)]
    for causal in (True, False):
        for tokens, batch in REFERENCE_SIZES:
            like = Case("", causal=causal, batch=batch)
            cases, _ = choose_cases(names, like) if names else ([], {})
            cases = [case for case in cases if replace(case, path="reference") in cases]
            if not cases:
                continue
            result = measure(cases, [tokens], replace(limits, rounds=3), tell=tell, imports=IMPORTS)
            rows = {row.label: row for row in result.rows}
            setting = f"{tokens:,}, batch {batch}, {'causal' if causal else 'bidirectional'}"
            targets = [
                Target(label, f"{label}, reference", LEVEL, tokens) for label in rows if "reference" not in label
            ]
            for verdict in judge_times(result, targets):
                yield replace(verdict, asked=f"{verdict.asked} ({setting})")


def step_time(name: str, context: int) -> tuple[float, int]:
    """Seconds to decode one token after a context, the shortest of 50; and how many numbers the cache holds."""
    torch.manual_seed(0)
    module: Any = build(Case(name, tokens=LEAST_TOKENS)).eval()
    cache, times = module.new_cache(), []
    with torch.no_grad():
        for start in range(0, context, 1000):
            module(torch.randn(1, min(1000, context - start), 256), cache=cache)
        for _ in range(50):
            began = time.process_time()
            module(torch.randn(1, 1, 256), cache=cache)
            times.append(time.process_time() - began)
    return min(times), sum(part.numel() for part in vars(cache).values() if isinstance(part, torch.Tensor))


def judge_decoding(only: Sequence[str]) -> Iterator[Verdict]:
    """Whether a token takes as long, and the cache is as large, after a long text as after a short one."""
    for name in (name for name in STATES if belongs(name, only)):
        (soon, small), (late, large) = (step_time(name, context) for context in (SHORT_CONTEXT, LONG_CONTEXT))
        asked = f"{name}: one token after {LONG_CONTEXT:,} tokens, time and cache as after {SHORT_CONTEXT:,}"
        found = f"{1e6 * late:,.0f} and {1e6 * soon:,.0f} µs, {large:,} and {small:,} numbers"
        yield Verdict(asked, found, late <= 1.2 * soon and large == small)


def judge_training(only: Sequence[str], rounds: int = 5, tokens: int = 512) -> Iterator[Verdict]:
    """Whether a step of `small` with states is at least as fast as with `dot`, optimizer included."""
    if not belongs("gated_delta", only):
        return
    steps = {}
    for name in ("dot", "gated_delta"):
        settings = resolve("small", given={"model": {"mechanism": name, "block_size": tokens}})
        model = LanguageModel(settings.model).train()
        optimizers, loss = optim.make_optimizers(model, settings.train), SummedLoss(model)
        ids = torch.randint(settings.model.vocab_size, (4, tokens + 1))

        def step(loss: SummedLoss = loss, ids: torch.Tensor = ids, optimizers: Any = optimizers) -> None:
            (loss(ids[:, :-1], ids[:, 1:]) / ids.numel()).backward()
            for optimizer in optimizers.values():
                optimizer.step()
                optimizer.zero_grad()

        step()
        steps[name] = step
    times = {name: min(each) for name, each in take_turns(steps, rounds, 1).items()}
    asked = f"a training step of small, 4 texts of {tokens} tokens: gated_delta at most {LEVEL:g}x dot"
    found = f"{1e3 * times['gated_delta']:,.0f} and {1e3 * times['dot']:,.0f} ms"
    yield Verdict(asked, found, times["gated_delta"] <= LEVEL * times["dot"])


# Words


def tell(what: str) -> None:
    """Say on standard error what is going on."""
    sys.stderr.write(f"{what}\n")


def run_group(group: Group, only: Sequence[str], lengths: Sequence[int], limits: Limits) -> Iterator[Any]:
    """Measure a group and print it; its result, then its verdicts."""
    cases = cases_of(group, only)
    if not cases:
        return
    result = measure(cases, group.lengths or lengths, limits, tell=tell, imports=IMPORTS)
    show_all(replace(result.document(), title=group.title), console)
    yield result
    for target in group.targets:
        if belongs(target.ours.removesuffix(WHOLE), only):
            yield from judge_times(result, [target])
    yield from judge_memory(result, group.linear)
    yield from judge_leaks([case for case in cases if case.name not in (SDPA, NAIVE)])


def main() -> None:
    """Run all groups, print tables and verdicts, and fail when a target is missed."""
    parser = argparse.ArgumentParser(description="Our mechanisms beside the libraries people use.")
    parser.add_argument(
        "--only", default="", help="contestants whose name holds one of these words, with commas between"
    )
    parser.add_argument("--lengths", default=LENGTHS, help=f"tokens, with commas between (default {LENGTHS})")
    parser.add_argument("--seconds", type=float, default=15.0, help="skip what a single run would take longer for")
    parser.add_argument(
        "--no-references", action="store_true", help="leave out the mechanisms against their references"
    )
    parser.add_argument("--json", type=Path, help="write everything to this file too")
    given = parser.parse_args()
    retain_freed_memory()  # as training does
    folders = [str(Path(__file__).resolve().parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    only = [word.strip().lower() for word in given.only.split(",") if word.strip()]
    limits = Limits(seconds=given.seconds, memory=spare_memory(), rounds=5)
    found: list[BenchResult] = []
    verdicts: list[Verdict] = []
    for group in GROUPS:
        for one in run_group(group, only, read_lengths(given.lengths), limits):
            (found if isinstance(one, BenchResult) else verdicts).append(one)
    if not given.no_references:
        verdicts += judge_references(only, limits)
    verdicts += [*judge_decoding(only), *judge_training(only)]
    console.print()
    for verdict in verdicts:
        console.print(str(verdict), soft_wrap=True)
    if given.json:
        told = {"results": [plain(one) for one in found], "verdicts": [vars(one) for one in verdicts]}
        given.json.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.exit(any(one.met is False for one in verdicts))


if __name__ == "__main__":
    main()
