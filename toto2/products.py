"""Matrix products of inference, with what follows them fused in where the CPU's library can.

oneDNN with weights packed once reaches a product's peak at the sizes of a forecast, and adds, multiplies
or applies silu on the way out. Its operators are private in PyTorch (present from 2.9 to 2.13): they are
named here alone, and plain products serve where they are absent.
"""

from __future__ import annotations

import warnings
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

PACKING_ROWS = 100  # rows to pack for: near those of a forecast, and good from 30 to thousands


class Product(Protocol):
    """y = x·Wᵀ + b for x (…, fan_in), y (…, fan_out), with an optional step after it."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def silu(self, x: Tensor) -> Tensor:
        """silu(y)."""

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        """y·other."""

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """y + other."""


class PlainProduct:
    """`Product` with the framework's public operators."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def silu(self, x: Tensor) -> Tensor:
        return F.silu(self(x))

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        return self(x).mul_(other)

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        return self(x).add_(other)


class PackedProduct:
    """`Product` through oneDNN on packed weights (CPU, float32 or bfloat16)."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKING_ROWS)
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")

    def silu(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "swish", [], "")

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise.binary(x, other, self.weight, self.bias, "mul")

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise.binary(x, other, self.weight, self.bias, "add")


class Int8Product:
    """`Product` on weights rounded to int8, with a scale an output; x is rounded to 8 bits a call (CPU, float32).

    A CPU without VNNI adds pairs of products in 16 bits, which saturate: there x has 7 bits.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        scale = (weight.abs().amax(dim=1) / 127).clamp_min(torch.finfo(weight.dtype).tiny)
        zero = torch.zeros_like(scale, dtype=torch.long)
        with warnings.catch_warnings():  # deprecated in PyTorch, with nothing public to take its place on a CPU yet
            warnings.simplefilter("ignore", UserWarning)
            rounded = torch.quantize_per_channel(weight, scale.double(), zero, 0, torch.qint8)
            self.packed = torch.ops.quantized.linear_prepack(rounded, bias)
        self.seven_bits = not torch.cpu._is_vnni_supported()

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic(x, self.packed, self.seven_bits)

    def silu(self, x: Tensor) -> Tensor:
        return F.silu(self(x), inplace=True)

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        return self(x).mul_(other)

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        return self(x).add_(other)


def bfloat16_available() -> bool:
    """Whether oneDNN takes bfloat16 on this CPU: not without AVX512, where plain products in it are far slower."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def packing_available() -> bool:
    """Whether this PyTorch has oneDNN's packed linear operators."""
    return torch.backends.mkldnn.is_available() and all(
        hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise")
    )
