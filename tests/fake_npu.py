"""A stand-in `npu` device for tests: two of them, on the CPU, in a process of its own. torch 2.10 or later.

Tensors that claim to be on `npu:N` hold a CPU tensor. Operators run on it, are recorded, and are refused where an
Ascend chip or torch_npu 2.9.0 would refuse them; what the chip does in silence (`.to(float64)` gives float32) it
does too. As a script it runs another one beside the device: `python tests/fake_npu.py inference.py --device npu:1`.

What goes wrong is set by the environment, or by the fields of `FAULTS`:

FAKE_NPU_LARGEST  bytes; a larger result is out of memory, in the words of FAKE_NPU_WORDS (torch_npu, torch or cann).
FAKE_NPU_BREAK    a path; once that file exists the next operator fails, and those after it are dropped in silence.
FAKE_NPU_CHIP     what `get_device_name` says.
FAKE_NPU_FALLBACK an operator, after which the C++ line of a CPU fall-back is written to file descriptor 2.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map

COUNT = 2
MOST_DIMENSIONS = 8  # of a tensor that can be copied
# What aclnn refuses in float64, of the operators that a forecast could send.
NO_FLOAT64 = {
    "aten::mm", "aten::addmm", "aten::bmm", "aten::silu", "aten::softplus", "aten::masked_fill", "aten::masked_fill_",
    "aten::nan_to_num", "aten::sort", "aten::repeat_interleave",
}  # fmt: skip
# Composite operators for which torch_npu has a kernel of its own: they do not fall apart on the way.
WHOLE = {"aten::matmul", "aten::softmax", "aten::scaled_dot_product_attention"}
COPIES = {"aten::copy_", "aten::_to_copy", "aten::_copy_from"}
HOST_READS = {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero", "aten::equal"}
WORDS: dict[str, Callable[[str], Exception]] = {
    "torch_npu": lambda text: RuntimeError(f"NPU out of memory. {text} (NPU 1; 60.97 GiB total capacity)"),
    "torch": lambda text: torch.OutOfMemoryError(f"NPU out of memory. {text}"),
    "cann": lambda text: RuntimeError(f"NPU function error: aclrtMalloc, error code is 207001\n[EL0004] {text}"),
}
FALLBACK = "[W compiler_depend.ts:51] Warning: CAUTION: The operator '{}' is not currently supported on the NPU backend"
_thread = threading.local()


@dataclass
class Faults:
    """What goes wrong, and whether it has."""

    largest: int | None = None
    words: str = "torch_npu"
    break_file: Path | None = None
    fallback: str = ""
    chip: str = "Ascend910B3"
    broken: bool = False

    @classmethod
    def from_environment(cls) -> Faults:
        read = os.environ.get
        largest, broken = read("FAKE_NPU_LARGEST"), read("FAKE_NPU_BREAK")
        return cls(
            int(largest) if largest else None,
            read("FAKE_NPU_WORDS", "torch_npu"),
            Path(broken) if broken else None,
            read("FAKE_NPU_FALLBACK", ""),
            read("FAKE_NPU_CHIP", "Ascend910B3"),
        )


@dataclass
class Record:
    """Operators that reached the device: (section, name, dtypes of the tensors, in order of first sight) → times.

    section: what the caller says it is doing (`during`). crossings: section → operators that waited for the other
    side, a copy to or from the host or a read of a value. out_of_memory: refused results.
    """

    section: str = ""
    calls: dict[tuple[str, str, tuple[str, ...]], int] = field(default_factory=dict)
    crossings: dict[str, int] = field(default_factory=dict)
    out_of_memory: int = 0

    @contextmanager
    def during(self, section: str) -> Iterator[None]:
        before, self.section = self.section, section
        try:
            yield
        finally:
            self.section = before

    def add(self, name: str, tensors: Sequence[torch.Tensor], to: torch.device) -> None:
        dtypes = tuple(dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in tensors))
        key = (self.section, name, dtypes)
        self.calls[key] = self.calls.get(key, 0) + 1
        host = any(tensor.device.type == "cpu" and tensor.dim() for tensor in tensors)
        if host or to.type == "cpu" or name in HOST_READS:
            self.crossings[self.section] = self.crossings.get(self.section, 0) + 1


FAULTS = Faults.from_environment()
RECORD = Record()


def current_device() -> int:
    return getattr(_thread, "index", 0)


class NpuTensor(torch.Tensor):
    """A CPU tensor (`raw`) that claims to be on `npu:index`."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor, index: int) -> NpuTensor:
        made: NpuTensor = torch.Tensor._make_wrapper_subclass(
            cls, raw.shape, strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype,
            device=torch.device("npu", index), requires_grad=False,
        )  # fmt: skip
        made.raw = raw
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"NpuTensor({self.raw!r}, device='{self.device}')"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func._schema.name not in WHOLE:
            parts = func.decompose(*args, **(kwargs or {}))  # under inference_mode composite operators arrive whole
            if parts is not NotImplemented:
                return parts
        return _run(func, args, dict(kwargs or {}))


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = func._schema.name
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    device = next(tensor.device for tensor in tensors if isinstance(tensor, NpuTensor))
    target = device if kwargs.get("device") is None else torch.device(kwargs["device"])
    RECORD.add(name, tensors, target)
    _check(name, tensors, args, device)
    if name == "aten::_to_copy" and kwargs.get("dtype") == torch.float64 and kwargs.get("device") is None:
        kwargs["dtype"] = torch.float32
    if kwargs.get("device") is not None:
        kwargs["device"] = torch.device("cpu")
    kwargs.pop("pin_memory", None)
    dropped = _breaks(name)
    out = func(*tree_map(_raw, args), **tree_map(_raw, kwargs))
    if dropped:
        tree_map(_zeroed, out)
    known = {id(tensor.raw): tensor for tensor in tensors if isinstance(tensor, NpuTensor)}
    return tree_map(lambda leaf: _wrapped(leaf, known, target), out)


def _check(name: str, tensors: Sequence[torch.Tensor], args: tuple[Any, ...], device: torch.device) -> None:
    if current_device() != device.index:
        raise RuntimeError(f"the thread's device is npu:{current_device()}, {name} is for {device}: set_device first")
    if name in COPIES:
        deep = max(tensor.dim() for tensor in tensors)
        if deep > MOST_DIMENSIONS:
            raise RuntimeError(f"{name} of a tensor of {deep} dimensions; at most {MOST_DIMENSIONS} can be copied")
        return
    for tensor in tensors:
        if tensor.device != device and not (tensor.dim() == 0 and tensor.device.type == "cpu"):
            raise RuntimeError(f"Expected all tensors to be on the same device, found {device} and {tensor.device}")
    if name in NO_FLOAT64 and any(tensor.dtype == torch.float64 for tensor in tensors):
        raise RuntimeError(f"{name} does not support DT_DOUBLE")
    indices = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.bool]
    if name.startswith("aten::index") and indices:
        raise RuntimeError(f"{name} with a boolean index: its shape depends on the data")
    if name == "aten::scaled_dot_product_attention":
        _check_attention(*tensors)


def _check_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *mask: torch.Tensor) -> None:
    """What the fused kernel takes: four dimensions, and a bool mask whose last two are those of the scores."""
    if not FAULTS.chip.startswith(("Ascend910B", "Ascend910_93")):
        raise RuntimeError(f"the fused kernel is not there on {FAULTS.chip}")
    if any(tensor.dim() != 4 for tensor in (query, key, value, *mask)):
        raise RuntimeError("the fused kernel takes four dimensions")
    batch, heads, queries, keys = *query.shape[:3], key.shape[2]
    for given in mask:
        fits = given.shape[0] in (1, batch) and given.shape[1] in (1, heads) and given.shape[2:] == (queries, keys)
        if given.dtype != torch.bool or not fits:
            raise RuntimeError(f"the fused kernel does not take a {given.dtype} mask of {tuple(given.shape)}")


def _breaks(name: str) -> bool:
    """Whether the device drops this operator; raises the once where it breaks."""
    if FAULTS.fallback and name.split("::")[1] == FAULTS.fallback:
        os.write(2, (FALLBACK.format(name) + "\n").encode())
    if FAULTS.broken:
        return True
    if FAULTS.break_file is not None and FAULTS.break_file.exists():
        FAULTS.broken = True
        raise RuntimeError("The Inner error is reported as above. [Error]: The aicore execution is abnormal. ERR00100")
    return False


def _raw(leaf: Any) -> Any:
    return leaf.raw if isinstance(leaf, NpuTensor) else leaf


def _zeroed(leaf: Any) -> Any:
    return leaf.zero_() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


def _wrapped(leaf: Any, known: dict[int, NpuTensor], device: torch.device) -> Any:
    if not isinstance(leaf, torch.Tensor) or isinstance(leaf, NpuTensor):
        return leaf
    if id(leaf) in known:  # an in-place operator gives back what it was given
        return known[id(leaf)]
    if device.type == "cpu":
        return leaf
    return _allocated(leaf, current_device() if device.index is None else device.index)


def _allocated(raw: torch.Tensor, index: int) -> NpuTensor:
    size = raw.numel() * raw.element_size()
    if FAULTS.largest is not None and size > FAULTS.largest:
        RECORD.out_of_memory += 1
        raise WORDS[FAULTS.words](f"Tried to allocate {size} bytes")
    return NpuTensor(raw, index)


def _index(device: Any) -> int:
    index = torch.device(device).index
    index = current_device() if index is None else index
    if index >= COUNT:
        raise RuntimeError(f"Invalid device id: npu:{index}")
    return index


def _set_device(device: Any) -> None:
    _thread.index = device if isinstance(device, int) else _index(device)


class _Backend(types.ModuleType):
    """What becomes `torch.npu`."""

    is_available = staticmethod(lambda: COUNT > 0)
    is_initialized = staticmethod(lambda: True)
    device_count = staticmethod(lambda: COUNT)
    current_device = staticmethod(current_device)
    set_device = staticmethod(_set_device)
    synchronize = staticmethod(lambda device=None: None)
    empty_cache = staticmethod(lambda: None)
    mem_get_info = staticmethod(lambda device=None: (60 << 30, 64 << 30))
    get_device_name = staticmethod(lambda device=None: FAULTS.chip)
    manual_seed = staticmethod(lambda seed: None)
    manual_seed_all = staticmethod(lambda seed: None)
    _is_in_bad_fork = staticmethod(lambda: False)


def install() -> None:
    """Make `npu:0` and `npu:1` devices of this process. Once."""
    if hasattr(torch, "npu"):
        return
    backend_registration._setup_privateuseone_for_python_backend(rename="npu", backend_module=_Backend("torch.npu"))
    library = torch.library.Library("aten", "IMPL", "PrivateUse1")

    def implement(name: str, function: Callable[..., Any]) -> None:
        library.impl(name, function)

    def empty(size: Any, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any) -> NpuTensor:
        return _allocated(torch.empty(size, dtype=dtype, memory_format=memory_format), _index(device))

    def empty_strided(size: Any, stride: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> NpuTensor:
        return _allocated(torch.empty_strided(size, stride, dtype=dtype), _index(device))

    def copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
        _raw(target).copy_(_raw(source))
        return target

    implement("empty.memory_format", empty)
    implement("empty_strided", empty_strided)
    implement("_copy_from", copy_from)
    install.library = library  # type: ignore[attr-defined]  # what it registers lives as long as it does


install()

if __name__ == "__main__":
    sys.modules["tests.fake_npu"] = sys.modules["__main__"]
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
