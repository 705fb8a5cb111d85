"""Rotary position tables with xPos decay (Su et al., 2021; Sun et al., 2022), for the first half of each head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ROTARY_BASE = 10_000.0
XPOS_BASE = 256.0  # patches over which the decay acts once


@dataclass(frozen=True)
class Rotation:
    """Factors of the rotated pairs: complex64 (R or 1, S, 1, w/2), or float32 (…, w/2, 2) of real and imaginary."""

    query: Tensor
    key: Tensor


def rotation(
    first: NDArray[np.int64], columns: int, centres: NDArray[np.int64], qk_dim: int, use_xpos: bool
) -> tuple[NDArray[np.complex64], NDArray[np.complex64]]:
    """Complex factors for queries and keys, each (R, columns, 1, w/2) with w = qk_dim / 2 rotated dimensions.

    first, centres (R,): position of column 0 and of the xPos centre, in patches. A pair i of a query is
    turned by position·10000^(-2i/w) and scaled by ((2i + 0.4w) / 1.4w)^((position - centre) / 256); of a
    key by the inverse of that scale.
    """
    width = qk_dim // 2
    even = np.arange(0, width, 2, dtype=np.float64)
    frequency = 1j * ROTARY_BASE ** (-even / width)
    decay = np.log((even + 0.4 * width) / (1.4 * width)) / XPOS_BASE if use_xpos else 0 * even
    # Separable in row and column, so that a table costs one product an element and no power.
    column = np.arange(columns)[:, None]
    row, from_centre = first[:, None], (first - centres)[:, None]
    query = np.exp(row * frequency + from_centre * decay)[:, None] * np.exp(column * (frequency + decay))
    key = np.exp(row * frequency - from_centre * decay)[:, None] * np.exp(column * (frequency - decay))
    return query.astype(np.complex64)[:, :, None], key.astype(np.complex64)[:, :, None]


def on_device(factors: NDArray[np.complex64], device: torch.device, use_complex: bool) -> Tensor:
    """The factors as a tensor: complex64, or float32 with a last dimension of 2 where complex is not to be had."""
    table = torch.from_numpy(np.ascontiguousarray(factors))
    return (table if use_complex else torch.view_as_real(table)).to(device)


def rotate(x: Tensor, factors: Tensor) -> Tensor:
    """x (R, S, heads, dim) with its first w dimensions, pairs (2i, 2i + 1), turned by factors.

    Complex factors turn x in place (no copy); real ones make a new tensor, and carry gradients.
    """
    if factors.is_complex():
        width = 2 * factors.shape[-1]
        torch.view_as_complex(x[..., :width].unflatten(-1, (-1, 2))).mul_(factors)
        return x
    width = 2 * factors.shape[-2]
    real, imaginary = x[..., :width].unflatten(-1, (-1, 2)).unbind(-1)
    cosine, sine = factors.to(x.dtype).unbind(-1)
    turned = torch.stack((real * cosine - imaginary * sine, real * sine + imaginary * cosine), dim=-1)
    return torch.cat((turned.flatten(-2), x[..., width:]), dim=-1)
