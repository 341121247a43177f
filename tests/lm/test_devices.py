"""Names of devices and precisions, with and without the devices."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

from attnlab.errors import UserError
from attnlab.lm import devices

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda", 0), torch.device("mps")


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(devices, "available", lambda kind: {"cpu": 1, "cuda": 2}.get(kind, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Made-up 1")


@pytest.mark.usefixtures("two_gpus")
def test_a_name_gives_a_device_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices.choose_device("auto") == devices.choose_device("cuda") == CUDA
    assert devices.describe(devices.choose_device("cuda:1")) == "cuda:1 (Made-up 1)"
    assert devices.describe(devices.choose_device("cpu")) == "cpu"
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert devices.choose_device("auto") == devices.choose_device("cuda") == torch.device("cuda", 1)
    assert devices.choose_device("cuda:0") == CUDA
    monkeypatch.setattr(devices, "available", lambda kind: int(kind == "cpu"))
    assert devices.choose_device("auto") == CPU


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("tpu", "choose auto, cpu, cuda"),
        ("cpu:1", "choose auto"),
        ("cuda:x", "choose auto"),
        ("auto:1", "choose auto"),
        ("mps", "choose cuda or cpu"),
        ("cuda:2", "choose cuda:1 or lower"),
    ],
)
def test_other_names_are_refused_with_the_fix(name: str, fix: str) -> None:
    with pytest.raises(UserError, match=fix):
        devices.choose_device(name)


@pytest.mark.usefixtures("two_gpus")
def test_more_processes_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UserError, match="there are 2 cuda devices: start at most 2 processes"):
        devices.choose_device("cuda")
    monkeypatch.setattr(devices, "available", lambda _: 1)
    with pytest.raises(UserError, match="there is 1 cuda device: start at most 1 process$"):
        devices.choose_device("cuda")


@pytest.mark.usefixtures("two_gpus")
def test_several_processes_do_not_share_a_numbered_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(UserError, match="'cuda:1' is one device, and each process needs its own: choose cuda"):
        devices.choose_device("cuda:1")
    assert devices.choose_device("cuda") == CUDA


def test_the_devices_of_this_machine_are_described() -> None:
    device = devices.choose_device("auto")
    assert devices.describe(device).startswith(device.type)
    torch.ones(2, device=device)


def test_a_precision_that_the_device_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for precision in ("float64", "float32"):
        devices.check_precision(CPU, precision)
    with pytest.raises(UserError, match="bf16 or float32"):
        devices.check_precision(CPU, "fp16")
    with pytest.raises(UserError, match="device cpu"):
        devices.check_precision(MPS, "float64")
    monkeypatch.setattr(devices, "_PROBE", "import os; os.abort()")
    devices._cpu_has_bf16.cache_clear()
    with pytest.raises(UserError, match="cpu cannot compute in bf16: choose precision float32"):
        devices.check_precision(CPU, "bf16")
    devices._cpu_has_bf16.cache_clear()
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Made-up 1")
    with pytest.raises(UserError, match="choose precision fp16"):
        devices.check_precision(CUDA, "bf16")


def test_weights_are_float32_or_float64_and_float32_computes_without_autocast() -> None:
    assert devices.dtype_of("float64") == torch.float64
    assert {devices.dtype_of(one) for one in ("float32", "bf16", "fp16")} == {torch.float32}
    with devices.autocast(CPU, "float32"):
        assert not torch.is_autocast_enabled("cpu")
    with devices.autocast(CPU, "bf16"):
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.xfail(not torch.cuda.is_available(), raises=RuntimeError, reason="this torch has no device guard for cuda")
def test_fake_tensors_can_be_on_a_device_that_is_not_there() -> None:
    """When this passes on a CPU build, FakeTensorMode can replace tests/other_device.py."""
    with FakeTensorMode(), torch.no_grad():
        rows = torch.ones(3, 2, device="cuda")[torch.tensor([0], device="cuda")]
    assert rows.device.type == "cuda"
