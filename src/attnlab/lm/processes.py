"""Several processes that train one model: their start with torchrun, their group, and a model that is copied to each.

Every process holds all weights, and the gradients are averaged. A process that is killed leads to a restart of all from
the last checkpoint; an error that a restart cannot mend is recorded in a file and ends the training at once.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from attnlab.errors import Interrupted, PeerLost
from attnlab.machine import end_with_parent

RESTARTS = 3
_SAVING_SECONDS = 60  # for the processes to save their state when asked to stop
_RECORDING_SECONDS = 2.0
_BACKENDS = {"cuda": "cpu:gloo,cuda:nccl", "xpu": "cpu:gloo,xpu:xccl"}
PROGRAM = ("-P", "-m", "attnlab")
FAILURE = "ATTNLAB_FAILURE"  # the variable that names the file for an error that a restart cannot mend
_STOPPED = "stopped"  # the file for the message of a process that was asked to stop: by the user, or before a restart


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


def distribute(module: nn.Module, ranks: Ranks) -> nn.Module:
    """Copy a module to all processes.

    As in one process, parameters that a batch does not use have no gradient, and optimizers skip them.
    """
    if ranks.world == 1:
        return module
    # Which parameters a mechanism uses may depend on the length of its rows; most use all.
    return DistributedDataParallel(module, find_unused_parameters=True)


def no_sync(module: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Leave gradients of a part of a batch unsynchronised, unless it is the last part."""
    return module.no_sync() if isinstance(module, DistributedDataParallel) and not last else nullcontext()


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


# Starting them


def launch(processes: int, arguments: Sequence[str]) -> int:
    """Run `python -m attnlab ARGUMENTS` in several processes with torchrun; return the exit code of the command.

    A restart uses the same arguments: name the run folder in them. Call it last: it silences the logs of this process.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable()  # torchrun's own words about what ended; ours follow
    # Without torch's advice not to look for unused parameters, which some mechanisms have.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # without it, restarts may hang
    stops = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not signal.SIG_IGN]
    with tempfile.TemporaryDirectory(prefix="attnlab-torchrun-") as folder:
        record = Path(folder) / "failure"
        os.environ[FAILURE] = str(record)
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="127.0.0.1",
            max_restarts=RESTARTS,
            shutdown_timeout=_SAVING_SECONDS,
            signals_to_handle=",".join(number.name for number in stops),
            # The first process prints.
            logs_specs=DefaultLogsSpecs(folder, dict.fromkeys(range(1, processes), Std.ALL)),
        )
        code, line = 0, ""
        try:
            elastic_launch(config, sys.executable)(*PROGRAM, *arguments)
        except SignalException:
            code, line = Interrupted.exit_code, "stopped; continue an unfinished run with: attnlab resume FOLDER"
            record = record if record.exists() else record.with_name(_STOPPED)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            code = failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
            how = "inter-process communication failed"
            if failure.exitcode < 0:
                how = f"process {rank} of {processes} was killed by {failure.signal_name()}"
            line = f"{how}, also after {RESTARTS} restarts: attnlab resume FOLDER"
        if record.exists():
            number, _, line = record.read_text(encoding="utf-8").partition("\n")
            code = int(number)
        if line:
            sys.stderr.write(f"attnlab: {line}\n")
        return code


def join_launch() -> None:
    """What a process that `launch` started does first: end with its parent, and with an error that was recorded."""
    if FAILURE not in os.environ:
        return
    end_with_parent(signal.SIGTERM)
    if Path(os.environ[FAILURE]).exists():
        sys.exit(0)
    if restarted() and os.environ["RANK"] == "0":
        number = os.environ["TORCHELASTIC_RESTART_COUNT"]
        sys.stderr.write(
            "note: a process was killed or inter-process communication failed;"
            f" all are started again ({number} of {RESTARTS} times)\n"
        )


def record_failure(code: int, line: str) -> None:
    """Leave an error for the process that has started this one, which prints the first that is left.

    torchrun starts all processes again whatever the error was: they then find it, and end.
    """
    failure = Path(os.environ[FAILURE])
    if code == PeerLost.exit_code:
        # torchrun ends all processes when the first does: the one that knows the reason has time to leave it.
        until = time.monotonic() + _RECORDING_SECONDS
        while not failure.exists() and time.monotonic() < until:
            time.sleep(0.05)
        return
    record = failure.with_name(_STOPPED) if code == Interrupted.exit_code else failure
    draft = failure.with_name(f"draft-{os.getpid()}")
    draft.write_text(f"{code}\n{line}", encoding="utf-8")
    with suppress(FileExistsError):  # another process was first
        os.link(draft, record)
