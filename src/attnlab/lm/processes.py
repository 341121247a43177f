"""Several processes that train one model: their group, and a model that is copied to each or sharded over all.

A copied model is the usual one: every process holds all weights and the gradients are averaged. A sharded model is for
models that do not fit: every process holds a part of each weight, gathered when it is used. Checkpoints hold full
tensors in either case, so that any number of processes of either kind can resume them.
"""

from __future__ import annotations

import gc
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from attnlab.errors import PeerLost
from attnlab.lm.model import Block

if TYPE_CHECKING:  # importing them takes a second, and few runs are sharded
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

_BACKENDS = {"cuda": "cpu:gloo,cuda:nccl", "xpu": "cpu:gloo,xpu:xccl"}
# Whether parameters of a sharded block have received a gradient in this step, by name.
_used: WeakKeyDictionary[nn.Module, dict[str, bool]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Ranks:
    """This process's rank among those that train together."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def total(self, *values: float) -> list[float]:
        """Sum numbers over all processes."""
        total = torch.tensor(values, dtype=torch.float64)
        if self.world > 1:
            distributed.all_reduce(total)
        return total.tolist()

    def wait(self) -> None:
        """Wait for all processes."""
        self.total(0.0)


ALONE = Ranks()


@contextmanager
def process_group(device: torch.device | None = None) -> Iterator[Ranks]:
    """Join the processes started by --processes or torchrun, or run alone; PeerLost if another process ends early."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    with _noticing_lost_peers():
        distributed.init_process_group(_BACKENDS.get(device.type if device else "cpu", "gloo"))
        try:
            ranks = Ranks(distributed.get_rank(), distributed.get_world_size())
            yield ranks
            ranks.wait()
        finally:
            gc.collect()  # gloo aborts when buckets outlive the group
            distributed.destroy_process_group()


@contextmanager
def _noticing_lost_peers() -> Iterator[None]:
    """Turn errors of communication into PeerLost."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, distributed.DistError) or re.search(r"gloo|nccl|by peer|Broken pipe", str(error), re.I):
            raise PeerLost(
                "another process of this training has ended: see its message, or continue with: attnlab resume FOLDER"
            ) from error
        raise


def restarted() -> bool:
    """Whether this process was started again after another had failed: the run is then resumed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def distribute(module: nn.Module, ranks: Ranks, shard: bool = False) -> nn.Module:
    """Copy a module to all processes, or shard it over them; sharding replaces the parameters: optimizers come after.

    As in one process, parameters that a batch does not use have no gradient, and optimizers skip them.
    """
    if ranks.world == 1:
        return module
    if shard:
        return _shard(module, ranks)
    # Which parameters a mechanism uses may depend on the length of its rows; most use all.
    return DistributedDataParallel(module, find_unused_parameters=True)


def _shard(module: nn.Module, ranks: Ranks) -> nn.Module:
    """Shard every block, and then the rest: weights are gathered once per call of a block, however it is computed."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(next(module.parameters()).device.type, (ranks.world,))
    # The residual stream is added to out of place, so that this advice does not apply.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    for block in [one for one in module.modules() if isinstance(one, Block)]:
        fully_shard(block, mesh=mesh)
        block.register_forward_pre_hook(_note_use)
    root = fully_shard(module, mesh=mesh)
    root.set_reduce_scatter_unused_params(True)  # all processes must reduce the same parameters
    return module


def _note_use(block: nn.Module, _given: object) -> None:
    """Have every gathered parameter of a block note when it receives a gradient."""
    used = _used.setdefault(block, {})
    for name, parameter in block.named_parameters():
        if name not in used:
            used[name] = False
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: used.update({name: True}))


def _drop_unused(module: nn.Module, ranks: Ranks) -> None:
    """Remove the gradients of parameters that no process has used."""
    blocks = [one for one in module.modules() if isinstance(one, Block)]
    names = [(block, name) for block in blocks for name in _used[block]]
    processes = ranks.total(*(_used[block][name] for block, name in names))
    for (block, name), count in zip(names, processes, strict=True):
        _used[block][name] = False
        if not count:
            block.get_parameter(name).grad = None


def _is_share(tensor: Tensor) -> TypeGuard[DTensor]:
    return hasattr(tensor, "full_tensor")


@contextmanager
def no_sync(module: nn.Module, last: bool) -> Iterator[None]:
    """Leave gradients of a part of a batch unsynchronised, unless it is the last part."""
    sharded = hasattr(module, "set_requires_gradient_sync")
    if sharded:
        cast("FSDPModule", module).set_requires_gradient_sync(last)
    with module.no_sync() if isinstance(module, DistributedDataParallel) and not last else nullcontext():
        yield
    if sharded and last:
        _drop_unused(module, Ranks(distributed.get_rank(), distributed.get_world_size()))


def full(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return full copies of tensors on the CPU; all processes must call it."""
    return {
        name: full_tensor(tensor).detach().to("cpu", copy=not _is_share(tensor)) for name, tensor in tensors.items()
    }


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor; all processes must call it."""
    return tensor.full_tensor() if _is_share(tensor) else tensor


def share_of(tensor: Tensor, like: Tensor) -> Tensor:
    """Shard a full tensor, which all processes hold, as another one is sharded."""
    if not _is_share(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def shares_of(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Shard full tensors as those of the same names are, for loading; names and shapes are not checked."""
    return {name: share_of(one, like[name]) if name in like else one for name, one in tensors.items()}


def spread(function: Callable[[Tensor], Tensor], tensors: Sequence[Tensor], ranks: Ranks) -> Tensor:
    """Apply a function to a stack of tensors that all processes hold: each computes a share, and all receive the results.

    The function must treat the tensors of a stack one by one, and keep their shape.
    """
    stack = torch.stack(tuple(tensors))
    if ranks.world == 1:
        return function(stack)
    each = math.ceil(len(stack) / ranks.world)
    own = stack[ranks.rank * each :][:each]
    results = stack.new_zeros(each, *stack.shape[1:])
    if len(own):
        results[: len(own)] = function(own)
    gathered = stack.new_empty(ranks.world * each, *stack.shape[1:])
    distributed.all_gather_single(gathered, results)
    return gathered[: len(stack)]
