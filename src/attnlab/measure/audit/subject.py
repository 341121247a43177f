"""What is audited, seen from outside: tokens go in, and one vector per token comes out.

A subject is a module or function of vectors (an attention mechanism, a stack of blocks) or of token ids (a language model).
Everything works on a copy, in float32 on the CPU and without dropout. Knows nothing of what is measured.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args, get_origin

import torch
from torch import Tensor, nn

from attnlab.errors import ConfigError, UserError
from attnlab.lm.devices import check_precision
from attnlab.lm.model import Packing, arguments_of
from attnlab.mechanisms.conventions import conventions_of, tensor_of
from attnlab.registry import Entry

CONDITIONS = ("repeated tokens", "inference mode", "float64", "autocast")
_DIFFERENT = 4  # tokens of a text in which they are repeated
_DROPOUT = 0.25


class NotTested(Exception):
    """The subject cannot be tested for this; the message says why."""


@dataclass(frozen=True)
class Subject:
    """Something that turns tokens into outputs.

    `width` is that of its input vectors, or the number of symbols if it reads ids. `form` describes how it was built.
    """

    call: Callable[..., Any]
    width: int
    reads_ids: bool = False
    causal: bool = True
    form: str = ""
    dtype: torch.dtype = torch.float32
    condition: str = ""  # one of CONDITIONS
    same_width: bool = False  # whether outputs must be as wide as inputs
    confirmed: set[str] = field(default_factory=set, compare=False)  # leaks that are not rounding: of which tokens

    @property
    def module(self) -> nn.Module | None:
        """The subject, if it has modes and parameters."""
        return self.call if isinstance(self.call, nn.Module) else None

    @cached_property
    def takes(self) -> frozenset[str]:
        """The names of the arguments it takes."""
        # A language model passes padding on to its layers, and declares whether they accept it.
        return arguments_of(self.call) - (frozenset() if getattr(self.call, "takes_padding", True) else {"padding"})

    @cached_property
    def embedding(self) -> nn.Embedding | None:
        """The embedding of ids."""
        modules = () if self.module is None or not self.reads_ids else self.module.modules()
        embeddings = (part for part in modules if isinstance(part, nn.Embedding) and part.num_embeddings == self.width)
        return next(embeddings, None)

    def draw(self, rows: int, tokens: int, norm: float = 1.0, seed: int = 0) -> Tensor:
        """Random tokens, the same for a seed; `norm` is the standard deviation of a coordinate, which ids do not have."""
        generator = torch.Generator().manual_seed(seed)
        if self.reads_ids:
            drawn = torch.randint(self.width, (rows, tokens), generator=generator)
        else:
            drawn = (norm * torch.randn(rows, tokens, self.width, generator=generator)).to(self.dtype)
        repeated = torch.randint(min(_DIFFERENT, tokens), (tokens,), generator=generator)
        return drawn[:, repeated] if self.condition == "repeated tokens" else drawn

    def vectors(self, tokens: Tensor) -> Tensor:
        """The vectors of tokens, for gradients with respect to them."""
        if not self.reads_ids:
            return tokens.detach().clone().requires_grad_()
        if self.embedding is None:
            raise NotTested(f"no nn.Embedding of {self.width} rows, where gradients would end")
        return self.embedding(tokens).detach().clone().requires_grad_()

    def run(
        self,
        tokens: Tensor,
        vectors: Tensor | None = None,
        padding: Tensor | None = None,
        cache: Any = None,
        seed: int = 0,
    ) -> Tensor:
        """The outputs (B T E); `vectors` replace those of the tokens. Random numbers are the same for a seed and a shape."""
        torch.default_generator.manual_seed(seed)
        arguments: dict[str, object] = {} if padding is None else {"padding": padding}
        if cache is not None:
            arguments["caches" if "caches" in self.takes else "cache"] = cache
        if vectors is None or not self.reads_ids:
            out = tensor_of(self.call(tokens if vectors is None else vectors, **arguments))
        else:
            assert self.embedding is not None
            with self.embedding.register_forward_hook(lambda *_: vectors):
                out = tensor_of(self.call(tokens, **arguments))
        wrong_width = self.same_width and out.shape[-1:] != (self.width,)
        if out.ndim != 3 or out.shape[:2] != tokens.shape[:2] or wrong_width:
            width = self.width if self.same_width else "width"
            raise UserError(
                f"the output must have one vector per token, {tokens.shape[0]} x {tokens.shape[1]} x {width},"
                f" and has the shape {tuple(out.shape)}"
            )
        return out.to(self.dtype)

    def run_packed(self, tokens: Tensor, documents: Tensor) -> Tensor:
        """The outputs of rows that hold several documents; a mechanism is called as a language model would."""
        torch.default_generator.manual_seed(0)
        if "documents" in self.takes:
            try:
                return tensor_of(self.call(tokens, documents=documents))
            except ConfigError as error:
                raise NotTested(str(error)) from None
        if self.reads_ids:
            raise NotTested("reads one text per row")
        return Packing.of(documents).attend(lambda rows, _: self.run(rows), tokens)

    def new_cache(self) -> Any:
        """An empty cache, if the subject keeps one."""
        for word, maker in (("cache", "new_cache"), ("caches", "new_caches")):
            if word in self.takes and hasattr(self.module, maker):
                cache = getattr(self.module, maker)()
                if cache is not None:
                    return cache
        raise NotTested("keeps no cache")

    @contextmanager
    def mode(self, training: bool) -> Iterator[None]:
        """train() with gradients, as in training, or eval() without, as in use."""
        if self.module is not None:
            self.module.train(training)
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=self.condition == "autocast")
        with torch.inference_mode(self.condition == "inference mode"), autocast, torch.set_grad_enabled(training):
            yield

    def under(self, condition: str) -> Subject:
        """A copy under one of CONDITIONS, or under none ("")."""
        if condition == "autocast":
            check_precision(torch.device("cpu"), "bf16")
        other = replace(self, call=copy.deepcopy(self.call), condition=condition)
        if condition == "float64" and other.module is not None:
            return replace(other, call=other.module.double(), dtype=torch.float64)
        return other


def own_copy(module: nn.Module, dropout: bool = False) -> nn.Module:
    """A copy to audit: float32, on the CPU, without dropout or with much; the original keeps its state."""
    try:
        module = copy.deepcopy(module).float().cpu()
    except Exception as error:  # whatever a user's module may hold
        raise UserError(
            f"the module cannot be copied ({type(error).__name__}): audit a function instead, lambda x: module(x)"
        ) from None
    set_dropout(module, _DROPOUT if dropout else 0.0)
    return module


def _dropouts(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """The parts of a module that have a rate of dropout, and the names of their attributes."""
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            yield part, "p"
        elif isinstance(getattr(part, "dropout", None), float):
            yield part, "dropout"


def set_dropout(module: nn.Module, rate: float) -> None:
    """Set the rate of all dropout in a module."""
    for part, name in _dropouts(module):
        setattr(part, name, rate)


def dropout_of(module: nn.Module) -> float:
    """The highest rate of dropout in a module."""
    return max((float(getattr(part, name)) for part, name in _dropouts(module)), default=0.0)


def randomize_zero_init(module: nn.Module) -> bool:
    """Initialise parameters that are all zero, in place: a gate that training opens must not hide what is behind it.

    Returns whether there were any.
    """
    asleep = [weight for weight in module.parameters() if weight.requires_grad and weight.numel() and not weight.any()]
    for parameter in asleep:
        nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.5)
    return bool(asleep)


# The forms in which a mechanism is audited: as built, as backbones use it, wide and with dropout, with each option, causal
# and bidirectional.

_Options = dict[str, object]
_BACKBONE: _Options = {"rotary": True, "qk_norm": True, "bias": True}
_DROPPING: _Options = {"dropout": _DROPOUT}
_WIDE = (64, 4)  # n_embd and n_head


def _alternatives(entry: Entry) -> Iterator[_Options]:
    """Every option with a choice of values, at each value that is not its default."""
    try:
        hints = entry.hints()
    except Exception:  # annotations that cannot be read say nothing of options
        return
    for name, parameter in entry.options.items():
        kind = hints.get(name)
        values = get_args(kind) if get_origin(kind) is Literal else (True, False) if kind is bool else ()
        yield from ({name: value} for value in values if value != parameter.default)


def all_forms(entry: Entry, sizes: tuple[int, int, int]) -> tuple[list[Subject], list[str]]:
    """All forms of a mechanism, and notes on those that cannot be built; no zeros are left in all but the first.

    `sizes` are n_embd, n_head and the length, which becomes the block size.
    """
    for name, size in zip(("n_embd", "n_head", "length"), sizes, strict=True):
        if size < 1:
            raise ConfigError(f"{name} must be at least 1, not {size}")
    if sizes[0] % (2 * sizes[1]):
        raise ConfigError(f"n_embd ({sizes[0]}) must be an even multiple of n_head ({sizes[1]})")
    changed: list[tuple[_Options, _Options]] = [({}, options) for options in _alternatives(entry)]
    one_way = [({}, {}), (_BACKBONE, {}), (_DROPPING, {}), *changed] if entry.causal else []
    both_ways = [({}, {}), *changed] if entry.accepts("causal") or not entry.causal else []
    asked = [*((True, *form) for form in one_way), *((False, *form) for form in both_ways)]
    subjects, notes = [], []
    for seed, (causal, shared, options) in enumerate(asked):
        form_sizes = _wider(entry, sizes) if shared is _DROPPING else sizes
        words = [name if value is True else f"{name}={value}" for name, value in {**shared, **options}.items()]
        words += [] if form_sizes == sizes else [f"n_embd={form_sizes[0]} n_head={form_sizes[1]}"]
        form = " ".join(["causal" if causal else "bidirectional", *words])
        torch.manual_seed(seed)
        try:
            built = entry.make(form_sizes, options, **{"causal": causal, "dropout": 0.0, **shared})
        except ConfigError as error:
            if seed == 0:
                raise
            notes.append(f"not audited as {form}: {error}")
            continue
        notes += conventions_of(built) if seed == 0 else []
        module = own_copy(built, dropout=shared is _DROPPING)
        if seed:
            randomize_zero_init(module)
        subjects.append(Subject(module, form_sizes[0], causal=causal, form=form, same_width=True))
    return subjects, notes


def _wider(entry: Entry, sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    """A larger width and more heads, or the same sizes if they are large or it runs at no others."""
    wide = (*_WIDE, sizes[2])
    with suppress(Exception):  # whatever a user's class may raise
        Subject(entry.make(wide, causal=True), wide[0]).run(torch.zeros(1, wide[2], wide[0]))
        return max(sizes, wide)
    return sizes
