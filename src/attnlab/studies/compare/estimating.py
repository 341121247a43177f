"""How long the training of a comparison will take, from a few steps of its variants, trained into a folder that is removed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from attnlab.config import RunConfig
from attnlab.errors import AttnlabError, Interrupted
from attnlab.lm.progress import say
from attnlab.lm.stages import Show
from attnlab.lm.train import Step
from attnlab.report.words import plural, roughly
from attnlab.studies.compare.plan import Plan, stages_of, trials_of
from attnlab.studies.compare.variance import variance_plan
from attnlab.studies.compare.variants import Variant
from attnlab.studies.study import run_stage

_BUDGET = 3.0  # seconds for all variants; those that it does not reach count like the others, by text and epochs
_STEPS, _LONG = 10, 1.0  # of a stage: so many steps after the first, or so many seconds


@dataclass(frozen=True)
class Estimate:
    """Seconds of training, and what they are estimated from."""

    seconds: float
    runs: int
    at_a_time: int  # on this machine; 0: on a cluster
    steps: int
    measured: tuple[str, ...]

    def __str__(self) -> str:
        where = f"{self.at_a_time} at a time" if self.at_a_time else "if run one at a time on this machine"
        more = f" and {len(self.measured) - 3} more" if len(self.measured) > 3 else ""
        source = f"{plural(self.steps, 'step')} of {', '.join(self.measured[:3])}{more}"
        return f"about {roughly(self.seconds)} of training for {plural(self.runs, 'run')}, {where} (estimate from {source})"


class _Enough(Exception):
    """Ends a training that is only measured."""


def estimate(plan: Plan) -> Estimate | None:
    """The time that a comparison will train; None if nothing is to be trained, or if it fails at once."""
    if plan.runs:
        return None
    began, found, steps = time.monotonic(), dict[str, float](), 0
    threads = torch.get_num_threads()
    for one in plan.variants:
        if found and time.monotonic() - began > _BUDGET:
            break
        try:
            with torch.random.fork_rng(devices=[]):
                found[one.name], count = _measure(plan, one)
        except Interrupted:
            raise
        except AttnlabError:  # which its run will report
            continue
        steps += count
    torch.set_num_threads(threads)
    if not found:
        return None
    weights = {one.name: _weight(plan, one) for one in plan.variants}
    rate = sum(found.values()) / sum(weights[name] for name in found)
    each = {name: found.get(name, rate * weight) for name, weight in weights.items()}
    times = [each[name] for name, _ in plan.order()]
    if plan.tune:
        times += [each[one.name] for one, _, _ in trials_of(plan)] * plan.tune_seeds
    if plan.variance:
        times += [sum(each.values()) / len(each)] * len(variance_plan(plan).variants)
    seconds = max(sum(times) / max(1, plan.at_a_time), *times)
    return Estimate(seconds, len(times), plan.at_a_time, steps, tuple(found))


def announce(plan: Plan, folder: Path, console: Console) -> None:
    """Say how long a comparison will train, before its first run."""
    if not console.quiet and not (folder / "logs").exists() and (found := estimate(plan)):
        say(console, str(found))


def _weight(plan: Plan, variant: Variant) -> float:
    """Text times epochs, or steps."""
    name = variant.corpus or plan.corpus
    lines = len(plan.data.corpus(name).lines) if name else 1
    train = variant.settings(plan.seeds[0]).train
    return float(train.steps) or lines * max(train.epochs, 1e-9)


def _measure(plan: Plan, variant: Variant) -> tuple[float, int]:
    """The seconds that all stages of a variant will take, and the steps that this was measured with."""
    total, count = 0.0, 0
    sources = variant.corpus or plan.corpus, variant.facts or plan.facts
    for stage in stages_of(variant, plan):
        steps: list[Step] = []

        def watch(step: Step, steps: list[Step] = steps) -> None:
            steps.append(step)
            if len(steps) > _STEPS or step.seconds > _LONG:
                raise _Enough

        with tempfile.TemporaryDirectory(prefix="attnlab-") as folder, suppress(_Enough):
            settings = _bare(variant.settings(plan.seeds[0], stage))
            run_stage(plan.data, settings, stage, sources, Path(folder) / "run", Show(step=watch))
        total += _whole(steps)
        count += len(steps)
    return total, count


def _bare(settings: RunConfig) -> RunConfig:
    """The same training, without what is not worth its time in a few steps that nobody keeps."""
    return replace(settings, train=replace(settings.train, log="", compile=False, sample_every=0))


def _whole(steps: Sequence[Step]) -> float:
    """The seconds of a whole training, from its first steps; the first, which is slower, counts only if it is alone."""
    last = steps[-1]
    if len(steps) == 1:
        return last.seconds / last.progress
    return last.seconds + (1 - last.progress) * (last.seconds - steps[0].seconds) / (last.progress - steps[0].progress)
