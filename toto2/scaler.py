"""The causal scaler: running mean and deviation of each row, in float64 on the host.

An NPU has no float64 (it silently takes float32), and float32 loses a small movement on a large level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SCALE_FLOOR = 1e-6


@dataclass(frozen=True)
class Statistics:
    """Mean (`loc`) and deviation (`scale`), each (rows, patches) or (rows,)."""

    loc: Floats
    scale: Floats

    def last(self) -> Statistics:
        """Those of the last patch, (rows,)."""
        return Statistics(self.loc[:, -1], self.scale[:, -1])

    def rounded(self, dtype: type[np.floating[Any]]) -> Statistics:
        """The same, to the precision of `dtype`."""
        return Statistics(self.loc.astype(dtype), self.scale.astype(dtype))


class CausalScaler:
    """Running count, mean and squared deviation of R rows over the observed values seen so far.

    Sums are kept of differences from each row's first observed value. That value is among those summed,
    so the deviation is never small beside the sums, and nothing cancels.
    """

    def __init__(self, rows: int, fallback_min_obs: int = 0) -> None:
        self.fallback_min_obs = fallback_min_obs
        self._origin = np.full(rows, np.nan)
        self._count = np.zeros(rows)
        self._sum = np.zeros(rows)
        self._squares = np.zeros(rows)
        self._fallback = Statistics(np.zeros(rows), np.full(rows, SCALE_FLOOR))

    def read(self, values: Floats, observed: Bools) -> Statistics:
        """Take in the next patches (r, S, patch_size) of the first r rows; statistics (r, S) at each one's last step.

        A patch with nothing observed has the statistics of the last step observed before it (mean 0 where
        there is none). The deviation
        divides by count − 1, at least 1, and is at least 1e-6. With `fallback_min_obs` n, patches that
        have seen fewer than n values get the statistics of the row's first n.
        """
        rows = len(values)
        origin = self._origins(values, observed)
        difference = np.where(observed, values - origin[:, None, None], 0.0)
        if self.fallback_min_obs and not self._count[:rows].any():
            self._fallback = _first_statistics(difference, observed, origin, self.fallback_min_obs)
        count = self._running(self._count, observed.sum(-1, dtype=np.float64))
        total = self._running(self._sum, difference.sum(-1))
        squares = self._running(self._squares, np.square(difference).sum(-1))
        statistics = _statistics(count, total, squares, origin[:, None])
        if not self.fallback_min_obs:
            return statistics
        few = count < self.fallback_min_obs
        return Statistics(
            np.where(few, self._fallback.loc[:rows, None], statistics.loc),
            np.where(few, self._fallback.scale[:rows, None], statistics.scale),
        )

    def _origins(self, values: Floats, observed: Bools) -> Floats:
        rows = len(values)
        flat_values, flat_observed = values.reshape(rows, -1), observed.reshape(rows, -1)
        first = flat_values[np.arange(rows), flat_observed.argmax(-1)]
        unset = np.isnan(self._origin[:rows]) & flat_observed.any(-1)
        self._origin[:rows] = np.where(unset, first, self._origin[:rows])
        return np.nan_to_num(self._origin[:rows])

    @staticmethod
    def _running(state: Floats, added: Floats) -> Floats:
        """Cumulative sums (r, S) going on from the state (R,), which moves to the last of them."""
        rows = len(added)
        sums = state[:rows, None] + np.cumsum(added, axis=1)
        state[:rows] = sums[:, -1]
        return sums


def _statistics(count: Floats, total: Floats, squares: Floats, origin: Floats) -> Statistics:
    mean = total / np.maximum(count, 1)
    variance = np.maximum(squares - count * mean * mean, 0) / np.maximum(count - 1, 1)
    loc = np.where(count > 0, origin + mean, 0.0)
    return Statistics(loc, np.maximum(np.sqrt(variance), SCALE_FLOOR))


def _first_statistics(difference: Floats, observed: Bools, origin: Floats, first: int) -> Statistics:
    """Statistics (rows,) of the first `first` observed values of each row."""
    rows = len(difference)
    flat = observed.reshape(rows, -1)
    among = flat & (np.cumsum(flat, axis=1) <= first)
    chosen = np.where(among, difference.reshape(rows, -1), 0.0)
    return _statistics(among.sum(-1, dtype=np.float64), chosen.sum(-1), np.square(chosen).sum(-1), origin)
