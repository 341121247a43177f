"""Where a model is computed, and in which precision: names of settings to torch's devices, dtypes and autocast.

The weights are float32 (or float64); bf16 and fp16 are torch's autocast over them. Knows nothing about models.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from attnlab.errors import UserError

Precision = Literal["float64", "float32", "bf16", "fp16"]

_BEST_FIRST = ("cuda", "xpu", "mps")
_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_PROBE = """
import torch
with torch.autocast("cpu", torch.bfloat16):
    x = torch.ones(1, 2, 32, 16, requires_grad=True)
    y = torch.nn.functional.scaled_dot_product_attention(x @ torch.ones(16, 16), x, x)
y.float().sum().backward()
assert x.grad.isfinite().all()
"""


def available(kind: str) -> int:
    """Count the devices of a kind that this process can use."""
    if kind == "cpu":
        return 1
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    return int(getattr(torch, kind).device_count())


def choose_device(name: str) -> torch.device:
    """Return the device of a name, or the best one for "auto"; each local process takes the one with its number."""
    kind, _, number = name.partition(":")
    if kind == "auto" and not number:
        kind = next((name for name in _BEST_FIRST if available(name)), "cpu")
    if kind not in (*_BEST_FIRST, "cpu") or (number and (kind == "cpu" or not number.isdecimal())):
        raise UserError(f"device '{name}' is unknown: choose auto, cpu, cuda, cuda:1, mps or xpu")
    if kind == "cpu":
        return torch.device("cpu")
    count = available(kind)
    if not count:
        others = [name for name in (*_BEST_FIRST, "cpu") if available(name)]
        raise UserError(f"there is no {kind} device here, or this torch cannot use it: choose {' or '.join(others)}")
    if number and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > 1:
        raise UserError(f"device '{name}' is one device, and each process needs its own: choose {kind}")
    place = int(number or os.environ.get("LOCAL_RANK", "0"))
    if place >= count:
        there = f"there is 1 {kind} device" if count == 1 else f"there are {count} {kind} devices"
        most = "1 process" if count == 1 else f"{count} processes"
        fix = f"choose {kind}:{count - 1} or lower" if number else f"start at most {most}"
        raise UserError(f"{kind}:{place} does not exist, {there}: {fix}")
    return torch.device(kind, place)


def describe(device: torch.device) -> str:
    """Return a device with the name of its model, as far as torch knows it."""
    if device.type in ("cuda", "xpu"):
        return f"{device} ({getattr(torch, device.type).get_device_name(device)})"
    return str(device)


def dtype_of(precision: Precision) -> torch.dtype:
    """Return the dtype of the weights."""
    return torch.float64 if precision == "float64" else torch.float32


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """Compute in this precision where it is safe; the backward pass belongs outside."""
    return torch.autocast(device.type, _HALF[precision]) if precision in _HALF else nullcontext()


@functools.cache
def _cpu_has_bf16() -> bool:
    """Whether the processor computes in bf16, tried in a child: on some it is an illegal instruction."""
    return subprocess.run([sys.executable, "-P", "-c", _PROBE], capture_output=True, check=False).returncode == 0


def check_precision(device: torch.device, precision: Precision) -> None:
    """Raise UserError if the device cannot compute in this precision."""
    if device.type == "cpu" and precision == "fp16":
        raise UserError("fp16 needs a GPU: choose precision bf16 or float32")
    if device.type == "mps" and precision == "float64":
        raise UserError("mps has no float64: choose precision float32, or device cpu")
    lacks = {
        "cpu": lambda: not _cpu_has_bf16(),
        "cuda": lambda: not torch.cuda.is_bf16_supported(including_emulation=False),
    }
    if precision == "bf16" and device.type in lacks and lacks[device.type]():
        other = "float32" if device.type == "cpu" else "fp16"
        raise UserError(f"{describe(device)} cannot compute in bf16: choose precision {other}")
