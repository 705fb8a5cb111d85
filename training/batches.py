"""Batches for contiguous patch masking: scaled patches, flags, targets and weights, made of raw series."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toto2.scaler import CausalScaler
from training.draws import Array
from training.generator import VARIATES, SeriesGenerator

PATCH = 32
MIN_OBSERVATIONS = 8  # Positions that have seen fewer weigh nothing, and are scaled by their series' first eight.
TARGET_BOUND = 6.0  # In asinh space: 200 deviations.
MAX_SHARE = 0.4
MAX_SPAN = 16


@dataclass(frozen=True)
class Batch:
    """One step's input and target, float32. Position i sees patches up to i and answers for patch i + 1."""

    patches: Array  # (rows, patches, 32) asinh of the causally scaled values, zero where missing
    missing: Array  # (rows, patches, 32) 1.0 where missing or masked
    targets: Array  # (rows, patches, 32) the next patch in the scale of this one, asinh, clamped
    weights: Array  # (rows, patches, 32) 1.0 where the target counts
    members: NDArray[np.bool_]  # (rows, patches) False where nothing was ever observed: the patch is of no series
    partition: NDArray[np.int64]  # (rows,) variates of a block attend to each other where these agree


def training_batch(generator: SeriesGenerator, index: int, rows: int, patches: int) -> Batch:
    """Batch number `index` of the generator's stream, masked by spans of patches."""
    values, observed = generator.batch(index, rows, (patches + 1) * PATCH)
    rng = np.random.Generator(np.random.SFC64([generator.seed, 2, index]))
    return masked_batch(values, observed, span_masks(rng, rows, patches), partitions(rng, rows))


def masked_batch(
    values: Array, observed: NDArray[np.bool_], masked: NDArray[np.bool_], partition: NDArray[np.int64]
) -> Batch:
    """Scaled inputs and next-patch targets of `values` (rows, (patches + 1) * 32), with whole patches masked.

    observed (as values) says what exists, masked (rows, patches) what the model may not see.
    """
    rows, patches = masked.shape
    folded = values.reshape(rows, patches + 1, PATCH)
    exists = observed.reshape(rows, patches + 1, PATCH)
    seen = exists[:, :-1] & ~masked[..., None]
    statistics = CausalScaler(rows, MIN_OBSERVATIONS).read(folded[:, :-1].astype(np.float64), seen)
    scale = (1 / statistics.scale).astype(np.float32)[..., None]
    offset = (-statistics.loc / statistics.scale).astype(np.float32)[..., None]
    inputs = np.arcsinh(folded[:, :-1] * scale + offset) * seen
    targets = np.clip(np.arcsinh(folded[:, 1:] * scale + offset), -TARGET_BOUND, TARGET_BOUND)
    enough = seen.sum(axis=2).cumsum(axis=1) >= MIN_OBSERVATIONS
    # A masked patch stands for one to be forecast, which belongs to its series; a gap in the context does not.
    members = seen.any(axis=2) | masked
    weights = exists[:, 1:] & (enough & members)[..., None]
    return Batch(inputs, (~seen).astype(np.float32), targets, weights.astype(np.float32), members, partition)


def span_masks(rng: np.random.Generator, rows: int, patches: int) -> NDArray[np.bool_]:
    """Masked patches (rows, patches): a share drawn from U(0, 0.4), in spans of 1 to 16 patches, most of them short.

    Seven blocks in ten lose the same patches in all variates, as a forecast's horizon does; in the others each variate
    has spans of its own, as known covariates have.
    """
    masked = np.zeros((rows, patches), dtype=bool)
    for start in range(0, rows, VARIATES):
        alone = rng.random() < 0.3
        for row in range(start, start + VARIATES if alone else start + 1):
            wanted = rng.uniform(0, MAX_SHARE) * patches
            while masked[row].sum() < wanted:
                span = min(int(MAX_SPAN ** rng.random() + 0.5), max(int(wanted), 1))
                begin = int(rng.integers(1, patches))
                masked[row, begin : begin + span] = True
        if not alone:
            masked[start : start + VARIATES] = masked[start]
    return masked


def partitions(rng: np.random.Generator, rows: int) -> NDArray[np.int64]:
    """For each row its party within its block: half of the blocks whole, a third of single variates, the rest pairs."""
    options = np.array([[0, 0, 0, 0], [0, 1, 2, 3], [0, 0, 1, 1]])
    return options[rng.choice(3, rows // VARIATES, p=[0.5, 0.34, 0.16])].ravel()
