"""The residual MLP that takes patches in and brings quantiles out."""

from __future__ import annotations

from torch import Tensor, nn

from dd_unit_scaling import Linear, LinearReadout


class ResidualMLP(nn.Module):
    """(linear2(silu(linear1(x))) + skip_proj(x)) / sqrt 2; (…, in_dim) → (…, out_dim)."""

    def __init__(self, in_dim: int, hidden: int, out_dim: int, readout: bool = False) -> None:
        super().__init__()
        closing = LinearReadout if readout else Linear
        self.linear1 = Linear(in_dim, hidden)
        self.linear2 = closing(hidden, out_dim)
        self.skip_proj = closing(in_dim, out_dim)

    def forward(self, x: Tensor) -> Tensor:
        branch, skip = self.linear2.residual_split(x, 1.0)
        return self.linear2.residual_add(self.linear1.silu(branch), self.skip_proj(skip), 1.0)
