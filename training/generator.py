"""The generator of synthetic batches: families in blocks of variates, shared signals, transforms, missing values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from training.draws import Array, Draw, ShapeBank, unit
from training.families import MIX

VARIATES = 4
MAX_LAG = 64
BANK_LIFE = 64  # Batches that share a bank of seasonal shapes.


class SeriesGenerator:
    """Batches of series, each a function of (seed, index, rows, steps) alone, whatever was asked for before."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._bank: tuple[int, ShapeBank] | None = None

    def batch(self, index: int, rows: int, steps: int) -> tuple[Array, NDArray[np.bool_]]:
        """Values (rows, steps), finite, and which of them are observed; rows come in blocks of `VARIATES`.

        Raises ValueError where `rows` is no multiple of `VARIATES`.
        """
        if rows % VARIATES:
            raise ValueError(f"rows must be a multiple of {VARIATES}, found {rows}")
        draw = Draw(np.random.Generator(np.random.SFC64([self.seed, 1, index])), self._shapes(index))
        with np.errstate(over="ignore", under="ignore"):
            series = _families(draw, rows, steps + MAX_LAG)
            series = _transform(draw, _mix(draw, series))
            series = _share(draw, series, steps)
        values = np.nan_to_num(series, nan=0.0, posinf=1e4, neginf=-1e4)
        return values, _observed(draw, rows, steps)

    def _shapes(self, index: int) -> ShapeBank:
        number = index // BANK_LIFE
        if self._bank is None or self._bank[0] != number:
            self._bank = number, ShapeBank(np.random.Generator(np.random.SFC64([self.seed, 0, number])))
        return self._bank[1]


def _families(draw: Draw, rows: int, steps: int) -> Array:
    """Rows of the mix; in half of the blocks all variates come from one family, as in real collections."""
    shares = np.array(list(MIX.values())) / sum(MIX.values())
    kinds = draw.rng.choice(len(MIX), (rows // VARIATES, VARIATES), p=shares)
    kinds = np.where(draw.rng.random((len(kinds), 1)) < 0.5, kinds[:, :1], kinds).ravel()
    series = np.empty((rows, steps), np.float32)
    for kind, family in enumerate(MIX):
        members = np.nonzero(kinds == kind)[0]
        if len(members):
            series[members] = family(draw, len(members), steps)
    return series


def _mix(draw: Draw, series: Array) -> Array:
    """A sixth of the rows take up a part of another row."""
    rows = len(series)
    taking = np.nonzero(draw.rng.random(rows) < 0.16)[0]
    if len(taking):
        others = draw.rng.integers(0, rows, len(taking))
        series[taking] = unit(series[taking]) + draw.log_uniform(0.1, 1.5, len(taking)) * unit(series[others])
    return series


def _transform(draw: Draw, series: Array) -> Array:
    """A third of the rows are bent, flipped, rounded, clipped, held, censored or made noisy."""
    kind = draw.rng.choice(9, len(series), p=[0.64, 0.05, 0.12, 0.06, 0.03, 0.02, 0.02, 0.02, 0.04])
    for number, change in enumerate((_bend, _flip, _round, _clip, _hold, _interpolate, _censor, _soften), start=1):
        members = np.nonzero(kind == number)[0]
        if len(members):
            series[members] = change(draw, unit(series[members]))
    return series


def _bend(draw: Draw, series: Array) -> Array:
    return np.exp(np.clip(series * draw.uniform(0.2, 1.2, len(series)), -8, 8))


def _flip(draw: Draw, series: Array) -> Array:
    return -series


def _round(draw: Draw, series: Array) -> Array:
    grid = draw.log_uniform(2, 60, len(series))
    return (np.round(series * grid) / grid).astype(np.float32)


def _clip(draw: Draw, series: Array) -> Array:
    bound = draw.uniform(0.3, 2.5, len(series))
    return np.where(draw.chance(0.5, len(series)) > 0, np.minimum(series, bound), np.maximum(series, -bound))


def _hold(draw: Draw, series: Array) -> Array:
    span = draw.pick([2, 3, 4, 6, 7, 12, 24], len(series)).astype(np.int64)
    steps = np.arange(series.shape[1])[None]
    return np.take_along_axis(series, steps // span * span, axis=1)


def _interpolate(draw: Draw, series: Array) -> Array:
    span = draw.pick([2, 3, 4, 6, 12, 24], len(series)).astype(np.int64)
    steps = np.arange(series.shape[1])[None]
    low = steps // span * span
    high = np.minimum(low + span, series.shape[1] - 1)
    part = ((steps - low) / span).astype(np.float32)
    return np.take_along_axis(series, low, 1) * (1 - part) + np.take_along_axis(series, high, 1) * part


def _censor(draw: Draw, series: Array) -> Array:
    return np.maximum(series - draw.uniform(-0.5, 1, len(series)), 0)


def _soften(draw: Draw, series: Array) -> Array:
    noise = draw.normal(*series.shape) * draw.log_uniform(0.02, 0.6, len(series))
    return series + noise * np.where(draw.chance(0.5, len(series)) > 0, np.abs(series), 1)


def _share(draw: Draw, series: Array, steps: int) -> Array:
    """Two fifths of the blocks share a signal, with weights and lags; the lag of the source makes it lead or follow."""
    blocks = series.reshape(-1, VARIATES, series.shape[1])
    sharing = draw.rng.random(len(blocks)) < 0.4
    lagged = draw.rng.random((len(blocks), VARIATES)) < 0.5
    lags = draw.rng.integers(0, MAX_LAG + 1, (len(blocks), VARIATES)) * lagged
    weights = draw.rng.uniform(0.3, 1.0, (len(blocks), VARIATES)).astype(np.float32)
    signs = draw.rng.choice(np.array([1.0, 1.0, -1.0], np.float32), (len(blocks), VARIATES))
    out = np.ascontiguousarray(blocks[:, :, MAX_LAG:])
    for block in np.nonzero(sharing)[0]:
        scaled = unit(blocks[block])
        for variate in range(VARIATES):
            lag, weight = int(lags[block, variate]), weights[block, variate]
            source = scaled[0, MAX_LAG - lag : MAX_LAG - lag + steps] * signs[block, variate]
            own = np.sqrt(1 - weight * weight) * scaled[variate, MAX_LAG:] * (variate > 0)
            out[block, variate] = weight * source + own
    return out.reshape(-1, steps)


def _observed(draw: Draw, rows: int, steps: int) -> NDArray[np.bool_]:
    """False at padding in front (a block's contexts have any length), late starts, gaps and lost points."""
    rng = draw.rng
    seen = np.ones((rows, steps), dtype=bool)
    time = np.arange(steps)
    pad = np.where(rng.random(rows // VARIATES) < 0.5, rng.integers(0, 32, rows // VARIATES), 0)
    start = np.repeat(pad, VARIATES)
    late = rng.random(rows) < 0.05
    start = np.where(late, rng.integers(0, max(steps // 2, 1), rows), start)
    seen &= time[None] >= start[:, None]
    lossy = np.nonzero(rng.random(rows) < 0.07)[0]
    seen[lossy] &= rng.random((len(lossy), steps)) >= rng.uniform(0.01, 0.35, (len(lossy), 1))
    for row in np.nonzero(rng.random(rows) < 0.08)[0]:
        for _ in range(int(rng.integers(1, 5))):
            length = int(np.exp(rng.uniform(np.log(3), np.log(max(steps / 8, 4)))))
            begin = int(rng.integers(0, steps))
            seen[row, begin : begin + length] = False
    weekly = np.nonzero(rng.random(rows) < 0.015)[0]
    period = rng.choice([7, 24, 168], (len(weekly), 1))
    seen[weekly] &= (time[None] + rng.integers(0, 168, (len(weekly), 1))) % period < period * rng.uniform(
        0.6, 0.95, (len(weekly), 1)
    )
    return seen
