"""Comparisons that are ready to run: what the course's reports asked, with seeds and tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnlab import registry
from attnlab.comparing import Data, Plan, make_plan
from attnlab.config import merge
from attnlab.errors import UserError


@dataclass(frozen=True)
class Ready:
    """A comparison by name: what it asks, of whom, with which settings beside those of the task."""

    title: str
    question: str
    specimens: tuple[str, ...]
    task: str
    given: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None
    data: Data = Data()


# As the course reports trained: every sentence filled up to 100 tokens, 32 drawn at a time, some twice and some never.
AS_REPORTED = {"task": {"options": {"padded": True, "replacement": True}}, "train": {"rows_per_batch": 32}}

READY = {
    "additive-vs-dot": Ready(
        "Additive or dot-product attention?",
        "Does a score W2 tanh(W1 [q; k]) learn more from the same sentences than a product of queries and keys?",
        ("dot", "additive"),
        "words",
    ),
    "shared-projections": Ready(
        "Must queries, keys and values differ?",
        "What does a model lose whose queries and keys, or queries, keys and values, are one projection?",
        ("dot", "shared_qk", "shared_qkv"),
        "words",
    ),
    "masking": Ready(
        "Zeros after the softmax, or minus infinity before it?",
        "Setting the weights of later words to zero after the softmax halves the perplexity. Is it better?",
        ("dot", "zero_mask"),
        "words",
        AS_REPORTED,
    ),
    "efficient": Ready(
        "What does an efficient attention cost in memory of facts?",
        "Which mechanisms remember what they read as well as dot-product attention, and in which time and memory?",
        (),
        "recall",
        preset="quick",
        data=Data("people:1000", None, "people:1000:train", "people:1000:dev"),
    ),
}


def sound_mechanisms() -> tuple[str, ...]:
    """Every mechanism that is not wrong on purpose, or made to be held against such a one; dot first."""
    entries = [registry.find("mechanism", name) for name in registry.names("mechanism")]
    defects = {one.name for one in entries if one.defect}
    kept = [one.name for one in entries if not any(one.name.startswith(wrong) for wrong in defects)]
    return ("dot", *(name for name in kept if name != "dot"))


def ready_plan(name: str, data: Data, *, given: Mapping[str, Any], preset: str | None = None, **more: Any) -> Plan:
    """The plan of a ready comparison, with what a user wants otherwise; `more` as in make_plan."""
    one = READY[name]
    if "mechanism" in given.get("model", {}):
        raise UserError(f"study {name} chooses its mechanisms: compare others with `attnlab compare`")
    if data == Data():
        data = one.data
    return make_plan(
        one.specimens or sound_mechanisms(),
        task=one.task,
        preset=preset or one.preset,
        given=merge(one.given, given),
        data=data,
        study=name,
        title=one.title,
        question=one.question,
        **more,
    )
