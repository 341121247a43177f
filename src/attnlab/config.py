"""The settings of a run: frozen dataclasses, filled from a preset, then a user's file, then the command line.

Strict: an unknown key, a value of the wrong type or a number out of range is an error that names the fix. A setting's
meaning is written once, beside its default; `attnlab settings` and the command line's help are generated from it. Knows
nothing about torch, files other than TOML presets, or what a mechanism does.
"""

from __future__ import annotations

import operator
import sys
import tomllib
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec

from attnlab.errors import ConfigError, cut, unknown
from attnlab.reading import read_bytes
from attnlab.store import usercode

Settings = Mapping[str, Any]  # nested tables of settings as TOML, JSON or the command line give them, not yet checked
LARGEST = 2**31 - 1  # largest integer setting, seeds included: numpy takes no larger seeds
LOGGERS = ("tensorboard", "wandb", "trackio")
POSITIONS = ("none", "learned", "sinusoidal", "rotary")
Stage = Literal["pretrain", "finetune", "scratch"]  # scratch: the baseline without pretraining


def setting(default: Any, meaning: str, short: str = "", **bounds: float) -> Any:
    """Declare a dataclass field with its help text, its short name on the command line, and bounds as in `check_bounds`."""
    metadata = {"help": meaning, "short": short, **bounds}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def require(condition: bool, message: str) -> None:
    """Raise ConfigError unless the condition holds."""
    if not condition:
        raise ConfigError(message)


_BOUNDS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "least": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "most": ("at most", operator.le),
    "below": ("below", operator.lt),
}


def check_bounds(values: Any, prefix: str) -> None:
    """Raise ConfigError for a number outside of the bounds that its setting declares."""
    for item in fields(values):
        value = getattr(values, item.name)
        for name, (words, holds) in _BOUNDS.items():
            bound = item.metadata.get(name)
            if bound is not None and not holds(value, bound):
                raise ConfigError(f"{prefix}{item.name} must be {words} {bound:,}, not {shortened(value)}")


@dataclass(frozen=True)
class ModelConfig:
    """The model without its tokenizer."""

    n_layer: int = setting(2, "blocks", least=1, most=1000)
    n_head: int = setting(8, "attention heads per block", least=1, most=65_536)
    n_embd: int = setting(256, "width of the residual stream", least=1, most=65_536)
    block_size: int = setting(128, "longest sequence in tokens", least=8, most=2**20)
    vocab_size: int = setting(
        2000,
        "rows of the token embedding, for words and running text a maximum; 0: one per symbol",
        least=0,
        most=2**24,
    )
    mechanism: str = setting("dot", "attention mechanism, or several joined by commas, tiled over the layers")
    options: dict[str, dict[str, Any]] = setting({}, "options of the mechanisms, as options.NAME.OPTION")
    bottleneck: int = setting(0, "latents that the middle layers work on, as in a Perceiver; 0: none", least=0)
    positions: str = setting(
        "rotary", "none, learned, sinusoidal or rotary positions; rotary and none joined by commas tile over the layers"
    )
    rotary_layout: Literal["half", "interleaved"] = setting(
        "half", "pairs that are rotated: (i, i + half), as in Llama, or (2i, 2i + 1), as in GPT-J"
    )
    rotary_base: float = setting(10_000.0, "base of the rotary frequencies", least=1)
    rotary_fraction: float = setting(1.0, "share of each head that is rotated, rounded to whole pairs", above=0, most=1)
    norm: Literal["layer", "rms", "none"] = setting("rms", "normalisation: LayerNorm, RMS without parameters, or none")
    norm_place: Literal["pre", "post"] = setting(
        "pre", "norms before attention and MLP and after the last block, or after each residual sum"
    )
    qk_norm: bool = setting(True, "normalise queries and keys")
    activation: Literal["gelu", "gelu_tanh", "relu2", "silu", "swiglu"] = setting(
        "relu2", "activation of the MLP; gelu_tanh is GPT-2's, swiglu the gated MLP of Llama"
    )
    mlp_ratio: int = setting(
        4, "width of the MLP as a multiple of n_embd, 2/3 of it with swiglu; 0: no MLP", least=0, most=64
    )
    tied_head: bool = setting(False, "use the token embedding as the head")
    bias: bool = setting(False, "biases in the linear layers of the blocks")
    zero_init: bool = setting(True, "initialize the output projections of the blocks to zero")
    dropout: float = setting(0.0, "dropout on embedding, attention weights and residuals", least=0, below=1)
    attention_dropout: float = setting(
        -1.0, "dropout on attention weights alone; -1: the same as dropout", least=-1, below=1
    )

    def __post_init__(self) -> None:
        check_bounds(self, "model.")
        require(
            self.n_embd % self.n_head == 0,
            f"model.n_embd ({self.n_embd}) must be a multiple of model.n_head ({self.n_head})",
        )
        self._check_positions()
        require(
            "rotary" not in self.layer_positions or (self.n_embd // self.n_head) % 2 == 0,
            "rotary positions need an even head width: change model.n_head, or set model.positions to learned",
        )
        require(
            self.bottleneck == 0 or self.block_size % self.bottleneck == 0,
            f"model.bottleneck ({self.bottleneck}) must divide model.block_size ({self.block_size}), or be 0 for none",
        )
        require(
            self.bottleneck == 0 or (self.n_layer >= 2 and "rotary" not in self.layer_positions),
            "model.bottleneck needs at least two layers and --model.positions learned: latents have no position",
        )
        require(
            self.attention_dropout == -1 or self.attention_dropout >= 0,
            f"model.attention_dropout must lie in [0, 1), or be -1 for that of dropout, not {self.attention_dropout}",
        )

    def _check_positions(self) -> None:
        object.__setattr__(self, "positions", ",".join(name.strip() for name in self.positions.split(",")))
        names = self.layer_positions
        for name in names:
            require(name in POSITIONS, unknown("model.positions", name, POSITIONS))
        require(
            len(names) == 1 or {*names} <= {"rotary", "none"},
            f"model.positions {self.positions}: only rotary and none can differ between layers, since learned and sinusoidal"
            " positions are added to the embedding: name one of them alone",
        )
        require(
            len(names) <= self.n_layer,
            f"model.positions names {len(names)} layers of {self.n_layer}: name fewer, or set --model.n_layer {len(names)}",
        )

    @property
    def layer_positions(self) -> tuple[str, ...]:
        """The names of the position encodings, repeated over the layers."""
        return tuple(self.positions.split(","))

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The names of the attention mechanisms, repeated over the layers."""
        return tuple(usercode.split_names(self.mechanism))

    @property
    def dropout_of_attention(self) -> float:
        """Dropout on attention weights."""
        return self.dropout if self.attention_dropout == -1 else self.attention_dropout


def require_seed(seed: int) -> None:
    """Raise ConfigError for a seed that a random generator would not accept."""
    require(0 <= seed <= LARGEST, f"seed must lie between 0 and {LARGEST}, not {shortened(seed)}")


@dataclass(frozen=True)
class TokenizerConfig:
    """How text becomes token ids."""

    kind: Literal["char", "byte", "bpe", "word"] = setting(
        "bpe", "characters, bytes, byte-pair pieces learned from the corpus, or words"
    )
    min_count: int = setting(3, "words that occur less often in the corpus are unknown", least=1)

    def __post_init__(self) -> None:
        check_bounds(self, "tokenizer.")


@dataclass(frozen=True)
class TaskConfig:
    """What a training example is."""

    name: str = setting("recall", "the objective: see `attnlab corpus show --help`")
    options: dict[str, Any] = setting({}, "options of the task")


Reads = Literal["documents", "sentences", "running text", "questions"]  # documents and sentences: one per line
Tested = Literal["answers", "sentences", "windows"]


@dataclass(frozen=True)
class TaskTraits:
    """What a task declares about itself; stored with every run, so that it is known without the task's code."""

    reads: Reads = "documents"
    tested: Tested = "answers"
    longest: int = 0  # tokens that a sentence is truncated to; 0: those of the block
    padded: bool = False  # whether sentences are padded to `longest`


@dataclass(frozen=True)
class TrainConfig:
    """How the weights are trained."""

    epochs: float = setting(40.0, "passes over the task's examples", above=0)
    steps: int = setting(0, "steps of the run, in place of epochs; 0: as many as the epochs take", least=0)
    tokens_per_batch: int = setting(4096, "tokens per batch, padding included, over all processes", above=0)
    rows_per_batch: int = setting(
        0, "examples per batch, regardless of length; 0: batches by tokens, of similar length", least=0
    )
    optimizer: Literal["muon", "adamw"] = setting("muon", "Muon for matrices with AdamW for the rest, or AdamW alone")
    lr: float = setting(3e-3, "learning rate of AdamW", above=0)
    muon_lr: float = setting(0.02, "learning rate of Muon", above=0)
    beta1: float = setting(0.9, "AdamW's decay of the mean gradient", least=0, below=1)
    beta2: float = setting(0.95, "AdamW's decay of the squared gradient", least=0, below=1)
    weight_decay: float = setting(0.0, "weight decay of matrices", least=0)
    clip: float = setting(1.0, "maximum gradient norm; 0: no clipping", least=0)
    schedule: Literal["linear", "cosine", "sqrt", "inverse_sqrt", "constant"] = setting(
        "linear", "decay: linear or 1-sqrt to zero, cosine to a tenth, 1/sqrt after the warm-up, or none"
    )
    horizon: float = setting(
        0.0, "epochs from the cosine's maximum to its minimum, after which it rises again; 0: the decay", least=0
    )
    warmup: float = setting(0.01, "share of the run in which the rate rises from zero", least=0, most=1)
    decay: float = setting(0.6, "share of the run, at its end, in which the rate falls", least=0, most=1)
    checkpoint_every: int = setting(200, "steps between checkpoints", above=0)
    checkpoint_minutes: float = setting(2.0, "maximum minutes between checkpoints", above=0)
    threads: int = setting(0, "CPU threads per process; 0: chosen by model size", least=0, most=1024)
    order_seed: int = setting(
        -1, "seed of the order and choice of examples; -1: the seed of the run", least=-1, most=LARGEST
    )
    device: str = setting("auto", "device: cpu, cuda, cuda:1, mps, xpu, or auto", "--device")
    precision: Literal["float64", "float32", "bf16", "fp16"] = setting(
        "float32", "float64, float32, or mixed with float32: bf16, fp16", "--precision"
    )
    compile: bool = setting(False, "compile the model with torch.compile", "--compile")
    accumulate: int = setting(1, "parts of a batch that are computed one after the other, to save memory", above=0)
    ema: float = setting(
        0.0, "decay of the average of the weights, such as 0.999, which becomes the model; 0: none", least=0, below=1
    )
    validate_every: int = setting(
        0, "steps between validations; 0: after epochs, as often as costs less than 2 %", least=0
    )
    validate_tokens: int = setting(100_000, "held-out tokens per validation, evenly spread; 0: all", least=0)
    patience: int = setting(0, "validations without improvement before training stops; 0: train to the end", least=0)
    sample_every: int = setting(0, "validations between samples, which are shown and logged; 0: none", least=0)
    log: str = setting("", "log to tensorboard, wandb, trackio, joined by commas", "--log")

    def __post_init__(self) -> None:
        check_bounds(self, "train.")
        require(
            self.schedule != "inverse_sqrt" or self.warmup > 0,
            "train.schedule inverse_sqrt needs a train.warmup above 0: the rate falls from its end on",
        )
        for name in self.loggers:
            require(name in LOGGERS, unknown("train.log", name, LOGGERS))

    @property
    def loggers(self) -> tuple[str, ...]:
        """Where to log beside metrics.jsonl."""
        return tuple(dict.fromkeys(name for part in self.log.split(",") if (name := part.strip())))


@dataclass(frozen=True)
class RunConfig:
    """All settings of one training run."""

    preset: str = setting("small", "the preset that the settings start from")
    seed: int = setting(0, "seed of weights, order and examples")
    model: ModelConfig = field(default_factory=ModelConfig, metadata={"help": "model"})
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig, metadata={"help": "tokenizer"})
    task: TaskConfig = field(default_factory=TaskConfig, metadata={"help": "task"})
    train: TrainConfig = field(default_factory=TrainConfig, metadata={"help": "training"})

    def __post_init__(self) -> None:
        require_seed(self.seed)

    def to_dict(self) -> dict[str, Any]:
        """Return nested tables of plain values, ready for JSON."""
        return asdict(self)

    def flat(self) -> dict[str, Any]:
        """Return all settings by dotted name."""
        return dict(flatten(asdict(self)))


def flatten(values: Settings, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf of nested settings with its dotted name."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def diff(left: RunConfig, right: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which two runs differ, by dotted name."""
    a, b = left.flat(), right.flat()
    return {key: (a.get(key), b.get(key)) for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)}


def merge(base: Settings, over: Settings) -> Settings:
    """Merge `over` into `base`, table by table."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def describe_type(kind: Any) -> str:
    """Describe a type for users."""
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(kind)))
    names = {int: "a whole number", float: "a finite number", str: "text", bool: "true or false"}
    return names.get(kind, "a table")


def from_text(value: Any, kind: Any) -> Any:
    """Parse a command-line text as a value of this type; return anything else unchanged."""
    if not isinstance(value, str) or kind is str:
        return value
    if kind is bool:
        return {"true": True, "false": False}.get(value.lower(), value)
    for number in (int, float):
        try:
            return number(value)
        except ValueError:
            continue
    return value


def convert(value: Any, kind: Any, name: str, where: str) -> Any:
    """Convert `value` to `kind`, or raise an error that names the setting and its source."""
    if is_dataclass(kind) and isinstance(value, Mapping):
        return build(typing.cast(Any, kind), value, name + ".", where)
    with suppress(msgspec.ValidationError):
        converted = msgspec.convert(value, kind)
        largest = sys.float_info.max if kind is float else LARGEST
        if not isinstance(converted, int | float) or abs(converted) <= largest:
            return converted
    raise ConfigError(f"{where}: {name} must be {describe_type(kind)}, not {shortened(value)}")


def shortened(value: Any) -> str:
    """Format a value for a message."""
    if isinstance(value, int) and abs(value) > LARGEST:
        return f"a number of {value.bit_length()} bits"
    return cut(repr(value), 200)


def build(cls: type[Any], values: Settings, prefix: str = "", where: str = "settings") -> Any:
    """Build the dataclass `cls` from plain values; unknown keys are errors."""
    hints = typing.get_type_hints(cls)
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: {prefix.rstrip('.') or 'settings'} must be a table, not {shortened(values)}")
    for key in values:
        if key not in hints:
            raise ConfigError(f"{where}: {unknown('setting', prefix + key, [prefix + name for name in hints])}")
    return cls(**{key: convert(value, hints[key], prefix + key, where) for key, value in values.items()})


def preset_names() -> list[str]:
    """List the built-in presets."""
    folder = resources.files("attnlab") / "presets"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def read_toml(path: Path) -> Settings:
    """Read a settings file."""
    try:
        return tomllib.loads(read_bytes(path).decode())
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such settings file") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): name a TOML file") from None
    except (ValueError, RecursionError) as error:  # also numbers with too many digits and tables nested too deeply
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def load_preset(name: str) -> Settings:
    """Load a preset by name; one that is `like` another holds only the differences."""
    if name not in preset_names():
        raise ConfigError(unknown("preset", name, preset_names()))
    own = tomllib.loads((resources.files("attnlab") / "presets" / f"{name}.toml").read_text(encoding="utf-8"))
    like = own.pop("like", None)
    return merge(load_preset(like), own) if like else own


_SPECIAL = ("finetune", "scratch")  # tables of a preset or file that apply to one stage only


def overlay(base: Settings, over: Settings) -> Settings:
    """Merge `over` into `base`; a different task replaces the options too, since they belong to the task."""
    task, before = over.get("task", {}), base.get("task", {}).get("name")
    if isinstance(task, Mapping) and task.get("name", before) != before:
        base = {key: value for key, value in base.items() if key != "task"}
    return merge(base, over)


def _split_stages(layer: Settings, where: str) -> tuple[Settings, dict[str, Settings]]:
    """Split a layer into the settings for all stages and those for one stage."""
    special = {name: layer.get(name, {}) for name in _SPECIAL}
    for name, table in special.items():
        if not isinstance(table, Mapping) or not table.keys() <= {"task", "train"}:
            raise ConfigError(f"{where}: [{name}] may contain only the tables task and train")
        build(RunConfig, table, where=f"{where} [{name}]")
    common = {key: value for key, value in layer.items() if key not in _SPECIAL}
    build(RunConfig, common, where=where)
    return common, special


def resolve(
    preset: str = "small", stage: Stage = "pretrain", file: Path | None = None, given: Settings | None = None
) -> RunConfig:
    """Resolve the settings of a run: preset, then `file`, then `given`; settings for one stage override general ones.

    Therefore a preset's [finetune.train] overrides a file's [train] when fine-tuning: write [finetune.train] in the file.
    """
    common, special = _split_stages(load_preset(preset), f"preset {preset}")
    if file is not None:
        layer = read_toml(file)
        if "preset" in layer:
            raise ConfigError(f"{file}: choose the preset with --preset, not in the file")
        over, special_over = _split_stages(layer, str(file))
        common = overlay(common, over)
        special = {name: overlay(special[name], special_over[name]) for name in _SPECIAL}
    values = common if stage == "pretrain" else overlay(common, special[stage])
    values = {**overlay(values, given or {}), "preset": preset}
    config: RunConfig = build(RunConfig, values, where="settings given")
    return _renamed(config, usercode.named_by_user)


def restore(folder: Path, stored: Settings, where: str) -> RunConfig:
    """Restore the settings stored in a folder; user code that they name runs only if it is trusted."""
    config: RunConfig = build(RunConfig, stored, where=where)
    return _renamed(config, partial(usercode.stored_in, folder))


def restore_model(folder: Path | None, stored: Settings, prefix: str, where: str) -> ModelConfig:
    """Restore the model settings stored in a folder; user code that they name runs only if it is trusted."""
    config: ModelConfig = build(ModelConfig, stored, prefix, where)
    return replace(config, mechanism=usercode.stored_in(folder, config.mechanism))


def _renamed(config: RunConfig, rename: Callable[[str], str]) -> RunConfig:
    """Rename the mechanism and the task, which may be classes in a user's file."""
    model = replace(config.model, mechanism=rename(config.model.mechanism))
    return replace(config, model=model, task=replace(config.task, name=rename(config.task.name)))


def code_named_in(stored: Any) -> list[str]:
    """List the classes in users' files that a stored plan names, directly or in the settings files it names."""
    if isinstance(stored, list | tuple):
        return [name for value in stored for name in code_named_in(value)]
    if not isinstance(stored, Mapping):
        return []
    names = [name for value in stored.values() for name in code_named_in(value)]
    names += [
        name for key in ("mechanism", "name") for name in usercode.split_names(str(stored.get(key))) if ".py:" in name
    ]
    file = stored.get("config") or stored.get("file")
    return names + (code_named_in(read_toml(Path(file))) if isinstance(file, str) and usercode.is_file(file) else [])


def absolute_names(mechanisms: str) -> str:
    """Make the paths of users' files in mechanism names absolute, so that a saved model finds them from anywhere."""
    return ",".join(str(Path(name).resolve()) if ".py:" in name else name for name in usercode.split_names(mechanisms))


def absolute_given(given: Settings) -> Settings:
    """Make the paths in settings given by hand absolute."""
    model, task = given.get("model", {}), given.get("task", {})
    if "mechanism" in model:
        model = {**model, "mechanism": absolute_names(model["mechanism"])}
    if "name" in task:
        task = {**task, "name": absolute_names(task["name"])}
    return {**given, "model": model, **({"task": task} if task else {})}
