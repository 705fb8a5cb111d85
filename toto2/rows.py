"""Rows to decode together: each one variate of one request, in whole patches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toto2.scaler import Bools, Floats

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """R rows over P context patches of p steps, whose ends are aligned.

    values: float64 (R, P, p), finite, anything where not observed; observed: bool (R, P, p).
    future_values, future_observed: (R, H, p) of rows whose future is known, None where there are none.
    target: bool (R,), rows that are forecast. Rows that are not have a known future.
    series: int64 (R,), equal for the rows of one request; they attend to each other.
    leading: int64 (R,), patches before the request's own first one, all missing.
    horizon, block: int64 (R,), patches to forecast and patches decoded in one pass, alike in a request.
    """

    values: Floats
    observed: Bools
    target: Bools
    series: Integers
    leading: Integers
    horizon: Integers
    block: Integers
    future_values: Floats | None = None
    future_observed: Bools | None = None

    @property
    def passes(self) -> Integers:
        """How many passes each row takes, (R,)."""
        return -(-self.horizon // self.block)

    def take(self, index: Integers) -> Rows:
        """The rows at `index`, in that order."""
        future_values = None if self.future_values is None else self.future_values[index]
        future_observed = None if self.future_observed is None else self.future_observed[index]
        return Rows(
            self.values[index],
            self.observed[index],
            self.target[index],
            self.series[index],
            self.leading[index],
            self.horizon[index],
            self.block[index],
            future_values,
            future_observed,
        )


def groups_of(series: Integers) -> dict[int, Integers]:
    """Rows (G, V) of the groups of each size V, keyed by V."""
    _, inverse, counts = np.unique(series, return_inverse=True, return_counts=True)
    order = np.argsort(inverse, kind="stable")
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    return {int(size): order[starts[counts == size][:, None] + np.arange(size)] for size in np.unique(counts)}
