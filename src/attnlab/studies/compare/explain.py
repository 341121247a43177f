"""What the numbers of a comparison mean, in sentences made from them: verdicts, and what a leak is worth. Plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from attnlab.measure.audit.leaks import LIMIT

ALPHA = 0.05


def mean_probe(probes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One probe sentence over all seeds."""
    losses = [one["loss"] for one in probes]
    loss = sum(losses) / len(losses)
    return {**probes[0], "loss": loss, "perplexity": math.exp(loss), "losses": losses}


def explained(result: Mapping[str, Any]) -> dict[str, Any]:
    """The verdicts of a comparison, and the explanation of its leaks where there are any."""
    leaking = [one for one in result["specimens"] if one["leaks"]]
    reference = result["specimens"][0]
    explanation = [of_leak(one, reference, result) for one in leaking]
    verdict = [one["paragraphs"][-1] for one in explanation]
    return {"verdict": [*verdict, *map(sentence, result["comparisons"])], "explanation": explanation}


def sentence(comparison: Mapping[str, Any]) -> str:
    """One comparison as a sentence of its own."""
    said = f"{comparison['a']} against {comparison['b']}: {comparison['words']}"
    if comparison["believed"]:
        return f"{said}."
    return f"{said}. This is not to be believed, since one of the two sees the future."


def of_leak(leaking: Mapping[str, Any], reference: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """What the leak of a specimen is worth beside the first specimen; the last paragraph is the verdict."""
    name = leaking["name"]
    paragraphs = [found_by_audit(name, leaking["audit"]), readings(leaking, reference)]
    if "gain" in leaking:
        paragraphs.append(samples(leaking, reference, result["text_quality"]))
        said = verdict_on(leaking, reference)
    elif leaking is reference and "samples" in leaking:
        said = f"{name} sees the future, and is what the others are held against: name a sound specimen first."
    else:
        said = (
            f"{name} sees the future while it reads, so its training loss is not to be believed. Answers are written word by"
            " word, where there is no future: they are its own."
        )
    return {"title": f"What the leak of {name} is worth", "paragraphs": [*paragraphs, said]}


def found_by_audit(name: str, audit: Mapping[str, Any]) -> str:
    """The audit in a sentence."""
    leaks, faults = audit["leak_by_position"], audit["faults"]
    seen = [at for at, value in enumerate(leaks) if value > LIMIT]
    if seen:
        worst = max(seen, key=lambda at: leaks[at])
        defect = f" {audit['defect'][:1].upper()}{audit['defect'][1:]}." if audit["defect"] else ""
        return (
            f"The audit: {len(seen)} of {len(leaks)} positions of {name} change when only later words do, by up to"
            f" {100 * leaks[worst]:.2g} % of their range (position {worst + 1}).{defect}"
        )
    if faults:
        return f"The audit of {name}: {'; '.join(faults.values())}."
    return f"The audit of {name} found no fault before training: the leak shows in the trained model only."


def readings(leaking: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    """Both readings of the same sentences."""
    mine, others = leaking["word_by_word"], reference["word_by_word"]
    beside = (
        ""
        if leaking is reference
        else f"; of {reference['name']}: {others['whole']:,.1f} and {others['word_by_word']:,.1f}"
    )
    return (
        f"The trained models read the same {mine['sentences']:,} texts twice: whole, as in training, and each word from"
        f" a text that ends before it, as when they write. Token perplexity of {leaking['name']}: {mine['whole']:,.1f} whole,"
        f" {mine['word_by_word']:,.1f} word by word{beside}. A model that cannot see the future has the same number twice."
    )


def samples(leaking: Mapping[str, Any], reference: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    """What the models write, beside the text."""

    def shares(quality: Mapping[str, Any]) -> str:
        return (
            f"{100 * quality['unknown_share']:.1f} % <UNK>, {100 * quality['punctuation_share']:.1f} % punctuation,"
            f" {quality['mean_length']:.0f} words a sentence"
        )

    return (
        f"What they write: {leaking['name']} {shares(leaking['sample_quality'])};"
        f" {reference['name']} {shares(reference['sample_quality'])}; the dev text {shares(text)}."
    )


def verdict_on(leaking: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    """Whether the gain of a leaking specimen is its leak: what is left of it where the future cannot be seen."""
    name, other = leaking["name"], reference["name"]
    whole, honest = leaking["gain"]["whole"], leaking["gain"]["word_by_word"]
    if not shown(whole) or whole["ratio"] >= 1:
        return f"{name} sees the future, and no gain by it is shown: its token perplexity is {times(whole)} that of {other}."
    looks = (
        f"{name} looks better than {other}, its token perplexity on the texts read twice {times(whole)} that of {other}"
    )
    readings = f"{looks}; word by word, where there is no future, it is {times(honest)}."
    if not shown(honest) or honest["ratio"] >= 1:
        return f"The gain is the leak: {readings}"
    share = 1 - math.log(honest["ratio"]) / math.log(whole["ratio"])
    return (
        f"{100 * share:.0f} % of the gain is the leak: {readings}"
        if share > 0
        else f"The gain is not the leak: {readings}"
    )


def shown(ratio: Mapping[str, Any]) -> bool:
    """Whether a ratio of perplexities differs from one."""
    return ratio["p"] is not None and ratio["p"] < ALPHA


def times(ratio: Mapping[str, Any]) -> str:
    """A ratio of perplexities with its interval."""
    if ratio["ratio_low"] is None:
        return f"{ratio['ratio']:.3g} times"
    return f"{ratio['ratio']:.3g} times ({ratio['ratio_low']:.3g} to {ratio['ratio_high']:.3g})"
