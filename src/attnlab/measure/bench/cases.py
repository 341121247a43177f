"""What is timed: attention on given queries, keys and values where a mechanism allows it, else a whole module.

Attention itself is what torch's `scaled_dot_product_attention` does: queries, keys and values are given, the averages and
the gradients of all three (and of what else the mechanism learns there) are computed. Mechanisms built on `Attention` are
timed this way, and a ratio to SDPA is fair; so are those built on `Recurrent`, which are given their gates too. A mechanism
with a `forward` of its own, or a user's module, is timed whole, from residual stream to residual stream with its projections,
and its baseline is a whole `dot`.

All cases of a length get the same tensors, laid out as in a model: tokens before heads.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnlab import ops, registry
from attnlab.errors import AttnlabWarning, ConfigError, UserError
from attnlab.inside.taps import Tap
from attnlab.measure.bench import NAIVE, SDPA
from attnlab.mechanisms.conventions import conventions_of
from attnlab.mechanisms.heads import Attention
from attnlab.mechanisms.recurrent import Gates, Recurrent

Path = Literal["fast", "reference"]
Step = Callable[[], object]

LEAST_TOKENS = 16  # enough to build a module and see what it is


@dataclass(frozen=True)
class Case:
    """One thing to time at one length; plain values, so that another process can build it."""

    name: str
    path: Path = "fast"
    whole: bool = False
    tokens: int = LEAST_TOKENS
    batch: int = 1
    n_head: int = 8
    n_embd: int = 256
    causal: bool = True

    def at(self, tokens: int) -> Case:
        """The same case at another length."""
        return replace(self, tokens=tokens)

    def checked(self) -> Case:
        """The case, or an error if its sizes are impossible."""
        for name in ("batch", "n_head", "n_embd"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} must be at least 1, not {getattr(self, name)}")
        if self.n_embd % self.n_head:
            raise UserError(f"--n_embd must be a multiple of the {self.n_head} heads, not {self.n_embd}")
        return self

    @property
    def label(self) -> str:
        """The name in tables."""
        return self.name + (", whole module" if self.whole else "") + (", reference" if self.path != "fast" else "")

    @property
    def baseline(self) -> Case:
        """The case that this one is compared with."""
        return replace(self, name="dot" if self.whole else SDPA, path="fast")


class Inputs:
    """Tensors by role and shape, made once and shared; gradients are returned, never stored in them."""

    def __init__(self, seed: int = 0) -> None:
        self._tensors: dict[tuple[object, ...], Tensor] = {}
        self._generator = torch.Generator().manual_seed(seed)

    def get(self, role: str, *shape: int) -> Tensor:
        """The tensor of a role ("gradient" is what comes back from the layers above).

        One by head (batch, heads, tokens, width) is laid out as projections leave it, tokens before heads.
        """
        key = (role, *shape)
        if key not in self._tensors:
            if len(shape) == 4:
                batch, heads, tokens, width = shape
                tensor = torch.randn(batch, tokens, heads, width, generator=self._generator).transpose(1, 2)
            else:
                tensor = torch.randn(*shape, generator=self._generator)
            self._tensors[key] = tensor.requires_grad_(role != "gradient")
        return self._tensors[key]


@dataclass(frozen=True)
class Work:
    """A function with its arguments, the gradient that comes back, and the parameters that it learns."""

    call: Callable[..., Tensor]
    arguments: tuple[Tensor, ...]
    gradient: Tensor
    learned: tuple[Tensor, ...] = ()


# Implementations from other libraries, by name.
EXTERNAL: dict[str, Callable[[Case, Inputs], Work]] = {}


def split_options(name: str) -> tuple[str, dict[str, str]]:
    """Parse `sliding:window=128,...` into a name and its options."""
    stem, colon, last = name.rpartition(":")
    if not colon or "=" not in last:
        return name, {}
    pairs = [pair.partition("=") for pair in last.split(",")]
    return stem, {key.strip(): value.strip() for key, _, value in pairs}


def build(case: Case) -> nn.Module:
    """The module of a case, made for its length."""
    name, options = split_options(case.name)
    entry = registry.find("mechanism", name)
    if case.causal and not entry.causal:
        raise ConfigError(f"{entry.name} cannot be causal: use --bidirectional")
    torch.manual_seed(0)
    module: nn.Module = entry.make((case.n_embd, case.n_head, case.tokens), options, causal=case.causal)
    return module.train()


def _takes_queries(module: nn.Module) -> bool:
    """Whether queries, keys and values can be given to it."""
    return any(isinstance(module, base) and type(module).forward is base.forward for base in (Attention, Recurrent))


def _has_two_paths(module: nn.Module) -> bool:
    """Whether it has a fast path as well as the reference."""
    if isinstance(module, Attention) and _takes_queries(module):
        return type(module).fast is not Attention.fast or type(module).dispatch is not Attention.dispatch
    return isinstance(getattr(module, "hook_pattern", None), Tap)


def choose_cases(names: Sequence[str], like: Case, references: bool = True) -> tuple[list[Case], dict[str, str]]:
    """The cases to run with the sizes of `like`, baselines first; and the mechanisms that cannot run, with reasons."""
    chosen = list(dict.fromkeys(names)) or registry.names("mechanism")
    cases: list[Case] = []
    refused: dict[str, str] = {}
    for name in chosen:
        case = replace(like, name=name)
        try:
            module = build(case)
        except UserError as error:
            if name in names:  # one that was asked for by name must run
                raise
            refused[name] = str(error)
            continue
        for convention in conventions_of(module):
            warnings.warn(convention, AttnlabWarning, stacklevel=2)
        case = replace(case, whole=like.whole or not _takes_queries(module))
        cases.append(case)
        if references and _has_two_paths(module):
            cases.append(replace(case, path="reference"))
    cores = [replace(like, name=name) for name in (SDPA, NAIVE)] if not all(case.whole for case in cases) else []
    wholes = [case.baseline for case in cases if case.whole][:1]
    return list(dict.fromkeys(cores + wholes + cases)), refused


def forms_pattern(case: Case) -> bool:
    """Whether every pair of tokens has a weight in memory."""
    if case.name in (SDPA, NAIVE) or case.name in EXTERNAL:
        return case.name == NAIVE
    return case.path == "reference" or (not case.whole and not _has_two_paths(build(case.at(LEAST_TOKENS))))


# Steps


def work_of(case: Case, inputs: Inputs) -> Work:
    """The work of a case."""
    if case.name in EXTERNAL:
        return EXTERNAL[case.name](case, inputs)
    return _whole_module(case, inputs) if case.whole else _core(case, inputs)


def prepare(case: Case, inputs: Inputs | None = None) -> Step:
    """The step that is timed, forward + backward, which can be run repeatedly."""
    work = work_of(case, inputs or Inputs())

    def step() -> object:
        return torch.autograd.grad(
            work.call(*work.arguments), work.arguments + work.learned, work.gradient, allow_unused=True
        )

    return step


def on_stream(case: Case, inputs: Inputs, module: nn.Module) -> Work:
    """Work from residual stream to residual stream."""
    shape = (case.batch, case.tokens, case.n_embd)
    learned = tuple(parameter for parameter in module.parameters() if parameter.requires_grad)
    return Work(module, (inputs.get("x", *shape),), inputs.get("gradient", *shape), learned)


def on_heads(
    case: Case,
    inputs: Inputs,
    call: Callable[[Tensor, Tensor, Tensor], Tensor],
    shapes: Sequence[tuple[int, int]] = (),
    learned: Sequence[Tensor] = (),
) -> Work:
    """Work on queries, keys and values; `shapes` are heads and width of each, where they differ from those of the case."""
    shapes = shapes or [(case.n_head, case.n_embd // case.n_head)] * 3
    tensors = tuple(
        inputs.get(role, case.batch, heads, case.tokens, width)
        for role, (heads, width) in zip("qkv", shapes, strict=True)
    )
    with torch.no_grad():
        width = call(*(tensor[:, :, :1] for tensor in tensors)).shape[-1]
    gradient = inputs.get("gradient", case.batch, case.n_head, case.tokens, width)
    return Work(call, tensors, gradient, tuple(learned))


def _whole_module(case: Case, inputs: Inputs) -> Work:
    module = build(case)
    if case.path == "reference":
        tap = getattr(module, "hook_pattern", None)
        assert isinstance(tap, Tap), case
        tap.register_forward_hook(lambda *_: None)  # a module whose pattern is watched takes its reference path
    return on_stream(case, inputs, module)


def _core(case: Case, inputs: Inputs) -> Work:
    if case.name == SDPA:
        return on_heads(case, inputs, partial(F.scaled_dot_product_attention, is_causal=case.causal))
    if case.name == NAIVE:
        return on_heads(case, inputs, partial(_naive, causal=case.causal))
    module = build(case)
    if isinstance(module, Recurrent):
        return _recurrence(case, inputs, module)
    assert isinstance(module, Attention)
    with torch.no_grad():
        shapes = [(part.shape[1], part.shape[3]) for part in module.project(torch.zeros(1, 1, case.n_embd), 0)]
    outside = {id(parameter) for part in (module.heads, module.out) for parameter in part.parameters()}
    learned = [
        parameter for parameter in module.parameters() if id(parameter) not in outside and parameter.requires_grad
    ]
    average = module.dispatch if case.path == "fast" else module.reference
    return on_heads(case, inputs, partial(average, padding=None), shapes, learned)


def _recurrence(case: Case, inputs: Inputs, module: Recurrent) -> Work:
    """What heads read from their states, given the queries, keys, values and gates that the module makes of some text."""
    with torch.no_grad():
        x = inputs.get("x", case.batch, case.tokens, case.n_embd)
        q, k, v = module.project(x, None, None)
        gates = module.gates(x)
    given = {name: gate for name, gate in gates._asdict().items() if gate is not None}
    arguments = tuple(part.detach().requires_grad_() for part in (q, k, v, *given.values()))
    if case.path == "reference":
        module.hook_pattern.register_forward_hook(lambda *_: None)

    def attend(q: Tensor, k: Tensor, v: Tensor, *gates: Tensor) -> Tensor:
        return module.attend(q, k, v, Gates(**dict(zip(given, gates, strict=True))), None, None)

    gradient = inputs.get("gradient", case.batch, v.shape[2], case.tokens, v.shape[3])
    return Work(attend, arguments, gradient)


def _naive(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Attention as papers define it, with every weight in memory."""
    return ops.attention_pattern(q, k, ops.visible(q.shape[2], k.shape[2], None, causal)) @ v
