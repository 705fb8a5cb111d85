"""Unit-scaled operations of the Toto 2.0 model, thin over the `unit-scaling` package.

Unit scaling (Blake et al., 2023) and u-μP (Blake et al., 2024, arXiv:2407.17465) keep activations,
weights and gradients near unit variance at initialisation by static factors on every operation.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
import unit_scaling.functional as U
from torch import Tensor
from unit_scaling.core.functional import scale_elementwise, transformer_residual_scaling_rule
from unit_scaling.scale import scale_bwd, scale_fwd

__all__ = [
    "SILU_SCALE",
    "linear",
    "linear_readout",
    "per_dim_scale",
    "residual_add",
    "residual_split",
    "residual_taus",
    "rms_norm",
    "scale_bwd",
    "scale_fwd",
    "silu",
    "softplus",
]

SOFTPLUS_STD = 0.52103  # of softplus(x), x ~ N(0, 1)
SILU_SCALE = 2**0.2 * (2 / (1 - 1 / math.pi)) ** 0.4  # what `unit-scaling` multiplies silu(x) by

residual_add = U.residual_add
residual_split = U.residual_split


def linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(x·Wᵀ + b)·fan_in^-1/2, gradients scaled alike. input (…, fan_in), weight (fan_out, fan_in)."""
    return U.linear(input, weight, bias, constraint="to_output_scale")


def linear_readout(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(x·Wᵀ + b)·fan_in^-1, for the network's last layer (u-μP, table 2); the input's gradient by fan_out^-1/2."""
    return U.linear_readout(input, weight, bias, constraint=None)


def rms_norm(input: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) over the last dimension, times weight (last dimension,) where there is one."""
    return U.rms_norm(input, (input.shape[-1],), weight, eps)


def silu(input: Tensor) -> Tensor:
    """x·sigmoid(x)·1.76678…, element-wise: unit output variance for unit normal input."""
    return U.silu(input)


def softplus(input: Tensor) -> Tensor:
    """log(1 + exp x) / 0.52103, element-wise, with the same factor on the gradient."""
    scaled = scale_elementwise(F.softplus, 1 / SOFTPLUS_STD, 1 / SOFTPLUS_STD)
    return scaled(input)


def per_dim_scale(input: Tensor, scale: Tensor) -> Tensor:
    """x·softplus(p)/log 2 per last dimension: one at p = 0. input (…, dim), scale p (dim,)."""
    return input * (softplus(scale) * (SOFTPLUS_STD / math.log(2)))


def residual_taus(layers: int, residual_mult: float, residual_attn_ratio: float) -> list[tuple[float, float]]:
    """(attention τ, feed-forward τ) of each of `layers` transformer layers (u-μP, appendix G)."""
    rule = transformer_residual_scaling_rule(residual_mult, residual_attn_ratio)
    return [(rule(2 * index, 2 * layers), rule(2 * index + 1, 2 * layers)) for index in range(layers)]
