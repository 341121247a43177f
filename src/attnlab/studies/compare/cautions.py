"""What a comparison cannot show with its data, said before training: equal computations, short texts, few documents."""

from __future__ import annotations

import torch

from attnlab import registry
from attnlab.lm import stages
from attnlab.lm.model import LanguageModel
from attnlab.report.words import listed
from attnlab.stats.crossed import FEWEST_CLUSTERS
from attnlab.studies.compare.plan import Plan
from attnlab.studies.compare.variants import Variant

_LONG_LINES = 50  # the longest lines, of which one has the most tokens
_SAME = 1e-5  # difference of outputs that rounding explains


def cautions(plan: Plan) -> list[str]:
    """One sentence for each, with the remedy."""
    groups = len(set(plan.clusters)) if plan.clusters else FEWEST_CLUSTERS
    found = []
    if groups < FEWEST_CLUSTERS:
        kind = "documents" if plan.words else "people that the questions are about"
        found.append(
            f"There is no test with {groups} {kind}, since what belongs to one of them is alike: use at least"
            f" {FEWEST_CLUSTERS}."
        )
    if plan.runs or not all(name.startswith(("model.mechanism", "model.options")) for name in plan.varied_settings):
        return found
    longest = _longest(plan)
    models = {variant.name: variant.small_model(0).eval() for variant in plan.variants}
    for a, b in plan.compared():
        if _equal(models[a], models[b], longest):
            found.append(f"{a} and {b} compute the same on texts of {longest} tokens, the longest here{_remedy(plan)}.")
    made_for = ((variant.name, _made_for(variant, models[variant.name])) for variant in plan.variants)
    found += [
        f"{name} is made for texts of more than {bound[1]} tokens ({bound[0]}), and the longest here has {longest}: this says"
        " little about what it is made for."
        for name, bound in made_for
        if bound and longest <= bound[1]
    ]
    return found


def _longest(plan: Plan) -> int:
    """The tokens of the longest text that is trained on or measured, as far as the model can read."""
    config = plan.variants[0].settings(plan.seeds[0])
    sources = plan.data.sources(plan.corpus, plan.facts)
    tokenizer = stages.learn_tokenizer(config, sources)
    lines = sorted([*sources.texts(), *plan.items], key=len)[-_LONG_LINES:]
    return min(config.model.block_size, max(len(tokenizer.encode(line)) + 1 for line in lines))


def _equal(a: LanguageModel, b: LanguageModel, tokens: int) -> bool:
    """Whether two fresh models with the same seed give the same outputs for a text of this length."""
    ids = torch.randint(a.config.vocab_size, (2, tokens), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        x, y = a(ids), b(ids)
    return x.shape == y.shape and bool(torch.allclose(x, y, atol=_SAME, rtol=_SAME))


def _remedy(plan: Plan) -> str:
    knobs = {knob for variant in plan.variants for entry in _entries(variant) for knob in entry.knobs}
    return f": use longer texts or a smaller {listed(sorted(knobs), 'or')}" if knobs else ""


def _made_for(variant: Variant, model: LanguageModel) -> tuple[str, int] | None:
    """What bounds the work of a mechanism that saves time on long texts: the largest of its options, or its head size."""
    bounds = []
    for entry, block in zip(_entries(variant), model.blocks, strict=False):
        if entry.cost and "n²" not in entry.cost:
            sizes = [(f"its {knob} is {size}", size) for knob in entry.knobs if (size := _size(block.attn, knob))]
            head = model.config.n_embd // model.config.n_head
            bounds += sizes or [(f"its head size is {head}", head)]
    return max(bounds, key=lambda bound: bound[1], default=None)


def _size(attention: object, knob: str) -> int:
    """The tokens that an option stands for; 0: not known."""
    value = getattr(attention, knob, 0)
    if isinstance(value, torch.Tensor):
        return len(value)
    each = getattr(attention, "block", 1) if knob.endswith("_blocks") else 1
    return value * each if isinstance(value, int) else 0


def _entries(variant: Variant) -> list[registry.Entry]:
    return [registry.find("mechanism", name) for name in variant.settings(0).model.mechanisms]
