"""Series made ready for the network: normalised, laid out in patches, and filled where it looks regardless.

Normalisation is per variate, in float64, before anything is float32, and undone in float64 after: a small
movement on a large level keeps its precision, and a forecast scales and shifts with its series.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from toto2.scaler import Bools, Floats

LARGEST = np.finfo(np.float64).max


@dataclass(frozen=True)
class Normalisation:
    """value = (origin + loc + scale·z)·2^exponent, each (rows,); a constant variate has scale 0."""

    exponent: Floats
    origin: Floats
    loc: Floats
    scale: Floats

    def undo(self, z: Floats) -> Floats:
        """Values of z (…, rows, steps), finite; order is kept."""
        offset = self.origin + self.loc
        with np.errstate(over="ignore"):
            scaled = offset[:, None] + self.scale[:, None] * z
            return np.clip(np.ldexp(scaled, self.exponent[:, None].astype(np.int32)), -LARGEST, LARGEST)


def normalise(values: Floats) -> tuple[Floats, Normalisation]:
    """z (rows, steps) of values (rows, steps; NaN missing), each row with mean 0 and deviation 1.

    A power of two, exact in binary, first brings the largest magnitude near one, so that neither 1e308 nor
    1e-300 overflows; then the first observed value is taken away, so that a movement of 1e-9 of the level
    keeps its digits. A row without an observed value is all NaN.
    """
    observed = np.isfinite(values)
    largest = np.where(observed, np.abs(values), 0.0).max(axis=1)
    exponent = np.frexp(largest)[1]
    scaled = np.ldexp(values, -exponent[:, None])
    origin = np.nan_to_num(scaled[np.arange(len(values)), observed.argmax(axis=1)])
    difference = scaled - origin[:, None]
    count = np.maximum(observed.sum(axis=1), 1)
    loc = np.where(observed, difference, 0.0).sum(axis=1) / count
    centred = difference - loc[:, None]
    scale = np.sqrt(np.where(observed, np.square(centred), 0.0).sum(axis=1) / count)
    constant = ~np.where(observed, difference, 0.0).any(axis=1)
    loc, scale = np.where(constant, 0.0, loc), np.where(constant, 0.0, scale)
    z = centred / np.where(scale > 0, scale, 1.0)[:, None]
    return z, Normalisation(exponent.astype(np.float64), origin, loc, scale)


def in_patches(values: Floats, patch: int, patches: int) -> tuple[Floats, Bools]:
    """Values (rows, patches, patch), zero where missing, right-aligned, and where they are observed."""
    rows, steps = values.shape
    padded = np.full((rows, patches * patch), np.nan)
    padded[:, patches * patch - steps :] = values
    observed = np.isfinite(padded)
    shape = (rows, patches, patch)
    return np.where(observed, padded, 0.0).reshape(shape), observed.reshape(shape)


def fill_last_patch(values: Floats, observed: Bools) -> None:
    """Fill, in place, what is missing in the last patch of values (rows, patches, patch), and call it observed.

    The network reads that patch as observed, so a missing value takes the last observed one before it, or
    the first after it where there is none before: never zero. Every row must have an observed value.
    """
    patch = values.shape[2]
    for row in np.flatnonzero(~observed[:, -1].all(axis=-1)):
        flat = values[row].ravel()
        seen = np.flatnonzero(observed[row])
        steps = np.arange(flat.size - patch, flat.size)
        before = np.searchsorted(seen, steps, side="right") - 1
        values[row, -1] = flat[seen[np.maximum(before, 0)]]
    observed[:, -1] = True
