"""Compare a module or function that students hand in with a reference of the same weights and inputs.

Students' code and the reference run in sandboxed processes of their own (attnlab.measure.remote). Only tensors cross the
border; they are drawn and compared here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeVar

import msgspec
import torch
from torch import Tensor, nn

from attnlab import registry
from attnlab.config import ModelConfig
from attnlab.course.assignment import template
from attnlab.errors import UserError, unknown
from attnlab.lm.model import LanguageModel
from attnlab.measure import remote
from attnlab.measure.remote import Remote, RemoteModule
from attnlab.supervisor import ChildError

_Size = Annotated[int, msgspec.Meta(ge=1)]
_Positive = Annotated[float, msgspec.Meta(gt=0)]
_SIZES = {"n_embd": 32, "n_head": 4, "n_layer": 2, "block_size": 16, "vocab_size": 50}
_GPT = {"positions": "learned", "norm": "layer", "qk_norm": False, "activation": "gelu", "bias": True}
_ARGUMENTS: dict[str, tuple[str, ...]] = {  # of the constructors of parts for which attnlab has a reference
    "mlp": ("n_embd",),
    "attention": ("n_embd", "n_head", "block_size"),
    "block": ("n_embd", "n_head", "block_size"),
    "model": ("vocab_size", "block_size", "n_layer", "n_head", "n_embd"),
    "loss": (),
    "generate": (),
}
_OF_TEACHERS = ("class", "function")
_FUNCTIONS = ("loss", "generate", "function")
_SHOWN = 4  # names in a message
_T = TypeVar("_T")


class Random(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A random tensor among the inputs: normal, or whole numbers if they are `below` a limit."""

    shape: list[_Size]
    below: _Size | None = None


class Job(msgspec.Struct, frozen=True):
    """What students' modules are compared with, and how both are built and called."""

    module: str
    reference: str = ""  # a class or function in a file
    sizes: dict[str, bool | int | float | str] = {}
    names: dict[str, str] = {}  # of students' parameters, where they are not those of the reference
    inputs: list[Random | int | float] = []
    tolerance: _Positive = 1e-5
    seconds: _Positive = 60.0
    memory: _Positive = 2.0  # GB

    def __post_init__(self) -> None:
        """Raise an error for settings that do not fit each other."""
        known = {*_SIZES, *(field.name for field in fields(ModelConfig))}
        if self.module not in (*_ARGUMENTS, *_OF_TEACHERS):
            raise UserError(unknown("module", self.module, [*_ARGUMENTS, *_OF_TEACHERS]))
        if self.module in _OF_TEACHERS and not (self.reference and self.inputs):
            raise UserError(f"a {self.module} needs a reference, and inputs such as [{{shape = [2, 16, 32]}}]")
        if not self.reference and (extra := sorted(set(self.sizes) - known)):
            raise UserError(unknown("size", extra[0], known))
        unused = sorted(set(self.sizes) - set(_ARGUMENTS.get(self.module, self.sizes)))
        if self.reference and self.module not in ("class", "generate") and unused:
            raise UserError(f'{unused[0]} is not an argument of {self.module}; for others, write module = "class"')

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        sizes = _SIZES | self.sizes
        return {name: sizes[name] for name in _ARGUMENTS.get(self.module, self.sizes)}

    def draw(self) -> list[Any]:
        """The inputs."""
        generator, sizes = torch.Generator().manual_seed(2), _SIZES | self.sizes
        width, vocabulary, length = (int(sizes[name]) for name in ("n_embd", "vocab_size", "block_size"))
        tokens = Random([2, length], vocabulary)
        called_with: dict[str, list[Any]] = {
            "model": [tokens],
            "loss": [Random([2, length, vocabulary]), tokens],
            "generate": [Random([2, 4], vocabulary), 8],
        }

        def drawn(x: Random) -> Tensor:
            if x.below is None:
                return torch.randn(x.shape, generator=generator)
            return torch.randint(x.below, x.shape, generator=generator)

        inputs = self.inputs or called_with.get(self.module, [Random([2, length, width])])
        return [drawn(x) if isinstance(x, Random) else x for x in inputs]


@dataclass(frozen=True)
class Expected:
    """The weights of the reference by name, and the outputs of the reference and of its parts."""

    weights: Mapping[str, Tensor]
    output: Tensor
    parts: dict[str, Tensor]


class _Function(nn.Module):
    """A function as a module; with a model, that is its first argument."""

    def __init__(self, function: Callable[..., Any], model: nn.Module | None) -> None:
        super().__init__()
        self.function, self.model = function, model

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs) if self.model is None else self.function(self.model, *inputs)


def take(reference: str, model: dict[str, Any]) -> remote.Built:
    """In the other process: take a function as a module, with a language model of these settings if there are any."""
    remote.describe(reference, adapted=False)
    function = registry.load_file(reference, "mechanism", adapted=False).build
    return remote.keep(_Function(function, LanguageModel(ModelConfig(**model)) if model else None))


def _weights(module: RemoteModule) -> dict[str, nn.Parameter]:
    return dict(module.original.named_parameters(remove_duplicate=False))


@contextmanager
def _started(
    job: Job, code: tuple[bytes, str, str], arguments: dict[str, Any], sandbox: bool, what: str = ""
) -> Iterator[RemoteModule]:
    """A class or function in a file, by content and names, as a module in its own process; errors are its author's mistakes."""
    content, file, name = code
    process = Remote(file, content, job.seconds, int(1e9 * job.memory), sandbox)
    try:
        with process, torch.no_grad():
            if job.module in _FUNCTIONS:
                model = _GPT | _SIZES | job.sizes if job.module == "generate" else {}
                yield RemoteModule(process, process.call(take, process.reference(name), model))
            else:
                yield process.entry(name, adapted=False).build(**arguments)
    except (ChildError, UserError) as error:
        raise UserError(f"{what}{process.ended or error}") from None
    except Exception as error:
        raise UserError(f"{what}{process.ended or f'it raises {type(error).__name__}: {error}'}") from None


def expect(job: Job, content: bytes, name: str, sandbox: bool) -> Expected:
    """Run the reference with random weights, so that biases and gains matter too."""
    own, arguments = not content, job.arguments if content else _GPT | _SIZES | job.sizes
    content, name = (template("reference.py.txt").encode(), job.module) if own else (content, name)
    code, what = (content, "reference.py", name), f"the reference '{name}' does not run: "
    with _started(job, code, arguments, sandbox, what) as module:
        weights, generator = _weights(module), torch.Generator().manual_seed(1)
        for weight in dict.fromkeys(weights.values()):
            width = weight.shape[-1] if weight.ndim > 1 else 1
            weight.copy_(torch.randn(weight.shape, generator=generator) / width**0.5)
        output, parts = _call(module.eval(), job), _call(module.parts, job)
        if output.isnan().any():
            raise UserError(f"the reference '{name}' gives NaN for these inputs: choose others")
        return Expected(weights, output, parts)


def compare(job: Job, expected: Expected, content: bytes, file: str, name: str, sandbox: bool) -> None:
    """Raise an error that says how a student's class or function differs from the reference."""
    torch.set_num_threads(1)
    with _started(job, (content, file, name), job.arguments, sandbox) as module:
        given, known = _weights(module), {_renamed(key, job): weight for key, weight in expected.weights.items()}
        _check_weights(given, known)
        for key, weight in given.items():
            weight.copy_(known[key])
        difference, parts = _difference("output", _call(module.eval(), job), expected.output, job), dict[str, Tensor]()
        if difference:
            with suppress(Exception):  # what is wrong is known, if not where
                parts = _call(module.parts, job)
    if difference:
        common = ((_renamed(key, job), part) for key, part in expected.parts.items())
        off = (key for key, part in common if key in parts and _difference("", parts[key], part, job))
        part = next(off, "")
        raise UserError(difference + f"; the first module output that differs is `{part}`" * bool(part))


def _call(call: Callable[..., _T], job: Job) -> _T:
    torch.manual_seed(0)
    return call(*job.draw())


def _renamed(name: str, job: Job) -> str:
    """The student's name of a parameter or part of the reference."""
    parts = "|".join(re.escape(part) for part in sorted(job.names, key=len, reverse=True))
    return re.sub(rf"(?<![^.])({parts})(?![^.])", lambda match: job.names[match[0]], name) if parts else name


def _check_weights(given: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> None:
    """Raise an error if parameters are missing, not expected, of another shape, or one where the reference has two."""
    faults = []
    for words, some, others in (("missing", known, given), ("not expected", given, known)):
        if names := [f"{name} ({_shape(some[name])})" for name in some if name not in others]:
            faults.append(f"{words}: {', '.join(names[:_SHOWN])}{', ...' * (len(names) > _SHOWN)}")
    if faults:
        raise UserError(f"parameters {'; '.join(faults)}")
    first = dict[Tensor, str]()
    for name, weight in given.items():
        if weight.shape != known[name].shape:
            raise UserError(f"parameter {name} has shape {_shape(weight)} instead of {_shape(known[name])}")
        if known[other := first.setdefault(weight, name)] is not known[name]:
            raise UserError(f"parameters {other} and {name} are the same; make them two")


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "one number"


def _difference(name: str, given: Tensor, wanted: Tensor, job: Job) -> str:
    if given.shape != wanted.shape:
        return f"{name} has shape {_shape(given)} instead of {_shape(wanted)}"
    x, y = given.double(), wanted.double()
    tolerance = job.tolerance if wanted.is_floating_point() else 0.0
    off = (~torch.isclose(x, y, rtol=tolerance, atol=tolerance)).nonzero()
    if not len(off):
        return ""
    place = tuple(off[0].tolist())
    where = f"{name}[{', '.join(map(str, place))}]" if place else name
    return f"{where}: {x[place]:.6g} instead of {y[place]:.6g}; shapes equal, {len(off)} of {x.numel()} values differ"
