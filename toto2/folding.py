"""Folding: the static factors of unit scaling go into the weights, once, for inference.

A folded model computes the same function (a test holds the two equal). The residual stream is kept in a
scaled form: x' = c·x with c growing by sqrt(1 + τ²) at every residual, so that a residual block is
x' + τ·c·branch, one product with its addition, and the norms' eps grows with c².
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dd_unit_scaling import Linear, RMSNorm
from dd_unit_scaling.functional import SILU_SCALE, per_dim_scale
from toto2.attention import Attention
from toto2.model import Toto2Model
from toto2.passes import Placement
from toto2.products import Int8Product, PackedProduct, PlainProduct, Product
from toto2.residual_mlp import ResidualMLP
from toto2.transformer import FeedForward, Layer


class FoldedLinear(nn.Module):
    """`dd_unit_scaling.Linear` for inference: factors inside, packed in the `parts` it is read in."""

    def __init__(self, parts: dict[tuple[int, int], Product]) -> None:
        super().__init__()
        self.parts = parts
        self.out_features = max(stop for _, stop in parts)
        self.products = list(parts.values())

    def forward(self, input: Tensor) -> Tensor:
        (product,) = self.products
        return product(input)

    def rows(self, input: Tensor, start: int, stop: int) -> Tensor:
        """As `Linear.rows`, for the bounds of a part."""
        return self.parts[start, stop](input)

    def silu(self, input: Tensor) -> Tensor:
        """Plain silu: its factor is in the weights of the layer that follows."""
        (product,) = self.products
        return product.silu(input)

    def gated_silu(self, input: Tensor) -> Tensor:
        """As `Linear.gated_silu`."""
        gate, value = self.products
        return gate.times(input, value.silu(input))

    def residual_split(self, input: Tensor, tau: float) -> tuple[Tensor, Tensor]:
        """(input, input): no gradient, nothing to scale."""
        return input, input

    def residual_add(self, input: Tensor, skip: Tensor, tau: float) -> Tensor:
        """outputs + skip: τ is in the weights."""
        (product,) = self.products
        return product.plus(input, skip)


class FoldedRMSNorm(nn.Module):
    """`dd_unit_scaling.RMSNorm` for inference, on a stream scaled by `stream_scale`."""

    def __init__(self, norm: RMSNorm, stream_scale: float) -> None:
        super().__init__()
        self.eps = norm.eps * stream_scale**2
        self.weight = norm.weight

    def forward(self, input: Tensor) -> Tensor:
        mean_square = torch.linalg.vector_norm(input, dim=-1, keepdim=True).square_().div_(input.shape[-1])
        normed = input * mean_square.add_(self.eps).rsqrt_()
        return normed if self.weight is None else normed.mul_(self.weight)


@torch.no_grad()
def fold(model: Toto2Model, placement: Placement | None = None) -> Toto2Model:
    """Turn `model` into its inference form on `placement`, in place, a layer at a time; returns it.

    Afterwards it has no trainable weights and no state dict.
    """
    folder = _Folder(placement or Placement())
    folder.residual_mlp(model.patch_proj)
    stream_scale = 1.0
    for layer in model.transformer.layers:
        assert isinstance(layer, Layer)
        stream_scale = folder.layer(layer, stream_scale)
    model.transformer.out_norm = folder.norm(model.transformer.out_norm, stream_scale)
    folder.residual_mlp(model.output_head.param_projection["proj"])
    model.placement = folder.placement
    return model.to(placement.device) if placement else model


class _Folder:
    def __init__(self, placement: Placement) -> None:
        self.placement = placement

    def layer(self, layer: Layer, stream_scale: float) -> float:
        """Fold one layer that reads a stream scaled by `stream_scale`; the scale of what it writes."""
        attention_tau, mlp_tau = layer.taus
        layer.norm1 = self.norm(layer.norm1, stream_scale)
        self.attention(layer.attn, attention_tau * stream_scale)
        stream_scale *= math.sqrt(1 + attention_tau**2)
        layer.norm2 = self.norm(layer.norm2, stream_scale)
        self.feed_forward(layer.ffn, mlp_tau * stream_scale)
        return stream_scale * math.sqrt(1 + mlp_tau**2)

    def norm(self, norm: RMSNorm, stream_scale: float) -> RMSNorm:
        return FoldedRMSNorm(norm, stream_scale)  # type: ignore[return-value]  # the same interface

    def attention(self, attention: Attention, branch_scale: float) -> None:
        width = attention.query_width
        factor = torch.full((attention.in_proj.out_features,), attention.in_proj.scale)
        if attention.q_norm is None:  # a norm would undo what is folded before it
            per_head = torch.full((attention.qk_dim,), attention.score_scale)
            if attention._pds is not None:
                per_head = per_dim_scale(per_head, attention._pds.per_dim_scale.cpu())
            factor[:width] *= per_head.repeat(attention.heads)
            attention.score_scale, attention._pds = 1.0, None
        bounds = [(0, width), (width, attention.in_proj.out_features)]
        attention.in_proj = self.linear(attention.in_proj, factor, bounds)
        attention.out_proj = self.linear(attention.out_proj, attention.out_proj.scale * branch_scale)

    def feed_forward(self, ffn: FeedForward, branch_scale: float) -> None:
        half = ffn.fc1.out_features // 2
        ffn.fc1 = self.linear(ffn.fc1, ffn.fc1.scale, [(0, half), (half, 2 * half)])
        ffn.fc2 = self.linear(ffn.fc2, ffn.fc2.scale * branch_scale)

    def residual_mlp(self, mlp: nn.Module) -> None:
        assert isinstance(mlp, ResidualMLP)
        closing = mlp.linear2.scale / math.sqrt(2)
        mlp.linear1 = self.linear(mlp.linear1, mlp.linear1.scale)
        # The silu's factor acts on what it multiplies: on linear2's weight and not on its bias.
        mlp.linear2.weight.mul_(SILU_SCALE)
        mlp.linear2 = self.linear(mlp.linear2, closing)
        mlp.skip_proj = self.linear(mlp.skip_proj, mlp.skip_proj.scale / math.sqrt(2))

    def linear(self, linear: Linear, factor: Tensor | float, bounds: list[tuple[int, int]] | None = None) -> Linear:
        """`linear` times `factor` (a number, or one an output), in parts of the outputs between `bounds`."""
        parts: dict[tuple[int, int], Product] = {}
        for start, stop in bounds or [(0, linear.out_features)]:
            scale = factor[start:stop] if isinstance(factor, Tensor) else torch.tensor(factor)
            scale = scale.to(linear.weight.device)
            # In place: a scaled copy of every weight would leave holes of its size in the heap.
            weight = linear.weight[start:stop].mul_(scale.unsqueeze(-1))
            bias = None if linear.bias is None else linear.bias[start:stop].mul_(scale)
            parts[start, stop] = self._product(weight, bias)
        return FoldedLinear(parts)  # type: ignore[return-value]  # the same interface

    def _product(self, weight: Tensor, bias: Tensor | None) -> Product:
        to = {"device": self.placement.device, "dtype": self.placement.dtype}
        weight, bias = weight.to(**to), None if bias is None else bias.to(**to)  # type: ignore[call-overload]
        if self.placement.int8_weights:
            return Int8Product(weight, bias)
        return PackedProduct(weight, bias) if self.placement.packed else PlainProduct(weight, bias)
