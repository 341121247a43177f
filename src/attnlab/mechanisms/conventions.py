"""Attention classes as courses and other libraries write them: how they are built and called follows from their signatures.

    adapt(CausalSelfAttention)     a subclass that is built as Mechanism(n_embd, n_head, block_size) and called as forward(x)

Sizes are recognised by the names of parameters and of the fields of a `config`. Which mask a class needs is found by calling
a copy of it on a short text: the first under which no output depends on later tokens, or else the one with the smallest leak,
which the audit then finds. Classes that keep the contract of attnlab.mechanisms are left as they are.
"""

from __future__ import annotations

import dis
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, Signature
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.errors import ConfigError, UserError, one_line
from attnlab.mechanisms.heads import Attention
from attnlab.terminal import line_of_user

# The names of sizes and settings in constructors and configs, by what they mean.
_NAMES = {
    "n_embd": "n_embd n_embed embed_dim embed_size embedding_dim emb_dim emb_size d_model dim model_dim hidden_size input_dim"
    " d_in d_out",
    "n_head": "n_head n_heads num_head num_heads nhead heads h num_attention_heads",
    "n_kv_head": "n_kv_head n_kv_heads num_kv_heads num_key_value_heads",  # of the class, if they fit
    "head_width": "head_dim head_size dim_head d_head d_k d_v",
    "block_size": "block_size context_length context_size n_ctx n_positions max_len max_length max_seq_len max_seq_length"
    " max_position_embeddings seq_len seq_length sequence_length length",
    "dropout": "dropout dropout_rate dropout_prob dropout_p drop_rate pdrop attn_pdrop resid_pdrop embd_pdrop attn_dropout"
    " resid_dropout attention_dropout attention_probs_dropout_prob hidden_dropout_prob",
    "bias": "bias use_bias qkv_bias attn_bias attention_bias",
    "causal": "causal is_causal is_decoder",
    "theta": "theta rope_theta rope_base rotary_base",
}
_FIXED: dict[str, Any] = {
    **dict.fromkeys(("n_layer", "n_layers", "num_layers", "num_hidden_layers"), 1),
    "layer_idx": 0,
    "layer_id": 0,
    "vocab_size": 256,
    "batch_first": True,
    "theta": 10000.0,
}
_MEANINGS = {name: meaning for meaning, names in _NAMES.items() for name in names.split()} | {
    name: name for name in _FIXED
}
_SIZES = ("n_embd", "n_head", "block_size")
_SHOWN = (*_SIZES, "n_kv_head", "head_width", "causal", "theta")
_OWN = ("n_kv_head", "theta")  # of the class, where it has a default
_SHARED: dict[str, Any] = {"dropout": 0.0, "bias": False, "causal": True}  # what the backbone may set
_CONFIG = re.compile(r"(\w+_)?(config|configuration|conf|cfg|args|hparams|params|opts?|settings)")
_SAME_INPUT = frozenset({"q", "k", "v", "query", "key", "value", "queries", "keys", "values"})
_PLACES = frozenset({"token_positions", "position_ids", "positions", "pos_ids", "input_pos"})
_COUNTED = "torch.arange(x.shape[1])"

# Masks, from what is visible (T T); they get up to two dimensions of 1 in front.
_MASKS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "True where visible": lambda seen, _: seen,
    "1 where visible, 0 where hidden": lambda seen, x: seen.to(x),
    "True where hidden": lambda seen, _: ~seen,
    "0 where visible, -inf where hidden": lambda seen, x: x.new_zeros(seen.shape).masked_fill(~seen, -torch.inf),
}
_ROUNDING = 1e-4  # of the range of outputs


def tensor_of(answer: Any) -> Tensor:
    """The outputs in what a module returns: the tensor, the first of several, or the attribute that libraries use."""
    if isinstance(answer, tuple | list):
        answer = next((part for part in answer if isinstance(part, Tensor)), answer)
    for name in ("logits", "last_hidden_state"):
        answer = getattr(answer, name, answer)
    if not isinstance(answer, Tensor):
        raise UserError(f"the output must be a tensor, and is {type(answer).__name__}")
    return answer


def conventions_of(module: nn.Module) -> list[str]:
    """What was recognised of the classes in a module, each once."""
    notes = (getattr(part, "attnlab_convention", "") for part in module.modules())
    return [*dict.fromkeys(note for note in notes if note and isinstance(note, str))]


class _Unrecognised(AttributeError, KeyError):
    """A field of a config that is not recognised."""

    def __str__(self) -> str:
        return str(self.args[0])


class Config:
    """The `config` of a class: usual names have the values of the model, others those of config classes in its file."""

    def __init__(self, values: Mapping[str, Any], classes: Sequence[type]) -> None:
        self._values, self._classes = values, classes
        self._used, self._defaults = list[str](), dict[str, Any]()

    def __getitem__(self, name: str) -> Any:
        meaning = _MEANINGS.get(name)
        for cls in self._classes if meaning is None or meaning in _OWN else ():
            value = _default_of(cls, name)
            if hasattr(value, "__get__"):  # a property
                return value.__get__(self)
            if value is not MISSING and (meaning != "n_kv_head" or _fits(value, self._values)):
                self._defaults[name] = value
                return value
        if meaning is None:
            raise _Unrecognised(name)
        self._used.append(name)
        return self._values[meaning]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # also of a copy that has no fields yet
            raise AttributeError(name)
        return self[name]

    def get(self, name: str, default: Any = None) -> Any:
        """A field, as of a dictionary."""
        return getattr(self, name, default)


def _default_of(cls: type, name: str) -> Any:
    """The default of a field, or MISSING; dataclasses with slots keep it apart."""
    for each in fields(cls) if is_dataclass(cls) else ():
        if each.name == name:
            return each.default if each.default_factory is MISSING else each.default_factory()
    return inspect.getattr_static(cls, name, MISSING)


def _fits(heads: Any, values: Mapping[str, Any]) -> bool:
    """Whether so many heads of keys can serve the heads of the model."""
    return isinstance(heads, int) and heads > 0 and values["n_head"] % heads == 0


def _named(call: Callable[..., Any]) -> list[Parameter]:
    """The parameters that have names."""
    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return [each for each in inspect.signature(call).parameters.values() if each.kind not in variable]


class _Convention:
    """How a class is built and called; `says` describes it once `settle` has called it."""

    def __init__(self, cls: type[nn.Module]) -> None:
        self.cls, self.native = cls, _is_native(cls)
        self.says: str | None = None
        self.keywords = {each.name: _MEANINGS[each.name] for each in _named(cls) if each.name in _MEANINGS}
        self.required = [each.name for each in _named(cls) if each.default is each.empty and not self.native]
        unknown = [name for name in self.required if name not in self.keywords]
        self.config = next(filter(_CONFIG.fullmatch, unknown), "")
        unknown = [name for name in unknown if name != self.config]
        if not (self.native or self.config or {"n_embd", "head_width"} & {*self.keywords.values()}):
            unknown = unknown or ["the width"]
        self.form: tuple[str, int] | None = None  # the kind of mask, and its dimensions of 1
        self.forms: list[tuple[str, int] | None] = [None]
        self.mask, self.arguments = "", dict[str, str]()  # of forward
        self.fields = list[str]()  # of the config, that the constructor has read
        for each in _named(cls.forward)[2:]:
            required = each.default is each.empty
            if each.name in ("causal", "is_causal"):
                self.arguments[each.name] = "True"
            elif "mask" in each.name and "pad" not in each.name and not self.mask:
                self.mask, self.forms = each.name, [None, *product(_MASKS, range(3))][required:]
            elif required:
                value = "x" if each.name.lower() in _SAME_INPUT else "..."
                self.arguments[each.name] = _COUNTED if each.name in _PLACES else value
        if missing := unknown + [name for name, value in self.arguments.items() if value == "..."]:
            raise self.error(f"{', '.join(missing)} cannot be recognised by name")

    def build(self, module: nn.Module, sizes: Sequence[int], shared: Mapping[str, Any]) -> str:
        """Run the constructor of the class on a module; the arguments that were recognised, in words."""
        if self.native:
            self.cls.__init__(module, *sizes, **shared)
            return ""
        named = dict(zip((*_SIZES, "head_width"), (*sizes, sizes[0] // sizes[1]), strict=True))
        values = {**_SHARED, **_FIXED, **named, "n_kv_head": sizes[1], **shared}
        kept = {"dropout", "bias", "theta"} - shared.keys()  # the defaults of the class
        arguments, parts = dict[str, Any](), list[str]()
        for each in _named(self.cls):
            what = self.keywords.get(each.name)
            own = what in kept or (what == "n_kv_head" and _fits(each.default, values))
            if what and (not own or each.name in self.required):
                arguments[each.name] = values[what]
            if what in _SHOWN:
                parts.append(f"{each.name}={what if what in _SIZES else arguments.get(each.name, each.default)}")
        names = getattr(self.cls.__init__, "__globals__", {})
        classes = [each for name, each in names.items() if inspect.isclass(each) and name.endswith(("Config", "Args"))]
        hint = inspect.signature(self.cls).parameters[self.config].annotation if self.config else None
        classes.sort(key=lambda each: each is not hint and each.__name__ != hint)
        config = Config(values, classes)
        self.fields = config._used
        try:
            self.cls.__init__(module, **arguments, **({self.config: config} if self.config else {}))
        except _Unrecognised as error:
            defaults = {name: repr(value) for name, value in config._defaults.items()}
            reason = f"{self.config}.{error} cannot be recognised by name"
            raise self.error(reason, {**defaults, str(error): "..."}) from error
        if self.config:
            plain = {name: value for name, value in config._defaults.items() if isinstance(value, int | float | str)}
            fields_read = [*config._used, *(f"{name}={value}" for name, value in plain.items())]
            parts.insert(0, f"{self.config} ({', '.join(dict.fromkeys(fields_read))})")
        return ", ".join(parts)

    def call(self, module: nn.Module, x: Tensor) -> Any:
        """Call the forward of the class."""
        known = {"x": x, "True": True, _COUNTED: torch.arange(x.shape[1], device=x.device)}
        arguments: dict[str, Any] = {name: known[value] for name, value in self.arguments.items()}
        if self.form is not None:
            kind, ones = self.form
            seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
            arguments[self.mask] = _MASKS[kind](seen, x)[(None,) * ones]
        return self.cls.forward(module, x, **arguments)

    def settle(self, sizes: Sequence[int], shared: Mapping[str, Any]) -> None:
        """Choose the mask with a copy, on a short text, and describe the convention; random numbers are not affected."""
        with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
            torch.manual_seed(0)
            module = self.cls.__new__(self.cls)
            built = self.build(module, sizes, shared)
            for weight in module.eval().parameters():
                if not weight.any():  # a gate that training opens must not hide what is behind it
                    nn.init.normal_(weight)
            tokens = min(7 if sizes[1] != 7 else 6, sizes[2])  # not the heads, so that a mask does not fit by chance
            notes = self._choose(module, torch.randn(2, tokens, sizes[0]))
        call = self._call(self.mask if self.form else "")
        parts = [f"built from {built}"] * bool(built) + [f"called as {call}"] * (call != "forward(x)")
        parts += [f"the mask is {self.form[0]}, [{'1, ' * self.form[1]}T, T]"] if self.form else []
        self.says = f"{self.cls.__name__}: {'; '.join(parts + notes)}" if parts + notes else ""

    def _choose(self, module: nn.Module, x: Tensor) -> list[str]:
        """Choose the mask under which early outputs move least when later tokens change; what else is to be said."""
        leaks, failures, several, kept = dict[Any, float](), list[Exception](), False, max(1, x.shape[1] // 2)
        changed = torch.cat([x[:, :kept], x.flip(0)[:, kept:]], 1)
        for form in self.forms:
            self.form = form
            try:
                answers = [self.call(module, text) for text in (x, changed)]
                y, moved = map(tensor_of, answers)
                if y.shape != x.shape:
                    shapes = f"{list(x.shape)} to a tensor of shape {list(y.shape)}"
                    raise UserError(f"forward turns vectors of shape {shapes}: return a tensor shaped like x")
                leak = (y - moved)[:, :kept].abs().max() / y.abs().max().clamp_min(1e-30)
            except Exception as error:  # whatever a user's class may raise
                failures.append(error)
                continue
            leaks[form], several = leak.nan_to_num(torch.inf).item(), not isinstance(answers[0], Tensor)
            if leak <= _ROUNDING:
                break
        if not leaks and (self.mask or not self.native):
            raise self._failure(module, x, failures[0]) from failures[0]
        self.form = min(leaks, key=lambda form: leaks[form], default=None)
        notes = ["its output is the first tensor of several"] * several
        if leaks.get(self.form, 0.0) > _ROUNDING:
            self.form = None if None in leaks else self.form
            notes.append("its outputs depend on later tokens" + " under every mask" * (len(self.forms) > 1))
        if leaks:
            both, alone = tensor_of(self.call(module, x)), tensor_of(self.call(module, x[:1]))
            if (both[:1] - alone).abs().max() > _ROUNDING * both.abs().max():
                notes.append("its outputs depend on the other texts of a batch: does it read [T, B, D]?")
        return notes

    def _failure(self, module: nn.Module, x: Tensor, error: Exception) -> ConfigError:
        """The error for a forward that fails with every mask."""
        name, place = self.cls.__name__, line_of_user(error)
        with suppress(Exception):  # whatever a user's class may raise
            tensor_of(self.call(module, x.argmax(-1)))
            return ConfigError(
                f"{name} reads token ids, so it is a whole model: name its attention class instead, or audit it in Python:"
                f" attnlab.audit_module({name}(...), vocab_size=...)"
            )
        reason = str(error) if isinstance(error, UserError) else f"forward raises {one_line(error)}"
        reason += f" ({place})" if place else ""
        return self.error(reason) if self.mask else ConfigError(f"{name} cannot be called as forward(x): {reason}")

    def _call(self, mask: str) -> str:
        arguments = [f"{name}={value}" for name, value in self.arguments.items()]
        return f"forward({', '.join(['x', *arguments, *filter(None, [mask])])})"

    def error(self, reason: str, fields_read: Mapping[str, str] = {}) -> ConfigError:
        """An error with the lines of an adapter, in which dots stand for what was not recognised."""
        name, sizes = self.cls.__name__, {size: size for size in _SIZES}
        values = {**_SHARED, **_FIXED, **sizes, "head_width": "n_embd // n_head", "n_kv_head": "n_head"}
        arguments = {
            each: values[what] for each, what in self.keywords.items() if what in _SIZES or each in self.required
        }
        arguments |= {each: "..." for each in self.required if each not in arguments}
        if self.config:
            steps = [step for at, step in pairwise(dis.get_instructions(self.cls.__init__)) if at.argval == self.config]
            names = (*(step.argval for step in steps), *self.fields)
            known = {each: values[_MEANINGS[each]] for each in names if each in _MEANINGS}
            held = ", ".join(f"{each}={value}" for each, value in {**(known or sizes), **fields_read}.items())
            indexed = any(step.opname == "LOAD_CONST" for step in steps)  # config["n_embd"]
            arguments[self.config] = f"{'dict' if indexed else 'types.SimpleNamespace'}({held})"
        inner = ", ".join(_SIZES if self.native else (f"{each}={value}" for each, value in arguments.items())) or "..."
        call = self._call(f"{self.mask}=..." if self.mask else "")
        error = ConfigError(
            f"{name} cannot be built as Mechanism(n_embd, n_head, block_size) and called as forward(x): {reason};"
            f" add this adapter to the file, with a value for each ..., and name {name}Adapter instead"
        )
        imports = [each for each in ("torch", "types") if f"{each}." in f"{inner} {call}"]
        error.add_note(f"""{"".join(f"import {each}{chr(10)}" for each in imports)}
class {name}Adapter({name}):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__({inner})

    def forward(self, x):
        return super().{call}""")
        return error


def _is_native(cls: type[nn.Module]) -> bool:
    """Whether a constructor takes (n_embd, n_head, block_size), by these meanings or under unknown names."""
    try:
        inspect.signature(cls).bind(*_SIZES)
    except TypeError:
        return False
    first = [each for each in _named(cls) if each.kind is not each.KEYWORD_ONLY][: len(_SIZES)]
    foreign = any(each.name in _MEANINGS.keys() - {*_SIZES} for each in first)  # then unknown names mean anything
    pairs = zip(first, _SIZES, strict=False)
    return all(_MEANINGS.get(p.name, "" if foreign or p.default is not p.empty else size) == size for p, size in pairs)


@functools.cache
def adapt(cls: type[Any]) -> type[Any]:
    """The class itself if it keeps the contract, else a subclass that does; what is not recognised is an error."""
    if not issubclass(cls, nn.Module):
        raise ConfigError(f"{cls.__name__} is not an nn.Module: let it inherit from torch.nn.Module")
    if cls.forward is nn.Module.forward:
        raise ConfigError(f"{cls.__name__} has no forward(x): write one that returns a tensor shaped like x")
    names = [each.name for each in _named(cls.forward)]
    contract = "padding" in names or ("cache" in names and hasattr(cls, "new_cache"))
    if len(names) < 2 or contract or issubclass(cls, Attention):
        return cls
    convention = _Convention(cls)

    class Adapted(cls):
        def __init__(self, *sizes: int, **shared: Any) -> None:
            if convention.says is None:
                convention.settle(sizes, shared)
            convention.build(self, sizes, shared)

        def forward(self, x: Tensor) -> Tensor:
            return tensor_of(convention.call(self, x))

        @property
        def attnlab_convention(self) -> str:
            return convention.says or ""

    functools.update_wrapper(Adapted.__init__, cls.__init__)
    functools.update_wrapper(Adapted, cls, updated=())
    if not convention.native:
        meanings = {*convention.keywords.values(), *(("dropout", "bias") if convention.config else ())}
        # Causal by every call.
        meanings -= {"causal"} if convention.mask or "True" in convention.arguments.values() else set()
        sizes = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in _SIZES]
        shared = [Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in _SHARED if name in meanings]
        Adapted.__signature__ = Signature([*sizes, *shared])
    return Adapted
