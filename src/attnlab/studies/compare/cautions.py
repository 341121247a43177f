"""What a comparison cannot show with its data, said before training: equal computations, short texts, few documents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from attnlab import registry
from attnlab.lm import stages
from attnlab.lm.model import LanguageModel
from attnlab.report.words import listed
from attnlab.stats.crossed import FEWEST_CLUSTERS
from attnlab.store import records
from attnlab.store.folders import is_written
from attnlab.studies.compare.plan import Plan
from attnlab.studies.compare.variants import Variant, settings_that_differ

CAUTIONS = "cautions.json"
_LONG_LINES = 50  # the longest lines, of which one has the most tokens
_SAME = 1e-5  # difference of outputs that rounding explains
_SCATTER = 0.1  # standard deviation of what is added to all weights, so that none is zero


@dataclass(frozen=True)
class Cautions:
    """One sentence for each, with the remedy, and the pairs that compute the same."""

    notes: tuple[str, ...]
    equal: tuple[tuple[str, str], ...] = ()


def read_cautions(plan: Plan, folder: Path) -> Cautions:
    """The cautions that were printed before training."""
    path = folder / CAUTIONS
    return records.read(Cautions, path) if is_written(path) else cautions(plan)


def cautions(plan: Plan) -> Cautions:
    """What a comparison cannot show with its data."""
    groups = len(set(plan.clusters)) if plan.clusters else FEWEST_CLUSTERS
    notes = []
    if groups < FEWEST_CLUSTERS:
        kind = "documents" if plan.words else "people that the questions are about"
        notes.append(
            f"There is no test with {groups} {kind}, since what belongs to one of them is alike: use at least"
            f" {FEWEST_CLUSTERS}."
        )
    by_line = plan.variants[0].settings(plan.seeds[0]).task.options.get("documents") == "lines"
    if plan.dev and not by_line and not plan.data.corpus(plan.dev).documents:
        notes.append(
            "The measured text has no blank lines between documents, so each sentence counts as independent. If the sentences"
            " come from few documents, p is far too small: separate documents by blank lines."
        )
    pairs = [] if plan.runs else [pair for pair in plan.compared() if _differ_in_mechanism(plan, *pair)]
    if not pairs:
        return Cautions(tuple(notes))
    longest = _longest(plan)
    compared = [variant for variant in plan.variants if any(variant.name in pair for pair in pairs)]
    models = {variant.name: variant.small_model(0).eval() for variant in compared}
    equal = tuple((a, b) for a, b in pairs if _equal(models[a], models[b], longest))
    notes += [
        f"{a} and {b} compute the same on texts of {longest} tokens, the longest here{_remedy(plan, a, b)}."
        for a, b in equal
    ]
    bounds = ((variant.name, _made_for(variant, models[variant.name])) for variant in compared)
    notes += [
        f"{name} is made for texts of more than {bound[1]} tokens ({bound[0]}), and the longest here has {longest}: this says"
        " little about what it is made for."
        for name, bound in bounds
        if bound and longest <= bound[1] and not any(name in pair for pair in equal)
    ]
    return Cautions(tuple(notes), equal)


def _differ_in_mechanism(plan: Plan, a: str, b: str) -> bool:
    changed = settings_that_differ(plan.find(a).settings(0), plan.find(b).settings(0))
    return all(name.startswith(("model.mechanism", "model.options")) for name in changed)


def _longest(plan: Plan) -> int:
    """The tokens of the longest text that is trained on or measured, as far as the model can read."""
    config = plan.variants[0].settings(plan.seeds[0])
    sources = plan.data.sources(plan.corpus, plan.facts)
    tokenizer = stages.learn_tokenizer(config, sources)
    lines = sorted([*sources.texts(), *plan.items], key=len)[-_LONG_LINES:]
    return min(config.model.block_size, max(len(tokenizer.encode(line)) + 1 for line in lines))


def _equal(a: LanguageModel, b: LanguageModel, tokens: int) -> bool:
    """Whether two models with the same weights give the same outputs for a text of this length."""
    own, other = dict(a.named_parameters()), dict(b.named_parameters())
    if {name: weight.shape for name, weight in own.items()} != {name: weight.shape for name, weight in other.items()}:
        return False
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(a.config.vocab_size, (2, tokens), generator=random)
    with torch.no_grad():
        for name, weight in own.items():
            weight.add_(_SCATTER * torch.randn(weight.shape, generator=random))
            other[name].copy_(weight)
        x, y = a(ids), b(ids)
    return x.shape == y.shape and bool(torch.allclose(x, y, atol=_SAME, rtol=_SAME))


def _remedy(plan: Plan, *names: str) -> str:
    knobs = {knob for name in names for entry in _entries(plan.find(name)) for knob in entry.knobs}
    return f": use longer texts or a smaller {listed(sorted(knobs), 'or')}" if knobs else ""


def _made_for(variant: Variant, model: LanguageModel) -> tuple[str, int] | None:
    """What bounds the work of a mechanism that saves time on long texts: the largest of its options, or its head size."""
    bounds = []
    for entry, block in zip(_entries(variant), model.blocks, strict=False):
        if entry.cost and "n²" not in entry.cost:
            options = [bound for knob in entry.knobs if (bound := _bound(block.attn, knob))]
            head = model.config.n_embd // model.config.n_head
            bounds += options or [(f"its head size is {head}", head)]
    return max(bounds, key=lambda bound: bound[1], default=None)


def _bound(attention: object, knob: str) -> tuple[str, int] | None:
    """An option in words, and the tokens that it stands for; None: not known."""
    value = getattr(attention, knob, 0)
    size = len(value) if isinstance(value, torch.Tensor) else value
    if not isinstance(size, int) or size == 0:
        return None
    if knob.endswith("_blocks"):
        tokens = size * getattr(attention, "block", 1)
        return f"its {knob} cover {tokens}", tokens
    return f"its {knob} is {size}", size


def _entries(variant: Variant) -> list[registry.Entry]:
    return [registry.find("mechanism", name) for name in variant.settings(0).model.mechanisms]
