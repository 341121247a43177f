"""The specimens of a comparison: what a user names, as settings that differ in one thing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attnlab import registry, stages, usercode
from attnlab.config import (
    RunConfig,
    Settings,
    Stage,
    absolute_given,
    absolute_names,
    diff,
    flatten,
    from_text,
    merge,
    preset_names,
    read_toml,
    resolve,
)
from attnlab.errors import ConfigError, UserError, unknown
from attnlab.runs import Run

MECHANISM = "model.mechanism"
OPTIONS = "model.options"
NOT_VARIED = frozenset({"preset", "seed"})  # names of settings that differ without making another specimen
OTHER_TEXT = ("tokenizer.", "model.vocab_size", "task.")  # settings that change what is predicted
TAKEN = ("measured", "logs")  # folders of a comparison beside those of its specimens


@dataclass(frozen=True)
class Specimen:
    """One of those that are compared, as settings."""

    name: str
    preset: str = "small"
    file: str | None = None
    given: Settings = field(default_factory=dict)
    corpus: str | None = None  # the text that it reads, where not all specimens read the same
    steps: tuple[Stage, ...] = ()  # how it is trained, where that does not follow from its task

    def settings(self, seed: int, stage: Stage = "pretrain") -> RunConfig:
        """The settings of one of its runs; what is given by hand for training and task is meant for pretraining.

        The threads are meant for all stages: they are the machine's, and jobs beside each other share it.
        """
        given = self.given
        if stage != "pretrain":
            threads = {key: value for key, value in given.get("train", {}).items() if key == "threads"}
            given = {**{key: value for key, value in given.items() if key not in ("train", "task")}, "train": threads}
        return resolve(self.preset, stage, Path(self.file) if self.file else None, {**given, "seed": seed})

    def value(self, setting: str) -> Any:
        """Its value of a dotted setting."""
        return dict(flatten(self.settings(0).to_dict())).get(setting)

    def unless_said(self, table: str, name: str, value: Any) -> Specimen:
        """With a setting that neither its file nor the user has chosen."""
        said = read_toml(Path(self.file)).get(table, {}) if self.file else {}
        if name in said or name in self.given.get(table, {}):
            return self
        return replace(self, given=merge(self.given, {table: {name: value}}))

    @property
    def folder(self) -> str:
        """Its name as that of a folder."""
        plain = re.sub(r"[^\w.,=-]+", "_", self.name)
        return f"{plain}_" if plain in TAKEN else plain


def is_mechanism(name: str) -> bool:
    """Whether a name stands for a mechanism, a class in a file, or several of them joined by commas."""
    return all(usercode.is_code(one) or one in registry.names("mechanism") for one in usercode.split_names(name))


def is_run(name: str) -> bool:
    """Whether a name stands for a run folder."""
    return (Path(name) / "config.json").is_file()


def short(name: str) -> str:
    """A mechanism's name, of classes in files without the file."""
    return ",".join(registry.find("mechanism", one.strip()).short_name for one in name.split(","))


def telling_names(names: Sequence[str]) -> list[str]:
    """Mechanisms as they are called: of classes in files without the file, unless two would be called the same."""
    called = Counter(map(short, names))
    return [short(one) if called[short(one)] == 1 else one.replace("/", "_").replace(".py:", ".") for one in names]


def make_specimens(
    names: Sequence[str], vary: str | None, preset: str, file: Path | None, given: Settings
) -> tuple[tuple[Specimen, ...], str]:
    """The specimens that a user names, and the setting in which they differ."""
    base = Specimen("", preset, str(file.resolve()) if file else None, absolute_given(given))
    if vary is not None:
        found = varied_values(base, names, vary)
    elif all(map(is_mechanism, names)):
        if names and "mechanism" in base.given["model"]:
            raise UserError("mechanisms are compared: leave out --mechanism, which is for --vary, presets and files")
        refuse_strange_options(names, base.given)
        pairs = zip(telling_names(names), names, strict=True)
        found = [replace(base, name=called, given=with_mechanism(base.given, one)) for called, one in pairs]
    else:
        # The strange ones first: of them the user must hear.
        found = [one_kind(base, name) for name in sorted(names, key=is_mechanism)]
    if len(found) < 2:
        example = "--vary train.lr=0.001,0.002" if vary else "attnlab compare dot additive"
        raise UserError(f"a comparison needs at least two specimens, such as: {example}")
    refuse_twice(found, [one.folder for one in found])
    varied = only_difference([(one.name, one.settings(0)) for one in found])
    refuse_twice(found, [str(one.value(varied)) for one in found])
    return tuple(one.unless_said("train", "threads", 1) for one in found), varied


def refuse_twice(specimens: Sequence[Specimen], keys: Sequence[str]) -> None:
    """Refuse specimens of which two are the same."""
    if len(set(keys)) < len(keys):
        raise UserError(f"{', '.join(one.name for one in specimens)}: the same twice; name each specimen once")


def with_mechanism(given: Settings, name: str) -> Settings:
    """Settings with a mechanism, and of the options given for several those that are its own."""
    model = given.get("model", {})
    used = short(name).split(",")
    options = {one: table for one, table in model.get("options", {}).items() if one in used}
    return {**given, "model": {**model, "mechanism": absolute_names(name), "options": options}}


def refuse_strange_options(names: Sequence[str], given: Settings) -> None:
    """Refuse options of a mechanism that is not compared."""
    used = {one for name in names for one in short(name).split(",")}
    for one in given.get("model", {}).get("options", {}):
        if one not in used:
            raise ConfigError(unknown("mechanism in model.options, which is not compared,", one, used))


def varied_values(base: Specimen, names: Sequence[str], vary: str) -> list[Specimen]:
    """Specimens from SETTING=VALUE,VALUE,..."""
    name, sign, values = vary.partition("=")
    if not sign or not values:
        raise UserError(f"--vary takes SETTING=VALUE,VALUE such as train.lr=0.001,0.002, not '{vary}'")
    if name == "seed":
        raise UserError("seeds are not compared, every specimen has several: --seeds 3, or --seeds 7,8,9")
    if names:
        raise UserError("--vary names the specimens itself: choose their mechanism with --mechanism")
    return [
        replace(base, name=f"{name}={value}", given=merge(base.given, nested(name, value)))
        for value in values.split(",")
    ]


def nested(name: str, value: str) -> Settings:
    """A dotted setting with its value as nested tables."""
    inner: Any = from_text(value, bool if value.lower() in ("true", "false") else None)
    for part in reversed(name.split(".")):
        inner = {part: inner}
    found: Settings = inner
    return found


def one_kind(base: Specimen, name: str) -> Specimen:
    """A preset or a settings file as a specimen."""
    if name in preset_names():
        return replace(base, name=name, preset=name)
    if name.endswith(".toml"):
        return replace(base, name=Path(name).stem, file=str(Path(name).resolve()))
    if is_mechanism(name):
        raise ConfigError(
            f"{name} is a mechanism and others are not: compare mechanisms, presets or files, all of one kind"
        )
    if name.endswith(".py"):
        raise ConfigError(f"{name} is a file: name the class in it, {name}:MyAttention")
    choices = [*registry.names("mechanism"), *preset_names()]
    raise ConfigError(unknown("mechanism, preset or settings file (.toml)", name, choices))


def only_difference(configs: Sequence[tuple[str, RunConfig]]) -> str:
    """The one setting in which named settings differ, the seed left out; more or none are refused."""
    first = configs[0][1]
    found = sorted({key for _, other in configs[1:] for key in different(first, other)})
    names = ", ".join(dict.fromkeys(name for name, _ in configs))
    if not found:
        raise ConfigError(f"{names} have the same settings: there is nothing to compare")
    if len(found) > 1:
        shown = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
        raise ConfigError(
            f"{names} differ in {len(found)} settings ({shown}), and what came out could not be told apart:"
            " compare specimens that differ in one, for example by --vary"
        )
    return found[0]


def different(one: RunConfig, other: RunConfig) -> set[str]:
    """The settings that make another specimen: not the seed, and not the options of a mechanism that only one of them has."""
    kept = set(diff(one, other)) - NOT_VARIED
    if MECHANISM not in kept:
        return kept
    mechanisms = [set(short(each.model.mechanism).split(",")) for each in (one, other)]
    shared = mechanisms[0] & mechanisms[1]
    return {key for key in kept if not key.startswith(OPTIONS) or of_one(key, shared)}


def of_one(key: str, names: AbstractSet[str]) -> bool:
    """Whether a setting is an option of one of these mechanisms."""
    return any(key.startswith(f"{OPTIONS}.{name}.") for name in names)


def refuse_other_text(varied: str) -> None:
    """Refuse to compare perplexities of different things."""
    if varied.startswith(OTHER_TEXT):
        raise ConfigError(
            f"{varied} changes what is predicted, and perplexities of different texts cannot be compared: vary another setting"
        )


def from_runs(folders: Sequence[str]) -> tuple[tuple[Specimen, ...], str, tuple[int, ...], dict[str, str]]:
    """Specimens, the setting they differ in, seeds and folders of finished runs."""
    opened = [Run.open(one) for one in folders]
    for run in opened:
        if not run.complete:
            raise UserError(f"{run.path} is not complete: `attnlab resume {run.path}` first")
    configs = [(str(run.path), stages.stored_config(run)) for run in opened]
    for _, config in configs:  # all at once: the jobs that open them later ask nobody
        usercode.require_all(config.model.mechanism)
    varied = only_difference(configs)
    mechanisms = list(dict.fromkeys(config.model.mechanism for _, config in configs))
    called = dict(zip(mechanisms, telling_names(mechanisms), strict=True))
    runs: dict[str, str] = {}
    for path, config in configs:
        value = config.flat().get(varied)
        name = called[config.model.mechanism] if varied == MECHANISM else f"{varied}={value}"
        if f"{name}/{config.seed}" in runs:
            raise UserError(
                f"{path} and {runs[f'{name}/{config.seed}']} are both {name} with seed {config.seed}: name one"
            )
        runs[f"{name}/{config.seed}"] = str(Path(path).resolve())
    names = list(dict.fromkeys(key.rpartition("/")[0] for key in runs))
    seeds = sorted({int(key.rpartition("/")[2]) for key in runs})
    lacking = [f"{name} with seed {seed}" for name in names for seed in seeds if f"{name}/{seed}" not in runs]
    if lacking:
        raise UserError(f"no run of {', '.join(lacking)}: every specimen needs the same seeds")
    return tuple(Specimen(name) for name in names), varied, tuple(seeds), runs
