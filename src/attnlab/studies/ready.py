"""Predefined comparisons: the questions of the course reports, with seeds and tests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from attnlab import registry
from attnlab.config import Settings
from attnlab.errors import UserError
from attnlab.studies import options as opt
from attnlab.studies.compare import Compare
from attnlab.studies.study import study

# Published in the course reports: single runs on the training sentences with this checksum.
NEWS = "17ae3420b2f8ab5d703bbeaaa09c8f64e77047ffe56063ce311ad1d72910c015"
_FIGURES = ("final_loss", "train_sentence_perplexity", "dev_sentence_perplexity", "seconds")
PUBLISHED = {
    "dot": dict(zip(_FIGURES, (5.85, 401.0, 380.8, 215), strict=True)),
    "additive": dict(zip(_FIGURES, (5.72, 405.3, 386.0, 1229), strict=True)),
    "zero_mask": dict(zip(_FIGURES, (5.27, 200.3, 186.5, 152), strict=True)),
}


def sound_mechanisms() -> tuple[str, ...]:
    """All mechanisms except those that are wrong on purpose and their controls; dot first."""
    entries = [registry.find("mechanism", name) for name in registry.names("mechanism")]
    defects = {entry.name for entry in entries if entry.defect}
    kept = [entry.name for entry in entries if not any(entry.name.startswith(wrong) for wrong in defects)]
    return ("dot", *(name for name in kept if name != "dot"))


@dataclass(frozen=True, kw_only=True)
class _Ready(Compare):
    """A comparison that names its mechanisms and its task itself."""

    vary: opt.Hidden[str | None] = None

    def completed(self) -> Self:
        """Refuse another mechanism, and fill in the defaults."""
        if "mechanism" in self.given.get("model", {}):
            raise UserError(f"study {self.name} chooses its mechanisms: compare others with `attnlab compare`")
        return super().completed()


@dataclass(frozen=True, kw_only=True)
class _OnSentences(_Ready):
    """A comparison that trains as the course reports did: padded to 100 tokens, batches of 32 drawn with replacement."""

    task: opt.Hidden[str | None] = "words"
    facts: opt.Hidden[str | None] = None
    exam: opt.Hidden[str | None] = None

    usual: ClassVar[Settings] = {
        "task": {"options": {"padded": True, "replacement": True}},
        "train": {"rows_per_batch": 32},
    }
    source: ClassVar[str] = "course reports, one run each"

    def published(self) -> dict[str, dict[str, float]]:
        """Return published figures, if they were measured on this corpus with these settings."""
        changed = self.given or self.preset or self.config
        if changed or self.corpus is None or self.data.corpus(self.corpus).sha256 != NEWS:
            return {}
        return {variant.name: PUBLISHED[variant.name] for variant in self.variants if variant.name in PUBLISHED}


@study("additive-vs-dot")
class AdditiveVsDot(_OnSentences):
    """Compare additive with dot-product attention on sentences."""

    names: opt.Hidden[tuple[str, ...]] = ("dot", "additive")

    headline: ClassVar[str] = "Additive or dot-product attention?"
    question: ClassVar[str] = (
        "Does a score W2 tanh(W1 [q; k]) learn more from the same sentences than a product of queries and keys?"
    )


@study("shared-projections")
class SharedProjections(_OnSentences):
    """Compare shared projections of queries, keys and values with separate ones."""

    names: opt.Hidden[tuple[str, ...]] = ("dot", "shared_qk", "shared_qkv")

    headline: ClassVar[str] = "Must queries, keys and values differ?"
    question: ClassVar[str] = (
        "What does a model lose if queries and keys, or queries, keys and values, share one projection?"
    )


@study("masking")
class Masking(_OnSentences):
    """Test a mask of zeros after the softmax: its gain is a leak."""

    names: opt.Hidden[tuple[str, ...]] = ("dot", "zero_mask")

    headline: ClassVar[str] = "Zeros after the softmax, or minus infinity before it?"
    question: ClassVar[str] = (
        "The course reports found a lower perplexity if later words get weight zero after the softmax. Is it better?"
    )


@study("efficient")
class Efficient(_Ready):
    """Compare what every mechanism remembers, with its time and memory."""

    task: opt.Hidden[str | None] = "recall"
    dev: opt.Hidden[str | None] = None
    probe: opt.Hidden[tuple[str, ...]] = ()

    headline: ClassVar[str] = "What does every mechanism remember?"
    question: ClassVar[str] = (
        "Which mechanisms remember what they read as well as dot-product attention, and at what cost in time and memory?"
    )

    def completed(self) -> Self:
        """Take all sound mechanisms, 1,000 people and three seeds, unless the user chooses otherwise."""
        if self.variants:
            return self
        plan = replace(self, names=sound_mechanisms(), preset=self.preset or "quick", seeds=self.seeds or (0, 1, 2))
        if not (self.quick or self.corpus or self.facts or self.exam):
            plan = replace(plan, corpus="people:1000", facts="people:1000:train", exam="people:1000:dev")
        return super(Efficient, plan).completed()
