"""What the numbers of a comparison mean, in sentences made from them: verdicts, and what a leak is worth. Plain data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NEARLY_ALL = 0.9  # of a gain that goes when the future is hidden


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of perplexities, which multiply."""
    return math.exp(sum(map(math.log, values)) / len(values))


def exp_or_none(value: float | None) -> float | None:
    """A ratio from its logarithm, where there is one."""
    return None if value is None else math.exp(value)


def mean_probe(probes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One probe sentence over all seeds."""
    losses = [one["loss"] for one in probes]
    loss = sum(losses) / len(losses)
    return {**probes[0], "loss": loss, "perplexity": math.exp(loss), "losses": losses}


def explained(result: Mapping[str, Any]) -> dict[str, Any]:
    """The verdicts of a comparison, and the explanation of its leaks where there are any."""
    leaking = [one for one in result["specimens"] if one["leaks"]]
    reference = result["specimens"][0]
    parts = [part for one in leaking for part in of_leak(one, reference, result)]
    verdict = [one["said"] for one in parts if one["said"]]
    verdict += map(sentence, result["comparisons"])
    explanation = [{"title": one["title"], "paragraphs": one["paragraphs"]} for one in parts]
    return {"verdict": verdict, "explanation": explanation}


def sentence(comparison: Mapping[str, Any]) -> str:
    """One comparison as a sentence of its own."""
    said = f"{comparison['a']} against {comparison['b']}: {comparison['words']}"
    if comparison["believed"]:
        return f"{said}."
    return f"{said}. This is not to be believed, since one of the two sees the future."


def of_leak(
    leaking: Mapping[str, Any], reference: Mapping[str, Any], result: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """What the leak of a specimen is worth beside the first specimen."""
    name, audit = leaking["name"], leaking["audit"]
    paragraphs = [found_by_audit(name, audit)]
    if "word_by_word" not in leaking:
        said = (
            f"{name} sees the future while it trains: its loss is not to be believed. Answers are written word by word,"
        )
        said += " where there is no future to be seen, so its right answers can be."
        yield {"title": f"What the leak of {name} is worth", "paragraphs": [*paragraphs, said], "said": said}
        return
    if leaking is reference:
        said = f"{name} sees the future, and is what the others are held against: name a sound specimen first."
        yield {"title": f"The leak of {name}", "paragraphs": [*paragraphs, said], "said": said}
        return
    paragraphs += [readings(leaking, reference), samples(leaking, reference, result["text_quality"])]
    said = verdict_on(leaking, reference)
    yield {"title": f"What the leak of {name} is worth", "paragraphs": [*paragraphs, said], "said": said}


def found_by_audit(name: str, audit: Mapping[str, Any]) -> str:
    """The audit in a sentence."""
    leaks = audit["leak_by_position"]
    if not leaks or audit["causal_leak"] is None or not max(leaks) > 0:
        return (
            f"The audit of {name} found no leak before training; that the trained model reads the same words differently"
            " when others follow shows that it has one."
        )
    seen = [at for at, value in enumerate(leaks) if value > 1e-5]
    worst = max(range(len(leaks)), key=lambda at: leaks[at])
    return (
        f"The audit, before any training: {len(seen)} of {len(leaks)} positions of {name} change when only later words do,"
        f" by up to {100 * leaks[worst]:.2g} % of their range (position {worst})."
        f" {audit['defect'][:1].upper() + audit['defect'][1:]}".rstrip(". ")
        + "."
    )


def gains(leaking: Mapping[str, Any], reference: Mapping[str, Any]) -> tuple[float, float]:
    """Logarithms of the perplexities of the reference over the leaking one's: read whole, and word by word."""
    mine, others = leaking["word_by_word"], reference["word_by_word"]
    return tuple(math.log(others[key] / mine[key]) for key in ("whole", "word_by_word"))  # type: ignore[return-value]


def readings(leaking: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    """Both readings of the same sentences."""
    mine, others = leaking["word_by_word"], reference["word_by_word"]
    return (
        f"The trained models read the same {mine['sentences']:,} dev sentences twice: whole, as in training, and each word from"
        f" a text that ends before it, as when they write. Token perplexity of {leaking['name']}: {mine['whole']:,.1f} whole,"
        f" {mine['word_by_word']:,.1f} word by word; of {reference['name']}: {others['whole']:,.1f} and"
        f" {others['word_by_word']:,.1f}. A model that cannot see the future has the same number twice."
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
    """Whether the gain of a leaking specimen is its leak."""
    name, other = leaking["name"], reference["name"]
    whole, honest = gains(leaking, reference)
    gain, kept = 100 * (1 - math.exp(-whole)), 100 * abs(math.exp(-honest) - 1)
    if whole <= 0:
        return f"{name} sees the future and gains nothing by it: its token perplexity is not below that of {other}."
    looks = f"{name} looks better than {other}, its token perplexity lower by {gain:.1f} %"
    if honest <= 0:
        return f"The gain is the leak: {looks}; word by word, without the future, it is higher by {kept:.1f} %."
    if 1 - honest / whole >= NEARLY_ALL:
        return f"The gain is the leak: {looks}, of which {kept:.1f} % remain word by word, without the future."
    share = 100 * (1 - honest / whole)
    return f"{share:.0f} % of the gain is the leak: {looks}, and {kept:.1f} % remain word by word, without the future."
