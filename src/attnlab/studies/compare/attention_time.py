"""Time of attention alone for the mechanisms of a comparison: fused, and written out with every pair in memory.

Training times hold everything else too. Here the queries, keys and values of one batch are given, forward and backward are
timed, and all paths run in turns in this process, so that ratios hold on a busy machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from attnlab.config import ModelConfig
from attnlab.lm import stages
from attnlab.measure.bench.cases import Case, Inputs, Step, choose_cases, prepare, saved_bytes, work_of
from attnlab.measure.bench.timing import take_turns
from attnlab.store.runs import Run

_ROUNDS = 7
_USUAL = 32  # texts and tokens, where training fixes neither
_LARGEST = 2**25  # numbers of the largest tensor, one per pair and channel


@dataclass(frozen=True)
class AttentionTime:
    """One path of a mechanism: the shortest time, its ratio to the first mechanism's fast path, and the bytes kept."""

    name: str
    path: str  # fast, or reference: written out
    texts: int
    tokens: int
    seconds: float
    ratio: float  # median over the rounds; from low to high
    low: float
    high: float
    kept: int  # bytes that the forward pass keeps for the backward pass


def batch_of(run: Run) -> tuple[int, int]:
    """Texts and tokens per text in the batches of a run, up to a size that is measured quickly."""
    config, task = stages.stored_config(run), run.record.task
    block = config.model.block_size
    tokens = min(block, (task.longest or block) if task.padded else _USUAL)
    texts = config.train.rows_per_batch or config.train.tokens_per_batch // tokens
    return max(1, min(texts, _LARGEST // (config.model.n_embd * tokens**2))), tokens


def attention_times(models: Mapping[str, ModelConfig], texts: int, tokens: int) -> list[AttentionTime]:
    """Time the attention of one layer of every model on one batch; empty if that of the first is no `Attention`."""
    first = next(iter(models.values()))
    like = Case("", tokens=tokens, batch=texts, n_head=first.n_head, n_embd=first.n_embd)
    cases: dict[tuple[str, str], Case] = {}
    for name, model in models.items():
        made = _case_name(model)
        for case in choose_cases([made], like)[0] if made else ():
            if case.name == made and not case.whole:
                cases[name, case.path] = case
    reference = (next(iter(models)), "fast")
    if reference not in cases:
        return []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        inputs = Inputs()
        steps: dict[tuple[str, str], Step] = {key: prepare(case, inputs) for key, case in cases.items()}
        take_turns(steps, 1, 1)  # kernels are compiled and memory is allocated
        times = take_turns(steps, _ROUNDS, 1)
        works = {key: work_of(case, inputs) for key, case in cases.items()}
        kept = {
            key: saved_bytes(partial(work.call, *work.given), (*work.given, *work.learned))
            for key, work in works.items()
        }
    finally:
        torch.set_num_threads(threads)
    found = []
    for (name, path), seconds in times.items():
        ratios = sorted(own / other for own, other in zip(seconds, times[reference], strict=False))
        figures = (min(seconds), median(ratios), ratios[0], ratios[-1])
        found.append(AttentionTime(name, path, texts, tokens, *figures, kept[name, path]))
    return found


def _case_name(model: ModelConfig) -> str:
    """The mechanism with its options as the benchmark names them; empty for several mechanisms."""
    if len(model.mechanisms) != 1:
        return ""
    options = next(iter(model.options.values()), {})
    return model.mechanism + (":" + ",".join(f"{key}={value}" for key, value in options.items()) if options else "")
