"""The causal scaler equals a step by step Welford recurrence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toto2.scaler import SCALE_FLOOR, CausalScaler


def welford(values: np.ndarray, observed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(mean, deviation) after every step of one row."""
    count, mean, squares = 0, 0.0, 0.0
    means, deviations = [], []
    for value, seen in zip(values, observed, strict=True):
        if seen:
            count += 1
            delta = value - mean
            mean += delta / count
            squares += delta * (value - mean)
        means.append(mean)
        deviations.append(max(np.sqrt(squares / max(count - 1, 1)), SCALE_FLOOR))
    return np.array(means), np.array(deviations)


@given(
    seed=st.integers(0, 2**32 - 1),
    level=st.sampled_from([0.0, 1.0, -1e6, 1e9]),
    missing=st.floats(0, 0.9),
    patches=st.integers(1, 6),
)
def test_statistics_are_those_of_each_patchs_last_step(seed: int, level: float, missing: float, patches: int) -> None:
    rng = np.random.default_rng(seed)
    values = level + rng.normal(size=(2, patches, 8))
    observed = rng.random((2, patches, 8)) >= missing
    statistics = CausalScaler(2).read(np.where(observed, values, 0.0), observed)
    for row in range(2):
        means, deviations = welford(values[row].ravel(), observed[row].ravel())
        np.testing.assert_allclose(statistics.loc[row], means[7::8], rtol=1e-12, atol=1e-9)
        np.testing.assert_allclose(statistics.scale[row], deviations[7::8], rtol=1e-6)


@given(seed=st.integers(0, 2**32 - 1), cut=st.integers(1, 5))
def test_reading_in_two_parts_is_reading_at_once(seed: int, cut: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(3, 6, 4)).cumsum(axis=1)
    observed = rng.random((3, 6, 4)) > 0.3
    whole = CausalScaler(3).read(values, observed)
    parts = CausalScaler(3)
    parts.read(values[:, :cut], observed[:, :cut])
    later = parts.read(values[:, cut:], observed[:, cut:])
    np.testing.assert_allclose(later.loc, whole.loc[:, cut:], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(later.scale, whole.scale[:, cut:], rtol=1e-9)


def test_a_patch_with_few_observations_takes_the_first_ones_statistics() -> None:
    values = np.arange(16.0).reshape(1, 4, 4)
    observed = np.ones_like(values, dtype=bool)
    statistics = CausalScaler(1, fallback_min_obs=8).read(values, observed)
    assert statistics.loc[0, 0] == pytest.approx(np.arange(8.0).mean())
    assert statistics.scale[0, 0] == pytest.approx(np.arange(8.0).std(ddof=1))
    assert statistics.loc[0, 2] == pytest.approx(np.arange(12.0).mean())


def test_a_small_movement_on_a_large_level_keeps_its_deviation() -> None:
    values = (1e9 + np.sin(np.arange(4096) / 7)).reshape(1, 128, 32)
    statistics = CausalScaler(1).read(values, np.ones_like(values, dtype=bool))
    assert statistics.scale[0, -1] == pytest.approx(np.std(values, ddof=1), rel=1e-6)
