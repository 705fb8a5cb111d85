"""Optimisers for u-μP models: Muon for hidden matrices, AdamW with u-μP learning rates for the rest.

Muon: Jordan et al. (2024), https://kellerjordan.github.io/posts/muon/; the size of its update follows Liu et al.
(2025), "Muon is scalable for LLM training", section 2.2. AdamW's learning rates per parameter are those of the
`unit-scaling` package (u-μP, table 2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from unit_scaling.optim import AdamW, lr_scale_func_adam, scaled_parameters

__all__ = ["AdamW", "Muon", "lr_scale_func_adam", "orthogonalise", "scaled_parameters"]

# Coefficients of the quintic iteration: they push singular values from (0, 1] to about 0.7 to 1.2 in five steps.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_STEPS = 5
UPDATE_RMS = 0.2


def orthogonalise(matrices: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The nearest (semi-)orthogonal matrices, roughly: singular values end up between 0.7 and 1.2.

    matrices (n, rows, columns), any float dtype; answers the same shape in `dtype`. A zero matrix stays zero.
    """
    first, third, fifth = _QUINTIC
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = (matrices.mT if tall else matrices).to(dtype)
    x = x / (x.float().norm(dim=(-2, -1), keepdim=True) + 1e-12).to(dtype)
    for _ in range(_STEPS):
        square = x @ x.mT
        x = first * x + (third * square + fifth * (square @ square)) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised matrix by matrix.

    params: matrices (fan_out, fan_in); `pieces` says into how many equal blocks of rows a parameter falls, each a
    matrix of its own (queries, keys and values; gate and value). An update has root mean square 0.2 · lr in every
    entry, whatever the shape, so that with unit-scaled weights the learning rate carries over between widths.
    weight_decay is multiplied by lr. The iteration runs in `dtype`: bfloat16 is precise enough, and fast where the
    processor has it. Raises ValueError for a parameter that is no matrix or does not divide.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        pieces: Mapping[Tensor, int] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        params, self.dtype = list(params), dtype
        self.pieces = [1 if pieces is None else pieces.get(param, 1) for param in params]
        for param, count in zip(params, self.pieces, strict=True):
            if param.ndim != 2 or param.shape[0] % count:
                raise ValueError(f"Muon takes matrices of {count} equal blocks of rows, found {tuple(param.shape)}")
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update; matrices of the same shape are orthogonalised together."""
        del closure
        for group in self.param_groups:
            active = [(p, n) for p, n in zip(group["params"], self.pieces, strict=True) if p.grad is not None]
            shapes: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
            for param, count in active:
                direction = self._momentum(param, group["momentum"])
                for weight, part in zip(param.chunk(count), direction.chunk(count), strict=True):
                    wide = part.shape[0] <= part.shape[1]
                    pair = (weight, part) if wide else (weight.mT, part.mT)
                    shapes.setdefault((pair[1].shape[0], pair[1].shape[1]), []).append(pair)
            for shape, pairs in shapes.items():
                made = orthogonalise(torch.stack([part for _, part in pairs]), self.dtype)
                size = group["lr"] * UPDATE_RMS * max(shape) ** 0.5
                for (weight, _), update in zip(pairs, made.float(), strict=True):
                    weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-size)

    def _momentum(self, param: Tensor, momentum: float) -> Tensor:
        state = self.state[param]
        if not state:
            state["momentum"] = torch.zeros_like(param)
        assert param.grad is not None
        buffer: Tensor = state["momentum"]
        buffer.lerp_(param.grad, 1 - momentum)
        return param.grad.lerp(buffer, momentum)  # Nesterov's look-ahead
