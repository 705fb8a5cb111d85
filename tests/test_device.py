"""Devices by name, the ways they run out of memory or fail, and how the network runs on each."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from toto2.chips import generation
from toto2.cpus import usable_cpus
from toto2.device import Device, DeviceAbsent, DeviceFailure, OutOfDeviceMemory, find_device, present_devices

OUT_OF_MEMORY = [
    RuntimeError("NPU out of memory. Tried to allocate 2.00 GiB (NPU 1; 60.97 GiB total capacity)"),
    torch.OutOfMemoryError("NPU out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("NPU function error: aclrtMalloc\n[Error]: Failed to allocate memory.\n EL0004: [PID: 7]"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:115] DefaultCPUAllocator: can't allocate memory"),
    MemoryError(),
]


class Backend(SimpleNamespace):
    """Two chips that have done nothing but count."""

    def __init__(self, chip: str = "Ascend910B3", count: int = 2) -> None:
        super().__init__(chip=chip, count=count, emptied=0, index=0)

    def is_available(self) -> bool:
        return bool(self.count)

    def device_count(self) -> int:
        return int(self.count)

    def get_device_name(self, index: int) -> str:
        return str(self.chip)

    def set_device(self, index: int) -> None:
        self.index = index

    def mem_get_info(self, index: int) -> tuple[int, int]:
        return 10 + index, 64

    def empty_cache(self) -> None:
        self.emptied += 1


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Backend:
    # `npu:0` names a device for the time of a test: to rename the backend would last as long as the process.
    real = torch.device
    monkeypatch.setattr(torch, "device", lambda name: real("meta" if str(name).startswith("npu") else name))
    made = Backend()
    monkeypatch.setattr(torch, "npu", made, raising=False)
    return made


def test_auto_takes_an_npu_before_the_cpu(backend: Backend) -> None:
    assert find_device("auto").name == "npu:0"
    backend.count = 0
    assert find_device("auto").name == "cpu"


def test_a_device_is_found_by_its_name(backend: Backend) -> None:
    assert [find_device(name).name for name in ("cpu", "npu", "npu:1")] == ["cpu", "npu:0", "npu:1"]
    assert present_devices() == ["cpu", "npu:0", "npu:1"]


def test_an_absent_device_is_refused_with_what_is_there(backend: Backend) -> None:
    with pytest.raises(DeviceAbsent, match=r"^device npu:2 is not there; this machine has cpu, npu:0, npu:1$"):
        find_device("npu:2")


def test_an_absent_kind_is_refused_with_what_is_there() -> None:
    with pytest.raises(DeviceAbsent, match=r"^device npu:0 is not there; this machine has cpu$"):
        find_device("npu:0")


@pytest.mark.parametrize("name", ["", "gpu", "npu:", "npu:x", "npu:-1", "cpu:0", "npu:1:2"])
def test_a_name_that_is_none_is_refused_with_what_is_expected(name: str, backend: Backend) -> None:
    with pytest.raises(DeviceAbsent, match="must be auto, cpu, npu:N or cuda:N, found"):
        find_device(name)


def test_a_device_is_made_the_threads_own(backend: Backend) -> None:
    Device("npu", 1).activate()
    assert backend.index == 1


def test_memory_is_that_of_the_whole_device(backend: Backend) -> None:
    assert Device("npu", 1).memory() == (64 - 11, 64)
    assert Device("cpu").memory() is None


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=range(len(OUT_OF_MEMORY)))
def test_every_form_of_out_of_memory_is_one(error: Exception, backend: Backend) -> None:
    with pytest.raises(OutOfDeviceMemory, match=r"^npu:1 is out of memory: [^\n]+$"), Device("npu", 1).errors():
        raise error
    assert backend.emptied == 1


def test_out_of_memory_lets_go_of_what_filled_the_device(backend: Backend) -> None:
    kept: list[weakref.ref[torch.Tensor]] = []

    def fill() -> None:
        big = torch.zeros(8)
        kept.append(weakref.ref(big))
        raise RuntimeError("NPU out of memory")

    with pytest.raises(OutOfDeviceMemory) as raised, Device("npu").errors():
        fill()
    assert kept[0]() is None
    assert raised.value.__cause__ is not None


@pytest.mark.parametrize(
    "text",
    [
        "The Inner error is reported as above. The aicore execution is abnormal. ERR00100 PTA call acl api failed",
        "NPU function error: aclrtSynchronizeStream, error code is 507015",
        "no words that anyone has seen before",
    ],
)
def test_any_other_error_of_an_npu_is_a_failure(text: str, backend: Backend) -> None:
    with pytest.raises(DeviceFailure, match=r"^npu:0 has failed: "), Device("npu").errors():
        raise RuntimeError(text)


@pytest.mark.parametrize(
    "text",
    [
        "Expected all tensors to be on the same device, but found at least two devices, npu:0 and cpu!",
        "Unsupported. [ERROR] 2026-01-01-00:00:00 (PID:1, Device:0, RankID:-1) ERR01007 OPS feature not supported",
        "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
    ],
)
def test_an_argument_error_is_no_failure_of_the_device(text: str, backend: Backend) -> None:
    with pytest.raises(RuntimeError) as raised, Device("npu").errors():
        raise RuntimeError(text)
    assert type(raised.value) is RuntimeError


def test_an_error_of_the_cpu_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match=r"^a mistake$") as raised, Device("cpu").errors():
        raise RuntimeError("a mistake")
    assert type(raised.value) is RuntimeError


def test_a_cuda_launch_failure_is_a_failure() -> None:
    with pytest.raises(DeviceFailure, match="cuda:0 has failed"), Device("cuda").errors():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize(
    ("chip", "attention", "composite"),
    [
        ("Ascend910B3", "auto", False),
        ("Ascend910B3", "composite", True),
        ("Ascend910_9392", "auto", True),
        ("Ascend910_9392", "fused", False),
        ("Ascend999", "auto", True),
    ],
)
def test_attention_is_chosen_by_chip_unless_it_is_set(
    chip: str, attention: str, composite: bool, backend: Backend
) -> None:
    backend.chip = chip
    assert Device("npu").placement("float32", attention).composite_attention is composite


def test_the_cpu_attends_in_one_kernel() -> None:
    assert not Device("cpu").placement().composite_attention


def test_an_npu_gets_no_complex_number_and_no_packed_weight(backend: Backend) -> None:
    placement = Device("npu", 1).placement("float32")
    assert (placement.complex_rotation, placement.packed) == (False, False)


@pytest.mark.parametrize("chip", ["Ascend910A", "Ascend910B", "Ascend910ProB", "Ascend910PremiumA"])
def test_a_chip_without_float32_is_refused_with_the_reason(chip: str, backend: Backend) -> None:
    backend.chip = chip
    with pytest.raises(DeviceAbsent, match=f"^npu:0 is an {chip}, .*multiplies float32 as float16"):
        Device("npu").placement("float32")
    assert Device("npu").placement("float16").dtype == torch.float16


def test_settings_that_are_none_are_refused_with_what_is_expected() -> None:
    with pytest.raises(ValueError, match="dtype must be one of float32, bfloat16, float16, int8, found 'float8'"):
        Device("cpu").placement("float8")
    with pytest.raises(ValueError, match="attention must be one of auto, fused, composite, found 'flash'"):
        Device("cpu").placement("float32", "flash")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Ascend910B2C", "910B"), ("910B4-1", "910B"), ("910B3", "910B"), ("Ascend910_9391", "910C"),
        ("Ascend910", "910C"), ("910A", "910A"), ("910ProB", "910A"), ("910B", "910A"), ("310P3", None), ("", None),
    ],
)  # fmt: skip
def test_a_chips_name_tells_its_generation(name: str, expected: str | None) -> None:
    assert generation(name) == expected


def _cgroup(directory: Path, **files: str) -> Path:
    for name, text in files.items():
        path = directory / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return directory


def test_usable_cpus_are_those_of_the_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    assert usable_cpus(tmp_path / "none") == 64
    assert usable_cpus(_cgroup(tmp_path, cpu_dot_max="max 100000")) == 64
    assert usable_cpus(_cgroup(tmp_path, cpu_dot_max="250000 100000")) == 2
    assert usable_cpus(_cgroup(tmp_path, cpu_dot_max="50000 100000")) == 1


def test_usable_cpus_read_the_older_control_groups_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))
    quota: dict[str, Any] = {"cpu__cpu_dot_cfs_quota_us": "400000\n", "cpu__cpu_dot_cfs_period_us": "100000\n"}
    assert usable_cpus(_cgroup(tmp_path, **quota)) == 4


def test_a_big_host_gives_an_accelerator_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toto2.device.usable_cpus", lambda: 192)
    assert (Device("npu").threads, Device("cpu").threads) == (8, 192)
