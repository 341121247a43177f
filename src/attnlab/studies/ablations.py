"""What does each change of a model contribute? Changes one at a time, or one on top of the other, as a comparison.

Everything that is claimed comes from `compare`: the same seeds, statistics, tuning and report. Only the variants are its own:
the baseline, and a variant per change. One at a time, each is tested against the baseline; one on top of the other, against
the variant before it.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Annotated, ClassVar, Self

from cyclopts import Parameter

from attnlab.config import Settings, absolute_given, diff, from_text
from attnlab.errors import ConfigError, UserError, refuse_twice
from attnlab.studies import options as opt
from attnlab.studies.compare import Compare
from attnlab.studies.compare.variants import Variant
from attnlab.studies.options import about, default
from attnlab.studies.study import study

# What makes the block of `stories` differ from that of GPT-2, undone.
_USUAL = (
    "model.positions=learned",
    "model.norm=layer",
    "model.qk_norm=false",
    "model.activation=gelu",
    "model.zero_init=false",
    "train.optimizer=adamw",
)
_BASELINE = "baseline"


@study("ablations")
class Ablations(Compare):
    """Test what each of several changes of a model contributes.

    Every change is a setting with a value. Each is tested against the baseline; with --cumulative,
    each is made on top of those before it, and tested against the variant without it.
    """

    changes: Annotated[
        tuple[str, ...],
        Parameter(consume_multiple=True),
        about("Changes, such as model.norm=layer train.lr=0.001."),
        default("six of GPT-2"),
    ] = ()
    cumulative: Annotated[bool, about("Make each change on top of those before it.")] = False
    task: opt.Hidden[str | None] = "text"
    vary: opt.Hidden[str | None] = None
    facts: opt.Hidden[str | None] = None
    exam: opt.Hidden[str | None] = None
    all_pairs: opt.Hidden[bool] = False
    preset: Annotated[opt.Preset | None, default("stories")] = None

    usual: ClassVar[Settings] = {"train": {"steps": 300}}

    def completed(self) -> Self:
        """Fill in the usual changes and the preset of the built-in stories."""
        if self.variants:
            return self
        plan = replace(self, changes=self.changes or _USUAL, preset=self.preset or "stories")
        return super(Ablations, plan).completed()

    def make_variants(self, preset: str, settings: Settings) -> tuple[tuple[Variant, ...], str]:
        """Return the baseline and a variant per change, and the settings that they change."""
        changes: list[tuple[str, object]] = []
        for text in self.changes:
            name, _, given = text.partition("=")  # which may have commas, as layers of several mechanisms do
            if not given or "." not in name:
                raise UserError(f"--changes takes SETTING=VALUE such as model.norm=layer, not '{text}'")
            changes.append((name, from_text(given, bool if given.lower() in ("true", "false") else None)))
        refuse_twice(self.changes if not self.cumulative else [name for name, _ in changes])
        file = str(self.config.resolve()) if self.config else None
        base = Variant(_BASELINE, preset, file, absolute_given(settings)).with_default("train", "threads", 1)
        variants = [base]
        for text, (name, value) in zip(self.changes, changes, strict=True):
            below = variants[-1] if self.cumulative else base
            variant = below.with_settings(f"+ {text}" if self.cumulative else text, {name: value})
            variant = replace(variant, given=absolute_given(variant.given))
            if not diff(variant.settings(0), below.settings(0)):
                raise ConfigError(f"{text} changes nothing: it is so in {below.name} already, so leave it out")
            variants.append(variant)
        return tuple(variants), ",".join(dict.fromkeys(name for name, _ in changes))

    def compared(self) -> list[tuple[str, str]]:
        """The pairs that are tested: each change with what is below it."""
        names = [_BASELINE, *(f"+ {text}" if self.cumulative else text for text in self.changes)]
        left = {variant.name for variant in self.variants}  # without those of which every run diverged
        pairs = itertools.pairwise(names) if self.cumulative else ((_BASELINE, name) for name in names[1:])
        return [(change, below) for below, change in pairs if {change, below} <= left]

    @property
    def title(self) -> str:
        """The title of the report."""
        return f"Which of {len(self.variants) - 1} changes help?"
