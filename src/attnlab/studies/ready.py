"""Predefined comparisons: the questions of the course reports, with seeds and tests.

The command line reads their names and help at start-up: modules that need torch are imported where they are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnlab.config import Settings, merge
from attnlab.errors import UserError

if TYPE_CHECKING:
    from attnlab.studies.compare.plan import Data, Plan, Published


@dataclass(frozen=True)
class _Ready:
    """A predefined comparison."""

    help: str
    title: str
    question: str
    variants: tuple[str, ...]
    task: str
    preset: str | None = None
    world: str | None = None  # built-in people, unless they are those of the task
    seeds: int | None = None  # unless as many as in every comparison


# Comparisons on sentences train as the course reports did: padded to 100 tokens, in batches of 32 drawn with replacement.
_AS_REPORTED = {"task": {"options": {"padded": True, "replacement": True}}, "train": {"rows_per_batch": 32}}

# Published in the course reports: single runs on the training sentences with this checksum.
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
    "additive-vs-dot": _Ready(
        "Compare additive with dot-product attention on sentences.",
        "Additive or dot-product attention?",
        "Does a score W2 tanh(W1 [q; k]) learn more from the same sentences than a product of queries and keys?",
        ("dot", "additive"),
        "words",
    ),
    "shared-projections": _Ready(
        "Compare shared projections of queries, keys and values with separate ones.",
        "Must queries, keys and values differ?",
        "What does a model lose if queries and keys, or queries, keys and values, share one projection?",
        ("dot", "shared_qk", "shared_qkv"),
        "words",
    ),
    "masking": _Ready(
        "Test a mask of zeros after the softmax: its gain is a leak.",
        "Zeros after the softmax, or minus infinity before it?",
        "The course reports found a lower perplexity if later words get weight zero after the softmax. Is it better?",
        ("dot", "zero_mask"),
        "words",
    ),
    "efficient": _Ready(
        "Compare what every mechanism remembers, with its time and memory.",
        "What does every mechanism remember?",
        "Which mechanisms remember what they read as well as dot-product attention, and at what cost in time and memory?",
        (),
        "recall",
        preset="quick",
        world="people:1000",
        seeds=3,
    ),
}


def sound_mechanisms() -> tuple[str, ...]:
    """All mechanisms except those that are wrong on purpose and their controls; dot first."""
    from attnlab import registry

    entries = [registry.find("mechanism", name) for name in registry.names("mechanism")]
    defects = {one.name for one in entries if one.defect}
    kept = [one.name for one in entries if not any(one.name.startswith(wrong) for wrong in defects)]
    return ("dot", *(name for name in kept if name != "dot"))


def _published(study: _Ready, data: Data) -> tuple[Published, ...]:
    """Published figures of a study's mechanisms, if the corpus is the one they were measured on."""
    from attnlab import corpora
    from attnlab.studies.compare.plan import Published

    if data.corpus is None or corpora.load_corpus(data.corpus).sha256 != NEWS:
        return ()
    names = [name for name in study.variants if name in PUBLISHED]
    return tuple(Published(name, PUBLISHED[name], "course reports, one run each") for name in names)


def ready_plan(name: str, data: Data, *, given: Settings, quick: bool = False, **asked: Any) -> Plan:
    """The plan of a predefined comparison with the user's changes; `asked` as in make_plan."""
    from attnlab.studies.compare.plan import Data, make_plan

    one = READY[name]
    if "mechanism" in given.get("model", {}):
        raise UserError(f"study {name} chooses its mechanisms: compare others with `attnlab compare`")
    changed = bool(given or asked.get("preset") or asked.get("config"))
    own = data != Data()
    usual = Data(one.world, None, f"{one.world}:train", f"{one.world}:dev") if one.world else Data()
    asked["preset"] = asked.get("preset") or one.preset
    asked["seeds"] = asked.get("seeds") or one.seeds
    return make_plan(
        one.variants or sound_mechanisms(),
        task=one.task,
        given=merge(_AS_REPORTED if not one.world else {}, given),
        data=data if own or quick else usual,
        quick=quick,
        study=name,
        title=one.title,
        question=one.question,
        published=_published(one, data) if not one.world and not changed else (),
        **asked,
    )
