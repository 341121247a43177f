"""Modules whose code runs in another process, while their weights and every judgement about them stay in this one.

    with Remote("attention.py", content, seconds=60, memory=2 * 10**9) as remote:
        entry = remote.entry("MyAttention")      an entry of the registry; what it builds are remote modules

From outside a remote module is like the original: the same weights, arguments, options, gradients, modes and random numbers.
Only tensors and plain values cross the border, so that the code can neither read nor change what measures it. It decides
nothing but its own outputs, their gradients, and the random numbers that follow them.
"""

from __future__ import annotations

import copy
import inspect
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, Self, get_args, get_origin

import msgspec
import torch
from torch import Tensor, nn

from attnlab import registry
from attnlab.errors import AttnlabError, ConfigError, cut
from attnlab.lm.model import arguments_of
from attnlab.measure.audit.subject import dropout_of, set_dropout
from attnlab.mechanisms.conventions import tensor_of
from attnlab.registry import Entry
from attnlab.supervisor import Child, ChildError, Limits, Raised
from attnlab.terminal import printable

_LONGEST = 2**26  # bytes of an answer
_LONGEST_NOTE = 300  # letters
_KINDS = "bool uint8 int32 int64 float16 bfloat16 float32 float64"
_DTYPES: dict[str, torch.dtype] = {kind: getattr(torch, kind) for kind in _KINDS.split()}
_Plain = bool | int | float | str | None


# Messages


class Array(msgspec.Struct, frozen=True, tag=True):
    """A tensor."""

    dtype: str
    shape: tuple[int, ...]
    content: bytes

    @classmethod
    def of(cls, tensor: Tensor) -> Array:
        """Copy a tensor."""
        flat = tensor.detach().contiguous().view(-1)
        dtype, content = str(flat.dtype).removeprefix("torch."), flat.view(torch.uint8).numpy().tobytes()
        return cls(dtype, tuple(tensor.shape), content)

    def tensor(self) -> Tensor:
        """Copy it back, if it is well-formed."""
        dtype = _DTYPES.get(self.dtype)
        if dtype is None or min(self.shape, default=0) < 0 or prod(self.shape) * dtype.itemsize != len(self.content):
            raise ChildError("its answer cannot be read: a tensor is malformed")
        if not self.content:
            return torch.empty(self.shape, dtype=dtype)
        return torch.frombuffer(bytearray(self.content), dtype=dtype).view(self.shape)


class Cache(msgspec.Struct, frozen=True, tag=True):
    """A cache that the other process keeps."""

    number: int


_Value = Array | Cache | _Plain


@dataclass(frozen=True)
class Weight:
    """A parameter; those with the same place are the same."""

    name: str
    place: int
    trainable: bool
    value: Array


@dataclass(frozen=True)
class Built:
    """A module that was built, and the state of the random numbers after it."""

    number: int
    weights: tuple[Weight, ...]
    linear: tuple[str, ...]  # the names of its linear layers, which optimizers treat differently
    takes: tuple[str, ...]  # arguments of its forward
    has_cache: bool
    dropout: float
    convention: str  # what was recognised of the class
    random: bytes


@dataclass(frozen=True)
class Parameter:
    """A parameter of a constructor."""

    name: str
    kind: int
    required: bool
    default: _Plain
    choices: tuple[_Plain, ...]


@dataclass(frozen=True)
class Description:
    """A class as the registry sees it."""

    parameters: tuple[Parameter, ...]
    causal: bool
    defect: str


@dataclass(frozen=True)
class Forward:
    """A call of a module: the weights that have changed, the arguments, and the state of torch that matters."""

    number: int
    weights: dict[int, Array]
    arguments: list[_Value]
    keywords: dict[str, _Value]
    training: bool
    gradients: bool
    inference: bool
    autocast: str
    dropout: float | None
    random: bytes
    released: list[int]  # graphs that are no longer needed


@dataclass(frozen=True)
class Answer:
    """The output of a call, the number of its graph if it has gradients, and the state of the random numbers."""

    output: Array
    graph: int | None
    random: bytes


# In the other process

_modules: list[nn.Module] = []
_weights: dict[int, nn.Parameter] = {}  # by id
_caches: list[Any] = []
_graphs: dict[int, tuple[Tensor, list[Tensor]]] = {}


def _random_state() -> bytes:
    return torch.get_rng_state().numpy().tobytes()


def _set_random_state(state: bytes) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def describe(reference: str, adapted: bool = True) -> Description:
    """Describe the class `path.py:Name`."""
    torch.set_num_threads(1)
    os.environ["XDG_STATE_HOME"] = tempfile.gettempdir()  # so that the file is trusted in this process only
    entry = registry.load_file(reference, "mechanism", adapted)
    if isinstance(entry.build, nn.Module):
        raise ConfigError(f"{reference.rpartition(':')[2]} is a module that was built; name its class")
    try:
        hints = entry.hints()
    except Exception:  # annotations that cannot be read say nothing of options
        hints = {}
    parameters = []
    for name, parameter in inspect.signature(entry.build).parameters.items():
        hint, default = hints.get(name), parameter.default
        choices = (True, False) if hint is bool else get_args(hint) if get_origin(hint) is Literal else ()
        required, plain = default is parameter.empty, default if isinstance(default, _Plain) else None
        parameters.append(Parameter(name, int(parameter.kind), required, plain, choices))
    return Description(tuple(parameters), entry.causal, entry.defect)


def build(reference: str, sizes: list[int], options: dict[str, _Plain], random: bytes, adapted: bool) -> Built:
    """Build a module."""
    _set_random_state(random)
    return keep(registry.load_file(reference, "mechanism", adapted).build(*sizes, **options))


def duplicate(number: int) -> Built:
    """Copy a module with its state."""
    return keep(copy.deepcopy(_modules[number]))


def keep(module: Any) -> Built:
    """Keep a module, and describe it."""
    if not callable(getattr(module, "forward", None)):
        raise TypeError(f"it must build an nn.Module, not {type(module).__name__}")
    _modules.append(module)
    named = list(module.named_parameters(remove_duplicate=False))
    _weights.update({id(parameter): parameter for _, parameter in named})
    return Built(
        number=len(_modules) - 1,
        weights=tuple(Weight(name, id(weight), weight.requires_grad, Array.of(weight)) for name, weight in named),
        linear=tuple(name for name, part in module.named_modules() if isinstance(part, nn.Linear)),
        takes=tuple(arguments_of(module)),
        has_cache=hasattr(module, "new_cache"),
        dropout=dropout_of(module),
        convention=getattr(module, "attnlab_convention", ""),
        random=_random_state(),
    )


def new_cache(number: int) -> int | None:
    """Make a cache of a module; None if it has none after all."""
    _caches.append(_modules[number].new_cache())  # type: ignore[operator]
    return None if _caches[-1] is None else len(_caches) - 1


def forward(call: Forward) -> Answer:
    """Call a module."""
    for number in call.released:
        _graphs.pop(number, None)
    module = _modules[call.number]
    for place, array in call.weights.items():
        value = array.tensor()
        if value.dtype != _weights[place].dtype:
            module.to(value.dtype)
        _weights[place].data = value
    if call.dropout is not None:
        set_dropout(module, call.dropout)
    module.train(call.training)
    arguments = [_restore(value) for value in call.arguments]
    keywords = {name: _restore(value) for name, value in call.keywords.items()}
    inputs = [value for value in (*arguments, *keywords.values()) if isinstance(value, Tensor)]
    for tensor in inputs:
        tensor.requires_grad_(call.gradients and tensor.is_floating_point())
    _set_random_state(call.random)
    mode = torch.inference_mode() if call.inference else torch.set_grad_enabled(call.gradients)
    with mode, torch.autocast("cpu", _DTYPES.get(call.autocast), bool(call.autocast)):
        output = tensor_of(module(*arguments, **keywords))
    random, graph = _random_state(), None
    if output.requires_grad:
        graph = max(_graphs, default=-1) + 1
        _graphs[graph] = (output, [*inputs, *dict.fromkeys(module.parameters())])
    return Answer(Array.of(output), graph, random)


def forward_parts(call: Forward) -> dict[str, Array]:
    """The first output of every part of a module, in the order in which a call computes them."""
    parts = dict[str, Array]()

    def watch(name: str) -> Any:
        def record(_: Any, __: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) and output else output
            if isinstance(first, Tensor):
                parts.setdefault(name, Array.of(first))

        return record

    hooks = [part.register_forward_hook(watch(name)) for name, part in _modules[call.number].named_modules() if name]
    forward(call)
    for hook in hooks:
        hook.remove()
    return parts


def _restore(value: _Value) -> Any:
    return value.tensor() if isinstance(value, Array) else _caches[value.number] if isinstance(value, Cache) else value


def backward(graph: int, gradient: Array) -> list[Array | None]:
    """The gradients of a call with respect to its tensors and weights."""
    output, sources = _graphs[graph]
    wanted = [tensor for tensor in sources if tensor.requires_grad]
    values = iter(torch.autograd.grad(output, wanted, gradient.tensor(), retain_graph=True, allow_unused=True))
    gradients = [next(values) if tensor.requires_grad else None for tensor in sources]
    return [None if value is None else Array.of(value) for value in gradients]


# In this process


class Remote:
    """A process that runs the classes of one file, in a sandbox unless told otherwise.

    The time limit counts all calls, from the first one on. What ended the process early is in `ended`.
    """

    def __init__(self, file: str, content: bytes, seconds: float, memory: int, sandbox: bool = True) -> None:
        self.ended = ""
        self.released: list[int] = []
        self.weights: dict[int, nn.Parameter] = {}
        self.sent: dict[int, tuple[object, ...]] = {}
        self._seconds, self._deadline = seconds, 0.0
        self._memory = None if sandbox else memory
        self._child = Child(imports=[__name__], sandbox=memory if sandbox else 0)
        self._file = self._child.folder / file
        self._file.write_bytes(content)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.end()

    def call(self, function: Any, *arguments: Any) -> Any:
        """Call a function of this module in the process; an error of the code has the name of its class."""
        if self.ended:
            raise ChildError(self.ended)
        left = self._deadline - time.monotonic() if self._deadline else self._seconds
        try:
            limits = Limits(max(left, 0.01), self._memory, message=_LONGEST)
            return self._child.call(function, *arguments, limits=limits)
        except Raised as error:
            kind, _, message = self._without_folder(error).partition(": ")
            raise type(kind, (Exception,), {})(message) from None
        except ChildError as error:
            late = self._deadline and time.monotonic() >= self._deadline
            self.ended = f"it takes more than {self._seconds:g} s" if late else str(error)
            raise
        except AttnlabError as error:
            raise type(error)(self._without_folder(error)) from None
        finally:
            self._deadline = self._deadline or time.monotonic() + self._seconds

    def _without_folder(self, error: AttnlabError) -> str:
        return str(error).replace(f"{self._child.folder}{os.sep}", "")

    def processor_seconds(self) -> float:
        """The processor time that the process has used, as the system counts it; elsewhere than on Linux, wall time."""
        clock = ~self._child.pid << 3 | 2  # as clock_getcpuclockid of the C library computes it
        return time.clock_gettime(clock) if sys.platform == "linux" else time.perf_counter()

    def reference(self, name: str) -> str:
        """The class or function of this name, as the registry finds it in the process."""
        return f"{self._file}:{name}"

    def entry(self, name: str, adapted: bool = True) -> Entry:
        """The class of this name, as an entry of the registry; a module that is no mechanism is not `adapted`."""
        reference = self.reference(name)
        described: Description = self.call(describe, reference, adapted)

        def make(*sizes: int, **options: Any) -> RemoteModule:
            return RemoteModule(self, self.call(build, reference, list(sizes), options, _random_state(), adapted))

        make.__signature__ = inspect.Signature([_parameter(each) for each in described.parameters])  # type: ignore[attr-defined]
        make.__annotations__ = {each.name: Literal[each.choices] for each in described.parameters if each.choices}
        return Entry("mechanism", name, make, causal=described.causal, defect=described.defect)


def _parameter(described: Parameter) -> inspect.Parameter:
    default = inspect.Parameter.empty if described.required else described.default
    return inspect.Parameter(described.name, inspect._ParameterKind(described.kind), default=default)


class RemoteModule(nn.Module):
    """A module of a remote process; its weights are here, and are sent when they have changed."""

    def __init__(self, remote: Remote, built: Built) -> None:
        super().__init__()
        self.remote, self.built, self.dropout, self.changes_dropout = remote, built, built.dropout, False
        self.attnlab_convention = cut(printable(" ".join(built.convention.split())), _LONGEST_NOTE)  # foreign text
        _set_random_state(built.random)
        self.original = self._mirror()
        self.places = {weight.place: remote.weights[weight.place] for weight in built.weights}
        takes = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in built.takes]

        def forward(*arguments: Any, **keywords: Any) -> Tensor:
            return self._forward(arguments, keywords)

        forward.__signature__ = inspect.Signature(takes)  # type: ignore[attr-defined]
        self.forward = forward
        if built.has_cache:
            self.new_cache = self._new_cache

    def _mirror(self) -> nn.Module:
        """The weights in modules of the same names; linear layers are linear layers."""
        parts = {"": nn.Module()}

        def part(path: str) -> nn.Module:
            if path not in parts:
                above, _, name = path.rpartition(".")
                parts[path] = nn.Linear(1, 1, bias=False) if path in self.built.linear else nn.Module()
                part(above).add_module(name, parts[path])
            return parts[path]

        known = self.remote.weights
        for weight in self.built.weights:
            place, _, name = weight.name.rpartition(".")
            if weight.place not in known:
                known[weight.place] = nn.Parameter(weight.value.tensor(), requires_grad=weight.trainable)
            part(place).register_parameter(name, known[weight.place])
        return parts[""]

    def __deepcopy__(self, _: dict[int, object]) -> RemoteModule:
        other = RemoteModule(self.remote, self.remote.call(duplicate, self.built.number))
        for weight, own in zip(other.places.values(), self.places.values(), strict=True):
            weight.data = own.detach().clone()
        other.dropout, other.changes_dropout = self.dropout, self.changes_dropout
        return other.train(self.training)

    def _new_cache(self) -> Cache | None:
        number = self.remote.call(new_cache, self.built.number)
        return None if number is None else Cache(number)

    def _changed(self) -> dict[int, Array]:
        """The weights that the process does not have yet."""
        marks = {place: (weight.data_ptr(), weight._version, weight.dtype) for place, weight in self.places.items()}
        changed = {
            place: Array.of(self.places[place]) for place, mark in marks.items() if self.remote.sent.get(place) != mark
        }
        self.remote.sent.update(marks)
        return changed

    def _forward(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Tensor:
        call, tensors = self._call(arguments, keywords)
        return _Call.apply(self.remote, call, *tensors)  # type: ignore[no-untyped-call]

    def parts(self, *arguments: Any) -> dict[str, Tensor]:
        """The first output of every part, in the order in which a call computes them."""
        parts = self.remote.call(forward_parts, self._call(arguments, {})[0])
        return {name: array.tensor() for name, array in parts.items()}

    def _call(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Forward, list[Tensor]]:
        self.changes_dropout |= self.dropout != self.built.dropout
        values = (*arguments, *keywords.values())
        tensors = [value for value in values if isinstance(value, Tensor)] + list(self.places.values())
        released, self.remote.released = self.remote.released, []
        autocast = str(torch.get_autocast_dtype("cpu")).removeprefix("torch.")
        call = Forward(
            number=self.built.number,
            weights=self._changed(),
            arguments=[_message(value) for value in arguments],
            keywords={name: _message(value) for name, value in keywords.items()},
            training=self.training,
            gradients=torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors),
            inference=torch.is_inference_mode_enabled(),
            autocast=autocast if torch.is_autocast_enabled("cpu") else "",
            dropout=self.dropout if self.changes_dropout else None,
            random=_random_state(),
            released=released,
        )
        return call, tensors


def _message(value: Any) -> _Value:
    return Array.of(value) if isinstance(value, Tensor) else value


class _Graph:
    """The graph of a call, which the other process keeps as long as this exists."""

    def __init__(self, remote: Remote, number: int | None) -> None:
        self.remote, self.number = remote, number

    def __del__(self) -> None:
        if self.number is not None:
            self.remote.released.append(self.number)


class _Call(torch.autograd.Function):
    """A call of a remote module, with its gradients."""

    @staticmethod
    def forward(ctx: Any, remote: Remote, call: Forward, *tensors: Tensor) -> Tensor:
        """The output."""
        answer: Answer = remote.call(forward, call)
        ctx.remote, ctx.graph, ctx.sources = remote, _Graph(remote, answer.graph), len(tensors)
        _set_random_state(answer.random)
        return answer.output.tensor()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """The gradients of all tensors."""
        if ctx.graph.number is None:
            return (None,) * (2 + ctx.sources)
        gradients = ctx.remote.call(backward, ctx.graph.number, Array.of(gradient))
        return None, None, *(None if value is None else value.tensor() for value in gradients)
