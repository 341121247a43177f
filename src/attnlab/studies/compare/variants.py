"""The variants of a comparison: what the user names, as settings that differ in one thing; and what is tuned for each."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from attnlab import registry
from attnlab.config import (
    RunConfig,
    Settings,
    Stage,
    absolute_given,
    absolute_names,
    diff,
    from_text,
    merge,
    preset_names,
    read_toml,
    resolve,
)
from attnlab.errors import ConfigError, UserError, unknown
from attnlab.lm import stages
from attnlab.lm.model import LanguageModel
from attnlab.store import usercode
from attnlab.store.runs import Run, lineage, located

_MECHANISM = "model.mechanism"
_OPTIONS = "model.options"
_NOT_VARIED = frozenset({"preset", "seed"})  # settings that may differ within a variant
OTHER_TEXT = ("tokenizer.", "model.vocab_size", "task.")  # settings that change what is predicted
_OF_ALL_STAGES = ("threads", "order_seed")  # settings of training that are not those of pretraining alone
_TAKEN = ("measured", "logs", "tuning")  # folders of a comparison that are not variants
_FEW_WORDS = 97  # vocabulary of a model that is only tried out


@dataclass(frozen=True)
class Variant:
    """One of the things compared, as settings."""

    name: str
    preset: str = "small"
    file: str | None = None
    given: Settings = field(default_factory=dict)
    corpus: str | None = None  # its own training text, if variants have different ones
    steps: tuple[Stage, ...] = ()  # its training stages, if they do not follow from its task

    def settings(self, seed: int, stage: Stage = "pretrain") -> RunConfig:
        """The settings of one run; training and task settings given by the user apply to pretraining only.

        The number of threads and the seed of the order apply to all stages.
        """
        tables = self.given
        if stage != "pretrain":
            kept = {key: value for key, value in tables.get("train", {}).items() if key in _OF_ALL_STAGES}
            tables = {**{key: value for key, value in tables.items() if key not in ("train", "task")}, "train": kept}
        return resolve(self.preset, stage, Path(self.file) if self.file else None, {"seed": seed, **tables})

    def value(self, setting: str) -> Any:
        """The value of a dotted setting."""
        return self.settings(0).flat().get(setting)

    def with_settings(self, name: str, values: Mapping[str, Any]) -> Variant:
        """Return the variant with another name and other values of dotted settings."""
        settings = self.given
        for setting, value in values.items():
            for part in reversed(setting.split(".")):
                value = {part: value}
            settings = merge(settings, value)
        return replace(self, name=name, given=settings)

    def with_default(self, table: str, name: str, value: Any) -> Variant:
        """Return the variant with a setting that applies if neither its file nor the user has chosen it."""
        in_file = read_toml(Path(self.file)).get(table, {}) if self.file else {}
        if name in in_file or name in self.given.get(table, {}):
            return self
        return replace(self, given=merge(self.given, {table: {name: value}}))

    def small_model(self, seed: int) -> LanguageModel:
        """A fresh model with a small vocabulary, for checks that do not depend on it."""
        config = self.settings(seed).model
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return LanguageModel(replace(config, vocab_size=_FEW_WORDS, zero_init=False))

    def try_once(self, seed: int) -> None:
        """Let its model read two words, so that a class that cannot is found before training."""
        model = self.small_model(seed)
        try:
            with torch.no_grad():
                model(torch.zeros(1, 2, dtype=torch.long))
        except Exception as error:  # whatever a user's class may raise
            message = " ".join(str(error).split())
            raise UserError(f"{self.name} cannot read a text: {type(error).__name__}: {message}") from None

    @property
    def folder(self) -> str:
        """Its name as a folder name."""
        plain = re.sub(r"[^\w.,=-]+", "_", self.name)
        return f"{plain}_" if plain in _TAKEN else plain


# Tuned settings


@dataclass(frozen=True)
class Tuned:
    """A setting that is tuned for every variant by itself, and the values to try."""

    setting: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Trial:
    """One variant with one combination of values: its figure, the mean over the seeds; None if a run diverged."""

    variant: str
    values: dict[str, Any]
    figure: float | None
    each: tuple[float, ...]
    failure: str = ""


@dataclass(frozen=True)
class Tuning:
    """All trials, and the values chosen for every variant: the content of tuning.json."""

    settings: tuple[Tuned, ...]
    figure: str
    items: int  # sentences or questions that the choice was made on
    seeds: tuple[int, ...]
    trials: tuple[Trial, ...]
    chosen: dict[str, dict[str, Any]]

    @property
    def at_edge(self) -> dict[str, list[str]]:
        """By variant: the settings whose best value is the smallest or largest of the numbers tried."""
        numeric = {
            tuned.setting: (min(tuned.values), max(tuned.values))
            for tuned in self.settings
            if all(isinstance(value, int | float) for value in tuned.values)
        }
        edges = {
            name: [key for key, ends in numeric.items() if values[key] in ends] for name, values in self.chosen.items()
        }
        return {name: keys for name, keys in edges.items() if keys}


# Variants by name


def read_values(option: str, text: str) -> tuple[str, tuple[Any, ...]]:
    """The setting and the values of SETTING=VALUE,VALUE,..."""
    name, sign, values = text.partition("=")
    if not sign or not values:
        raise UserError(f"{option} takes SETTING=VALUE,VALUE such as train.lr=0.001,0.002, not '{text}'")
    if name == "seed":
        raise UserError("seeds are not compared, every variant has several: --seeds 3, or --seeds 7,8,9")
    return name, tuple(from_text(raw, bool if raw.lower() in ("true", "false") else None) for raw in values.split(","))


def _is_mechanism(name: str) -> bool:
    """Whether a name is that of a mechanism, a class in a file, or several of them joined by commas."""
    return all(usercode.is_code(part) or part in registry.names("mechanism") for part in usercode.split_names(name))


def is_run(name: str) -> bool:
    """Whether a name is that of a run, and not that of a mechanism or preset."""
    return not _is_mechanism(name) and name not in preset_names() and (located(name) / "config.json").is_file()


def _short_names(mechanisms: Iterable[str]) -> list[str]:
    """Mechanism names, without the file for classes in files."""
    return [registry.find("mechanism", mechanism).short_name for mechanism in mechanisms]


def _distinct_names(names: Sequence[str]) -> list[str]:
    """Names of mechanisms, without the file for classes in files unless two names would be the same."""
    short = [",".join(_short_names(usercode.split_names(name))) for name in names]
    return [
        called if short.count(called) == 1 else name.replace("/", "_").replace(".py:", ".")
        for called, name in zip(short, names, strict=True)
    ]


def make_variants(
    names: Sequence[str], vary: str | None, preset: str, file: Path | None, settings: Settings
) -> tuple[tuple[Variant, ...], str]:
    """The variants that the user names, and the setting in which they differ."""
    base = Variant("", preset, str(file.resolve()) if file else None, absolute_given(settings))
    if vary is not None:
        if names:
            raise UserError("--vary names the variants itself: choose their mechanism with --mechanism")
        setting, values = read_values("--vary", vary)
        written = vary.partition("=")[2].split(",")
        pairs = zip(written, values, strict=True)
        variants = [base.with_settings(f"{setting}={text}", {setting: value}) for text, value in pairs]
    elif all(map(_is_mechanism, names)):
        if names and "mechanism" in base.given["model"]:
            raise UserError("mechanisms are compared: leave out --mechanism, which is for --vary, presets and files")
        variants = _mechanism_variants(base, names)
    else:
        # Unknown names first, so that the error is about them.
        variants = [_preset_or_file(base, name) for name in sorted(names, key=_is_mechanism)]
    if len(variants) < 2:
        example = "--vary train.lr=0.001,0.002" if vary else "attnlab compare dot additive"
        raise UserError(f"a comparison needs at least two variants, such as: {example}")
    _refuse_duplicates(variants, [variant.folder for variant in variants])
    varied = _only_difference([(variant.name, variant.settings(0)) for variant in variants])
    _refuse_duplicates(variants, [str(variant.value(varied)) for variant in variants])
    return tuple(variant.with_default("train", "threads", 1) for variant in variants), varied


def _refuse_duplicates(variants: Sequence[Variant], keys: Sequence[str]) -> None:
    """Refuse variants with equal keys."""
    if len(set(keys)) < len(keys):
        raise UserError(f"{', '.join(variant.name for variant in variants)}: the same twice; name each variant once")


def _mechanism_variants(base: Variant, names: Sequence[str]) -> list[Variant]:
    """Mechanisms as variants; each takes its own of the options that are given for several mechanisms."""
    model = base.given.get("model", {})
    options = model.get("options", {})
    used = {name: _short_names(usercode.split_names(name)) for name in names}
    compared = set(itertools.chain(*used.values()))
    for mechanism in options:
        if mechanism not in compared:
            raise ConfigError(unknown("mechanism in model.options, which is not compared,", mechanism, compared))
    variants = []
    for called, name in zip(_distinct_names(names), names, strict=True):
        own = {mechanism: table for mechanism, table in options.items() if mechanism in used[name]}
        table = {**model, "mechanism": absolute_names(name), "options": own}
        variants.append(replace(base, name=called, given={**base.given, "model": table}))
    return variants


def _preset_or_file(base: Variant, name: str) -> Variant:
    """A preset or a settings file as a variant."""
    if name in preset_names():
        return replace(base, name=name, preset=name)
    if name.endswith(".toml"):
        return replace(base, name=Path(name).stem, file=str(Path(name).resolve()))
    if _is_mechanism(name):
        raise ConfigError(
            f"{name} is a mechanism and others are not: compare mechanisms, presets or files, all of one kind"
        )
    if "/" in name:
        raise ConfigError(f"there is no run {name}: name the folder of a finished run, a mechanism or a preset")
    choices = [*registry.names("mechanism"), *preset_names()]
    raise ConfigError(unknown("mechanism, preset or settings file (.toml)", name, choices))


# One difference


def settings_that_differ(first: RunConfig, other: RunConfig) -> set[str]:
    """The settings in which two variants differ, except the seed and options of a mechanism that only one of them has."""
    kept = set(diff(first, other)) - _NOT_VARIED
    if _MECHANISM not in kept:
        return kept
    shared = set(_short_names(first.model.mechanisms)) & set(_short_names(other.model.mechanisms))
    options = tuple(f"{_OPTIONS}.{name}." for name in shared)
    return {key for key in kept if not key.startswith(_OPTIONS) or key.startswith(options)}


def _only_difference(configs: Sequence[tuple[str, RunConfig]]) -> str:
    """The only setting other than the seed in which the variants differ; none or several are an error."""
    differences = sorted({key for _, config in configs for key in settings_that_differ(configs[0][1], config)})
    names = ", ".join(dict.fromkeys(name for name, _ in configs))
    if not differences:
        raise ConfigError(f"{names} have the same settings: there is nothing to compare")
    if len(differences) > 1:
        shown = ", ".join(differences[:5]) + (", ..." if len(differences) > 5 else "")
        raise ConfigError(
            f"{names} differ in {len(differences)} settings ({shown}), so their effects could not be separated:"
            " compare variants that differ in one, for example by --vary"
        )
    return differences[0]


def run_differences(first: Sequence[Run], other: Sequence[Run], allowed: Collection[str] = ()) -> set[str]:
    """In what two runs and the runs they started from differ besides what is allowed: settings, stages, data."""
    steps = ["+".join(run.record.stage for run in reversed(line)) for line in (first, other)]
    if steps[0] != steps[1]:
        return {f"stages ({' and '.join(steps)})"}
    differences: set[str] = set()
    for depth, (left, right) in enumerate(zip(first, other, strict=True)):
        names = settings_that_differ(stages.stored_config(left), stages.stored_config(right)) - set(allowed)
        sums = [[data and data.sha256 for data in (run.record.corpus, run.record.facts)] for run in (left, right)]
        names |= {"data"} if sums[0] != sums[1] else set()
        differences |= {f"{name} of the base" for name in names} if depth else names
    return differences


# Finished runs


def from_runs(runs: Sequence[Run]) -> tuple[str, dict[tuple[str, int], Path]]:
    """The setting in which finished runs differ, and their folders by variant and seed."""
    for run in runs:
        if not run.complete:
            raise UserError(f"{run.path} is not complete: `attnlab resume {run.path}` first")
    configs = [stages.stored_config(run) for run in runs]
    for config in configs:  # now, since the jobs that open them later cannot ask
        usercode.require_all(config.model.mechanism)
    _refuse_other_bases(runs, sorted({key for config in configs for key in settings_that_differ(configs[0], config)}))
    varied = _only_difference([(str(run.path), config) for run, config in zip(runs, configs, strict=True)])
    mechanisms = list(dict.fromkeys(config.model.mechanism for config in configs))
    names_of = dict(zip(mechanisms, _distinct_names(mechanisms), strict=True))
    folders: dict[tuple[str, int], Path] = {}
    for run, config in zip(runs, configs, strict=True):
        name = names_of[config.model.mechanism] if varied == _MECHANISM else f"{varied}={config.flat().get(varied)}"
        other = folders.setdefault((name, config.seed), run.path)
        if other is not run.path:
            raise UserError(f"{run.path} and {other} are both {name} with seed {config.seed}: name one")
    return varied, folders


def _refuse_other_bases(runs: Sequence[Run], varied: Sequence[str]) -> None:
    """Refuse runs whose data or bases differ in more than what is compared, before anything is measured.

    Runs of one seed must also have bases of one seed; for other seeds, the base may be the same or another.
    """
    lines = [lineage(run) for run in runs]
    bases: dict[int, list[int]] = {}
    for line in lines:
        seed, *before = (stages.stored_config(run).seed for run in line)
        names = run_differences(lines[0], line, varied)
        if bases.setdefault(seed, before) != before:
            names.add("seed of the base")
        if names:
            besides = f" besides {', '.join(varied)}" if varied else ""
            raise UserError(
                f"{lines[0][0].path} and {line[0].path} differ in {', '.join(sorted(names))}{besides}, so their effects"
                " could not be separated: fine-tune both from one base, train both with attnlab compare --vary, or score"
                " their predictions with attnlab score"
            )
