"""Modules over `dd_unit_scaling.functional`: parameters with unit-normal initialisation and u-μP tags."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from unit_scaling.parameter import MupType, Parameter

from dd_unit_scaling import functional as U

LinearFunction = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Linear(nn.Module):
    """(…, in_features) → (…, out_features), scaled by in_features^-1/2; weight ~ N(0, 1), bias 0."""

    apply_linear: LinearFunction = staticmethod(U.linear)
    weight_type: MupType = "weight"
    scale_power = 0.5  # of fan_in, in the output

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.out_features = out_features
        weight = torch.empty(out_features, in_features)
        if not weight.is_meta:  # there is nothing to draw, and torch would import its compiler to do so (a second)
            weight.normal_()
        self.weight = Parameter(weight, self.weight_type)
        self.bias = Parameter(torch.zeros(out_features), "bias") if bias else None

    @property
    def scale(self) -> float:
        """The factor on x·Wᵀ + b."""
        return float(self.weight.shape[1] ** -self.scale_power)

    def forward(self, input: Tensor) -> Tensor:
        return self.apply_linear(input, self.weight, self.bias)

    def rows(self, input: Tensor, start: int, stop: int) -> Tensor:
        """Outputs start … stop − 1 alone, (…, stop − start)."""
        bias = None if self.bias is None else self.bias[start:stop]
        return self.apply_linear(input, self.weight[start:stop], bias)

    def silu(self, input: Tensor) -> Tensor:
        """The unit-scaled silu of the outputs."""
        return U.silu(self(input))

    def gated_silu(self, input: Tensor) -> Tensor:
        """First half of the outputs times the plain silu of the second, (…, out_features / 2)."""
        gate, value = self(input).chunk(2, dim=-1)
        return gate * F.silu(value)

    def residual_split(self, input: Tensor, tau: float) -> tuple[Tensor, Tensor]:
        """(branch, skip) of a residual block that this layer closes."""
        return U.residual_split(input, tau)

    def residual_add(self, input: Tensor, skip: Tensor, tau: float) -> Tensor:
        """(τ·outputs + skip) / sqrt(1 + τ²)."""
        return U.residual_add(self(input), skip, tau)


class LinearReadout(Linear):
    """As `Linear`, scaled by in_features^-1: the last layer of a network."""

    apply_linear: LinearFunction = staticmethod(U.linear_readout)
    weight_type: MupType = "output"
    scale_power = 1.0


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension (Zhang & Sennrich, 2019), with or without a weight."""

    def __init__(self, dim: int, eps: float, include_weight: bool) -> None:
        super().__init__()
        self.eps = eps
        self.weight = Parameter(torch.ones(dim), "norm") if include_weight else None

    def forward(self, input: Tensor) -> Tensor:
        return U.rms_norm(input, self.weight, self.eps)


class PerDimScale(nn.Module):
    """A learnt positive factor per dimension, one at initialisation."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.per_dim_scale = Parameter(torch.zeros(dim), "norm")

    def forward(self, input: Tensor) -> Tensor:
        return U.per_dim_scale(input, self.per_dim_scale)
