"""Devices: names, presence, memory, and what their errors mean. Nothing else in the project names a backend."""

from __future__ import annotations

import importlib.util
import itertools
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from toto2.chips import NO_FLOAT32, generation
from toto2.cpus import usable_cpus
from toto2.errors import DeviceAbsent, DeviceFailure, OutOfDeviceMemory
from toto2.passes import Placement
from toto2.products import bfloat16_available, packing_available

__all__ = ["Device", "DeviceAbsent", "DeviceFailure", "OutOfDeviceMemory", "find_device", "present_devices"]

# Of activations; int8 is that of the weights alone.
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.float32}
NO_GAIN = {("cpu", "float16"), ("cuda", "int8"), ("npu", "int8")}  # nothing is faster there
ATTENTIONS = ("auto", "fused", "composite")
HOST_THREADS = 8  # beside an accelerator: the host only prepares, and many threads on a big one only wait

_OUT_OF_MEMORY = ("out of memory", "EL0004", "Failed to allocate memory", "can't allocate memory")
# An operator that refused its arguments launched nothing: invalid parameter, type or value, or not supported.
_ARGUMENT_ERROR = re.compile(
    r"ERR\d\d00[1237]\b|Expected all tensors to be on the same device|must match the size of tensor"
    r"|shapes cannot be multiplied"
)
_known_values = itertools.count(1)


@dataclass(frozen=True)
class Device:
    """One device. `kind` is cpu, cuda or npu."""

    kind: str
    index: int = 0

    @property
    def name(self) -> str:
        """As a user writes it: cpu, cuda:0, npu:1."""
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"

    @property
    def chip(self) -> str:
        """What the backend calls the chip, such as Ascend910B3; empty on the CPU."""
        return "" if self.kind == "cpu" else str(self._backend.get_device_name(self.index))

    @property
    def threads(self) -> int:
        """Intra-op threads of the host to use beside this device."""
        return usable_cpus() if self.kind == "cpu" else min(usable_cpus(), HOST_THREADS)

    def activate(self) -> None:
        """Make this the calling thread's device (a new thread starts on index 0)."""
        if self.kind != "cpu":
            self._backend.set_device(self.index)

    def synchronise(self) -> None:
        """Wait until all that was launched has run."""
        if self.kind != "cpu":
            self._backend.synchronize()

    def memory(self) -> tuple[int, int] | None:
        """(used, total) bytes of the whole device, by every process on it; None on the CPU."""
        if self.kind == "cpu":
            return None
        free, total = self._backend.mem_get_info(self.index)
        return total - free, total

    def release_memory(self) -> None:
        """Give cached blocks back to the device."""
        if self.kind != "cpu":
            self._backend.empty_cache()

    def placement(self, dtype: str = "float32", attention: str = "auto") -> Placement:
        """How the network runs here.

        attention: fused is one kernel; composite is products and a softmax; auto is fused but on an Ascend chip
        whose documents do not list the kernel (any but a 910B). Raises `ValueError` on a dtype or form of
        attention that this project does not know or has no use for here, `DeviceAbsent` where this chip cannot
        compute in `dtype`.
        """
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, found {dtype!r}")
        if (self.kind, dtype) in NO_GAIN:
            useful = ", ".join(other for other in DTYPES if (self.kind, other) not in NO_GAIN)
            raise ValueError(f"dtype {dtype} gains nothing on {self.kind}; expected one of {useful}")
        if self.kind == "cpu" and dtype == "bfloat16" and not bfloat16_available():
            raise ValueError("dtype bfloat16: this cpu does not multiply it; expected float32 or int8")
        if attention not in ATTENTIONS:
            raise ValueError(f"attention must be one of {', '.join(ATTENTIONS)}, found {attention!r}")
        chip = generation(self.chip) if self.kind == "npu" else None
        if chip == "910A" and dtype == "float32":
            raise DeviceAbsent(f"{self.name} is an {self.chip}, {NO_FLOAT32}")
        composite = attention == "composite" or (attention == "auto" and self.kind == "npu" and chip != "910B")
        return Placement(
            device=torch.device(self.name),
            dtype=DTYPES[dtype],
            complex_rotation=self.kind != "npu" and DTYPES[dtype] == torch.float32,
            composite_attention=composite,
            packed=self.kind == "cpu" and packing_available(),
            int8_weights=dtype == "int8",
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
                traceback.clear_frames(error.__traceback__)  # they hold the tensors that filled the device
                self.release_memory()
                raise OutOfDeviceMemory(f"{self.name} is out of memory: {_first_line(error)}") from error
            if self._is_fatal(error):
                raise DeviceFailure(f"{self.name} has failed: {_first_line(error)}") from error
            raise

    def check(self) -> None:
        """Send known values, each time others, there and back through an operator.

        After a failed launch a device may drop operators in silence. Raises `DeviceFailure`.
        """
        if self.kind == "cpu":
            return
        start = next(_known_values)
        sent = torch.arange(start, start + 8, dtype=torch.float32)
        with self.errors():
            came = (sent.to(self.name) * 2).cpu()
        if not torch.equal(came, sent * 2):
            raise DeviceFailure(f"{self.name} has failed: twice {sent.tolist()} came back as {came.tolist()}")

    @property
    def _backend(self) -> Any:
        return getattr(torch, self.kind)

    def _is_fatal(self, error: BaseException) -> bool:
        """Whether it may come from work launched earlier: later results may be wrong, or dropped in silence."""
        if self.kind == "cpu":
            return False
        if self.kind == "cuda":
            return any(words in str(error) for words in ("CUDA", "CUBLAS", "cuDNN"))
        return _ARGUMENT_ERROR.search(str(error)) is None


def find_device(name: str = "auto") -> Device:
    """The device of that name; `auto` is the first NPU, else the first CUDA device, else the CPU.

    Raises `DeviceAbsent`.
    """
    if name == "cpu":
        return Device("cpu")
    if name == "auto":
        present = [kind for kind in ("npu", "cuda") if _count(kind)]
        return Device(present[0]) if present else Device("cpu")
    kind, colon, index = name.partition(":")
    if kind not in ("npu", "cuda") or not (index.isdecimal() or not colon):
        raise DeviceAbsent(f"device must be auto, cpu, npu:N or cuda:N, found {name!r}")
    if int(index or 0) >= _count(kind):
        raise DeviceAbsent(f"device {name} is not there; this machine has {', '.join(present_devices())}")
    return Device(kind, int(index or 0))


def present_devices() -> list[str]:
    """Names of all devices of this machine."""
    return ["cpu", *(f"{kind}:{index}" for kind in ("cuda", "npu") for index in range(_count(kind)))]


def _count(kind: str) -> int:
    if kind == "npu" and not hasattr(torch, "npu"):
        if importlib.util.find_spec("torch_npu") is None:
            return 0
        importlib.import_module("torch_npu")  # it registers `torch.npu`
    backend = getattr(torch, kind)
    return int(backend.device_count()) if backend.is_available() else 0


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(
        words in str(error) for words in _OUT_OF_MEMORY
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
