"""Devices: names, presence, memory, and what their errors mean. Nothing else in the project names a backend."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from toto2.passes import Placement
from toto2.products import packing_available

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_OUT_OF_MEMORY = ("out of memory", "EL0004", "Failed to allocate memory", "can't allocate memory")


class DeviceAbsent(ValueError):
    """The device that was asked for is not there: one line that says what is."""


class OutOfDeviceMemory(RuntimeError):
    """An allocation was refused; the device is sound, and less work may fit."""


class DeviceFailure(RuntimeError):
    """The device cannot be trusted any more: whoever serves from it must stop."""


@dataclass(frozen=True)
class Device:
    """One device. `kind` is cpu, cuda or npu."""

    kind: str
    index: int = 0

    @property
    def name(self) -> str:
        """As a user writes it: cpu, cuda:0, npu:1."""
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"

    def activate(self) -> None:
        """Make this the calling thread's device (a new thread starts on index 0)."""
        if self.kind != "cpu":
            _backend(self.kind).set_device(self.index)

    def synchronise(self) -> None:
        """Wait until all that was launched has run."""
        if self.kind != "cpu":
            _backend(self.kind).synchronize()

    def memory(self) -> tuple[int, int] | None:
        """(used, total) bytes of the whole device; None on the CPU."""
        if self.kind == "cpu":
            return None
        free, total = _backend(self.kind).mem_get_info()
        return total - free, total

    def release_memory(self) -> None:
        """Give cached blocks back to the device."""
        if self.kind != "cpu":
            _backend(self.kind).empty_cache()

    def placement(self, dtype: str, attention: str = "auto") -> Placement:
        """How the network runs here. Raises `ValueError` on a dtype that this project does not know."""
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, found {dtype!r}")
        return Placement(
            device=torch.device(self.name),
            dtype=DTYPES[dtype],
            complex_rotation=self.kind != "npu" and dtype == "float32",
            composite_attention=attention == "composite",
            packed=self.kind == "cpu" and dtype != "float16" and packing_available(),
        )

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn what the backend raises into `OutOfDeviceMemory` or `DeviceFailure`; other errors pass."""
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, (OutOfDeviceMemory, DeviceFailure)):
                raise
            if _is_out_of_memory(error):
                self.release_memory()
                raise OutOfDeviceMemory(f"{self.name}: {_first_line(error)}") from error
            if self.kind != "cpu":  # launched asynchronously: later results may be wrong, or dropped in silence
                raise DeviceFailure(f"{self.name}: {_first_line(error)}") from error
            raise


def find_device(name: str = "auto") -> Device:
    """The device of that name; `auto` is the first NPU, else the first CUDA device, else the CPU.

    Raises `DeviceAbsent`.
    """
    if name == "cpu":
        return Device("cpu")
    if name == "auto":
        present = [kind for kind in ("npu", "cuda") if _count(kind)]
        return Device(present[0]) if present else Device("cpu")
    kind, _, index = name.partition(":")
    if kind not in ("npu", "cuda") or not (index.isdecimal() or name == kind):
        raise DeviceAbsent(f"device must be auto, cpu, npu:N or cuda:N, found {name!r}")
    if int(index or 0) >= _count(kind):
        raise DeviceAbsent(f"device {name} is not there; this machine has {', '.join(present_devices())}")
    return Device(kind, int(index or 0))


def present_devices() -> list[str]:
    """Names of all devices of this machine."""
    return ["cpu", *(f"{kind}:{index}" for kind in ("cuda", "npu") for index in range(_count(kind)))]


def usable_cpus() -> int:
    """CPUs that this process may use: its affinity, and its control group's quota where there is one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, min(allowed, int(quota))) if quota else allowed


def _cgroup_quota() -> float | None:
    """CPUs of the control group's quota (version 2, then 1); None where there is no limit."""
    try:
        with open("/sys/fs/cgroup/cpu.max") as stream:
            quota, period = stream.read().split()
    except (OSError, ValueError):
        try:
            with open("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") as stream:
                quota = stream.read().strip()
            with open("/sys/fs/cgroup/cpu/cpu.cfs_period_us") as stream:
                period = stream.read().strip()
        except OSError:
            return None
    return float(quota) / float(period) if quota not in ("max", "-1") else None


def _backend(kind: str) -> Any:
    return getattr(torch, kind)


def _count(kind: str) -> int:
    if kind == "npu" and not hasattr(torch, "npu") and not _load_npu():
        return 0
    backend: ModuleType = _backend(kind)
    return int(backend.device_count()) if backend.is_available() else 0


def _load_npu() -> bool:
    """Import torch_npu where it is installed; it registers `torch.npu`."""
    if importlib.util.find_spec("torch_npu") is None:
        return False
    importlib.import_module("torch_npu")
    return hasattr(torch, "npu")


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(
        words in str(error) for words in _OUT_OF_MEMORY
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
