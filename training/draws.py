"""Random draws that the families of synthetic series are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import fft, signal  # type: ignore[import-untyped]

Array = NDArray[np.float32]

SHAPE_SAMPLES = 1024
# Cycles that calendars and clocks give: quarters, weeks, months, hours, half hours, ten and five minutes.
CALENDAR_PERIODS = np.array([4, 5, 6, 7, 8, 10, 12, 13, 14, 16, 20, 24, 26, 28, 30, 36, 42, 48, 52, 52.18, 60, 72])
CALENDAR_WEIGHTS = np.array([7, 1, 2, 7, 2, 1, 13, 1, 1, 1, 1, 13, 1, 1, 2, 1, 1, 7, 2, 4, 3, 2], dtype=float)
LONG_PERIODS = np.array([84, 90, 96, 120, 144, 168, 180, 240, 288, 336, 365.25, 480, 672])
LONG_WEIGHTS = np.array([1, 1, 4, 1, 3, 5, 1, 1, 3, 3, 2, 1, 2], dtype=float)


def unit(values: Array) -> Array:
    """Rows shifted and scaled to mean 0 and deviation 1; a constant row becomes zeros. Shape (rows, steps)."""
    centred = values - values.mean(axis=1, keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(axis=1, keepdims=True))
    scaled: Array = centred / np.maximum(deviation, 1e-6)
    return scaled


class ShapeBank:
    """Seasonal shapes: one cycle each, as `SHAPE_SAMPLES` samples of mean 0 and deviation 1.

    A looked-up shape costs the same whatever its number of harmonics, which is what lets the generator run beside
    training on one thread.
    """

    def __init__(self, rng: np.random.Generator, count: int = 1024) -> None:
        makers = (_harmonics, _sines, _bumps, _saws, _squares, _warped)
        shares = (0.38, 0.16, 0.20, 0.09, 0.09, 0.08)
        sizes = rng.multinomial(count, shares)
        tables = [make(rng, size) for make, size in zip(makers, sizes, strict=True)]
        self.table = unit(np.concatenate(tables).astype(np.float32))
        self.sines = slice(int(sizes[0]), int(sizes[0] + sizes[1]))

    def __len__(self) -> int:
        return len(self.table)

    def look_up(self, which: NDArray[np.int64], phase: Array) -> Array:
        """Values of shape `which` (rows, 1) or (rows, steps) at `phase` in cycles (rows, steps)."""
        sample = (phase * SHAPE_SAMPLES).astype(np.int32) & (SHAPE_SAMPLES - 1)
        values: Array = self.table.ravel()[sample + (which * SHAPE_SAMPLES).astype(np.int32)]
        return values


def _cycle() -> NDArray[np.float64]:
    return (np.arange(SHAPE_SAMPLES) + 0.5)[None] / SHAPE_SAMPLES


def _harmonics(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    order = np.arange(1, 17)[None]
    fall = order ** -rng.uniform(0.3, 2.2, (count, 1)) * (order <= rng.integers(2, 17, (count, 1)))
    spectrum = np.zeros((count, SHAPE_SAMPLES // 2 + 1), dtype=complex)
    spectrum[:, 1:17] = fall * (rng.normal(size=(count, 16)) + 1j * rng.normal(size=(count, 16)))
    table: NDArray[np.float64] = fft.irfft(spectrum, SHAPE_SAMPLES)
    return table


def _sines(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    table: NDArray[np.float64] = np.sin(2 * np.pi * (_cycle() + rng.random((count, 1))))
    return table


def _bumps(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    table = np.zeros((count, SHAPE_SAMPLES))
    for number in range(3):  # One to three peaks a cycle, as loads, visits and tides have.
        width = np.exp(rng.uniform(np.log(1), np.log(80), (count, 1)))
        height = rng.uniform(-0.3, 1, (count, 1)) if number else np.ones((count, 1))
        height = height * (rng.random((count, 1)) < (1, 0.7, 0.4)[number])
        table += height * np.exp(width * (np.cos(2 * np.pi * (_cycle() - rng.random((count, 1)))) - 1))
    return table


def _saws(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    rise = np.where(rng.random((count, 1)) < 0.5, rng.choice([0.0, 0.5, 1.0], (count, 1)), rng.random((count, 1)))
    place = (_cycle() + rng.random((count, 1))) % 1
    up, down = place / np.maximum(rise, 1e-9), (1 - place) / np.maximum(1 - rise, 1e-9)
    table: NDArray[np.float64] = np.minimum(up, down)
    return table


def _squares(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    place = (_cycle() + rng.random((count, 1))) % 1
    duty = np.where(rng.random((count, 1)) < 0.4, 0.5, rng.uniform(0.08, 0.92, (count, 1)))
    edge = np.where(rng.random((count, 1)) < 0.6, 1e-4, rng.uniform(0.01, 0.12, (count, 1)))
    table: NDArray[np.float64] = np.clip(np.minimum(place, duty - place) / edge, -1, 1)
    return table


def _warped(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    angle = 2 * np.pi * (_cycle() + rng.random((count, 1)))
    bent = angle + rng.uniform(-0.95, 0.95, (count, 1)) * np.sin(angle + rng.uniform(0, 6.3, (count, 1)))
    table: NDArray[np.float64] = np.exp(rng.uniform(0, 1.5, (count, 1)) * np.sin(bent))
    table[:1] += np.sin(bent[:1])
    return table


class Draw:
    """A random generator, a bank of shapes and what is common to the families. All series are (rows, steps)."""

    def __init__(self, rng: np.random.Generator, bank: ShapeBank) -> None:
        self.rng, self.bank = rng, bank

    def uniform(self, low: float, high: float, rows: int) -> Array:
        """Uniform numbers, (rows, 1)."""
        return self.rng.uniform(low, high, (rows, 1)).astype(np.float32)

    def log_uniform(self, low: float, high: float, rows: int) -> Array:
        """Numbers whose logarithm is uniform, (rows, 1)."""
        return np.exp(self.rng.uniform(np.log(low), np.log(high), (rows, 1))).astype(np.float32)

    def chance(self, probability: float, rows: int) -> Array:
        """1.0 with the probability, else 0.0, (rows, 1)."""
        return (self.rng.random((rows, 1)) < probability).astype(np.float32)

    def pick(
        self,
        options: Sequence[float] | NDArray[np.float64],
        rows: int,
        weights: NDArray[np.float64] | Sequence[float] | None = None,
    ) -> Array:
        """One of the options a row, (rows, 1)."""
        share = None if weights is None else np.asarray(weights, dtype=float) / np.sum(weights)
        return self.rng.choice(np.asarray(options, dtype=np.float32), (rows, 1), p=share)

    def normal(self, rows: int, steps: int) -> Array:
        """Standard normal noise."""
        return self.rng.standard_normal((rows, steps), dtype=np.float32)

    def heavy(self, rows: int, steps: int) -> Array:
        """Noise of deviation about 1 whose tails differ from row to row, from normal to Student's t at 3 degrees."""
        noise = self.normal(rows, steps)
        tails = self.chance(0.3, rows)[:, 0] > 0
        if tails.any():
            squares = self.rng.standard_gamma(1.5, (int(tails.sum()), steps), dtype=np.float32)
            noise[tails] /= np.sqrt(np.maximum(squares, 0.02)) * 1.4
        return noise

    def periods(self, rows: int, steps: int, integral: bool = False) -> Array:
        """Cycle lengths in steps, from 4 to 2/5 of the series or 700: most from calendars, the rest free, (rows, 1)."""
        common = self.pick(CALENDAR_PERIODS, rows, CALENDAR_WEIGHTS)
        reach = max(steps / 2.5, 100) >= LONG_PERIODS
        long = self.pick(LONG_PERIODS[reach], rows, LONG_WEIGHTS[reach])
        free = self.log_uniform(4, max(min(steps / 2.5, 700), 16), rows)
        kind = self.rng.random((rows, 1))
        period = np.where(kind < 0.5, common, np.where(kind < 0.68, long, free)).astype(np.float32)
        return np.round(period) if integral else period

    def season(self, period: Array, steps: int, wander: float = 0.0) -> Array:
        """A cycle of a random shape, deviation about 1, with `period` (rows, 1); `wander` bends its phase."""
        rows = len(period)
        time = np.arange(steps, dtype=np.float32)[None]
        phase = time / period + self.uniform(0, 1, rows) + 8
        if wander:
            phase = phase + wander * self.power_noise(rows, steps, self.uniform(1.8, 2.6, rows))
        return self.bank.look_up(self.rng.integers(0, len(self.bank), (rows, 1)), phase)

    def slots(self, period: Array, steps: int) -> Array:
        """A cycle with a value of its own for each of `period` (rows, 1), whole, at most 64: months, weekdays."""
        rows = len(period)
        values = self.normal(rows, 64)
        drift = self.rng.integers(0, 64, (rows, 1))
        place = (np.arange(steps)[None] + drift) % period.astype(np.int64)
        return unit(np.take_along_axis(values, place, axis=1))

    def power_noise(self, rows: int, steps: int, exponent: Array) -> Array:
        """Noise with a spectrum of f**-exponent (rows, 1), of mean 0 and deviation 1."""
        length = fft.next_fast_len(steps + max(steps // 4, 32), real=True)
        frequency = np.log(np.fft.rfftfreq(length)[1:]).astype(np.float32)[None]
        return self._shaped(rows, steps, length, np.exp(-0.5 * exponent * frequency))

    def _shaped(self, rows: int, steps: int, length: int, amplitude: Array) -> Array:
        white = self.rng.standard_normal((rows, 2 * amplitude.shape[1]), dtype=np.float32).view(np.complex64)
        spectrum = np.concatenate([np.zeros((rows, 1), np.complex64), white * amplitude], axis=1)
        return unit(fft.irfft(spectrum, length, axis=1)[:, :steps])

    def process(self, rows: int, steps: int) -> Array:
        """A stationary Gaussian process with a kernel of one to three parts: squared exponential, Matern, periodic.

        Sampled through its spectral density on a circle longer than the series.
        """
        length = fft.next_fast_len(steps + max(steps // 4, 32), real=True)
        frequency = np.fft.rfftfreq(length)[1:].astype(np.float32)[None]
        power = np.zeros((rows, frequency.shape[1]), dtype=np.float32)
        for part in range(3):
            weight = self.log_uniform(0.1, 1, rows) * (1 if part == 0 else self.chance(0.5, rows))
            period = self.periods(rows, steps) * (1 if part < 2 else 2)
            cyclic = self.chance(0.35, rows)
            reach = np.where(cyclic > 0, period * self.log_uniform(1, 40, rows), self.log_uniform(3, steps, rows))
            order = np.round(self.uniform(0.6, 4.4, rows))
            # Distance to the nearest harmonic of the cycle; without a cycle, to zero.
            near = np.clip(np.round(frequency * period), 1, order) * cyclic
            distance = np.square((frequency - near / period) * reach * 6.28)
            smooth = self.chance(0.5, rows)
            density = np.where(smooth > 0, np.exp(-0.5 * distance), (1 + distance) ** -self.pick([1, 1.5, 2.5], rows))
            density *= np.where(near > 0, 1 / np.square(np.maximum(near, 1)), 1)
            power += weight * density / np.maximum(density.sum(axis=1, keepdims=True), 1e-9)
        return self._shaped(rows, steps, length, np.sqrt(power))

    def filtered(self, noise: Array, numerator: NDArray[np.floating], denominator: NDArray[np.floating]) -> Array:
        """Each row of `noise` through a linear filter of its own, at rest before; coefficients (rows, order)."""
        out = np.empty_like(noise)
        for row, (top, bottom) in enumerate(zip(numerator, denominator, strict=True)):
            out[row] = signal.lfilter(top, bottom, noise[row])
        return out
