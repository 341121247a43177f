"""Comparisons that are ready to run: what the course's reports asked, with seeds and tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from attnlab import corpora, registry
from attnlab.config import Settings, merge
from attnlab.errors import UserError
from attnlab.studies.compare.plan import Data, Plan, make_plan


@dataclass(frozen=True)
class Ready:
    """A comparison by name: what it asks, of whom, with which settings beside those of the task."""

    title: str
    question: str
    specimens: tuple[str, ...]
    task: str
    given: Settings = field(default_factory=dict)
    preset: str | None = None
    data: Data = Data()


# As the course reports trained: every sentence filled up to 100 tokens, 32 drawn at a time, some twice and some never.
AS_REPORTED = {"task": {"options": {"padded": True, "replacement": True}}, "train": {"rows_per_batch": 32}}

# What the course reports published: single runs on the training sentences of this checksum, filled up to 100 tokens, 32 at a
# time, drawn with replacement.
NEWS = "17ae3420b2f8ab5d703bbeaaa09c8f64e77047ffe56063ce311ad1d72910c015"
PUBLISHED = {
    "dot": {"final_loss": 5.85, "train_sentence_perplexity": 401.0, "dev_sentence_perplexity": 380.8, "seconds": 215},
    "additive": {
        "final_loss": 5.72,
        "train_sentence_perplexity": 405.3,
        "dev_sentence_perplexity": 386.0,
        "seconds": 1229,
    },
    "zero_mask": {
        "final_loss": 5.27,
        "train_sentence_perplexity": 200.3,
        "dev_sentence_perplexity": 186.5,
        "seconds": 152,
    },
}

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
        "The course reports saw a lower perplexity where later words get weight zero after the softmax. Is it better?",
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


def published(study: Ready, data: Data) -> tuple[dict[str, Any], ...]:
    """Published figures of a study's mechanisms, where the corpus is the one they were taken on."""
    if data.corpus is None or corpora.load_corpus(data.corpus).sha256 != NEWS:
        return ()
    source = "course reports, one run each"
    if study.given != AS_REPORTED:
        source += ", in padded batches of 32 drawn with replacement, where ours are batched by length"
    names = [name for name in study.specimens if name in PUBLISHED]
    return tuple({"name": name, "values": PUBLISHED[name], "source": source} for name in names)


def ready_plan(name: str, data: Data, *, given: Settings, quick: bool = False, **asked: Any) -> Plan:
    """The plan of a ready comparison, with what a user wants otherwise; `asked` as in make_plan."""
    one = READY[name]
    if "mechanism" in given.get("model", {}):
        raise UserError(f"study {name} chooses its mechanisms: compare others with `attnlab compare`")
    changed = bool(given or asked.get("preset") or asked.get("config"))
    own = data != Data()
    asked["preset"] = asked.get("preset") or one.preset
    return make_plan(
        one.specimens or sound_mechanisms(),
        task=one.task,
        given=merge(one.given, given),
        data=data if own or quick else one.data,
        quick=quick,
        study=name,
        title=one.title,
        question=one.question,
        theirs=published(one, data) if one.task == "words" and not changed else (),
        **asked,
    )
