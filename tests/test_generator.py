"""The generator of synthetic series and the batches made of them."""

from __future__ import annotations

import numpy as np
import pytest

from training.batches import MIN_OBSERVATIONS, PATCH, masked_batch, partitions, span_masks, training_batch
from training.draws import Draw, ShapeBank, unit
from training.families import MIX, Family
from training.generator import VARIATES, SeriesGenerator


@pytest.fixture(scope="module")
def draw() -> Draw:
    rng = np.random.default_rng(3)
    return Draw(rng, ShapeBank(rng, 64))


def test_a_batch_depends_on_seed_and_index_alone() -> None:
    fresh, used = SeriesGenerator(5), SeriesGenerator(5)
    for index in (70, 2, 131):
        used.batch(index, 8, 256)
    for index in (2, 70):
        values, observed = fresh.batch(index, 8, 256)
        again, again_observed = used.batch(index, 8, 256)
        np.testing.assert_array_equal(values, again)
        np.testing.assert_array_equal(observed, again_observed)


def test_seeds_and_indices_give_different_series() -> None:
    generator = SeriesGenerator(5)
    first = generator.batch(0, 8, 256)[0]
    assert not np.array_equal(first, generator.batch(1, 8, 256)[0])
    assert not np.array_equal(first, SeriesGenerator(6).batch(0, 8, 256)[0])


@pytest.mark.parametrize("index", range(6))
def test_series_are_finite_float32(index: int) -> None:
    values, observed = SeriesGenerator(1).batch(index, 32, 1056)
    assert values.dtype == np.float32
    assert values.shape == observed.shape == (32, 1056)
    assert np.isfinite(values).all()
    assert 0.8 < observed.mean() <= 1


def test_rows_that_do_not_fill_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 4, found 6"):
        SeriesGenerator(1).batch(0, 6, 256)


@pytest.mark.parametrize("family", MIX, ids=lambda family: family.__name__)
@pytest.mark.parametrize("rows", [1, 9])
def test_a_family_makes_the_rows_and_steps_asked_for(draw: Draw, family: Family, rows: int) -> None:
    made = family(draw, rows, 320)
    assert made.shape == (rows, 320)
    assert made.dtype == np.float32
    assert np.isfinite(made).all()


def test_a_season_repeats_after_its_period(draw: Draw) -> None:
    period = np.array([[24.0], [7.0], [48.0]], np.float32)
    made = draw.season(period, 480)
    for row, steps in zip(made, (24, 7, 48), strict=True):
        assert np.abs(row[steps:] - row[:-steps]).max() < 0.05 * np.ptp(row)


def test_shapes_of_the_bank_have_mean_zero_and_deviation_one() -> None:
    table = ShapeBank(np.random.default_rng(0), 64).table
    np.testing.assert_allclose(table.mean(axis=1), 0, atol=1e-4)
    np.testing.assert_allclose(table.std(axis=1), 1, atol=1e-3)


def test_a_constant_row_becomes_zeros() -> None:
    np.testing.assert_array_equal(unit(np.full((2, 10), 7, np.float32)), 0)


def test_some_blocks_share_a_signal_and_others_do_not() -> None:
    values, _ = SeriesGenerator(2).batch(0, 128, 1024)
    blocks = [block for block in values.reshape(-1, VARIATES, 1024) if block.std(axis=1).min() > 0]
    strongest = [np.abs(np.asarray(np.corrcoef(block))[0, 1:]).max() for block in blocks]
    assert np.mean(np.array(strongest) > 0.9) > 0.05
    assert np.mean(np.array(strongest) < 0.5) > 0.2


def test_masks_are_spans_of_whole_patches_of_a_share_up_to_two_fifths() -> None:
    masked = span_masks(np.random.default_rng(0), 400, 32)
    assert not masked[:, 0].any()
    shares = masked.mean(axis=1)
    assert 0.15 < shares.mean() < 0.3
    assert shares.max() < 0.4 + 16 / 32
    blocks = masked.reshape(-1, VARIATES, 32)
    together = (blocks == blocks[:, :1]).all(axis=(1, 2)).mean()
    assert 0.6 < together < 0.85


def test_a_masked_patch_hides_its_values_and_keeps_its_target() -> None:
    values = np.random.default_rng(0).normal(size=(4, 5 * PATCH)).astype(np.float32)
    observed = np.ones_like(values, dtype=bool)
    masked = np.zeros((4, 4), dtype=bool)
    masked[:, 2] = True
    batch = masked_batch(values, observed, masked, np.zeros(4, np.int64))
    other = values.copy()
    other[:, 2 * PATCH : 3 * PATCH] += 100
    changed = masked_batch(other, observed, masked, np.zeros(4, np.int64))
    np.testing.assert_array_equal(batch.patches, changed.patches)
    assert (batch.missing[:, 2] == 1).all()
    assert batch.members.all()
    assert not np.allclose(batch.targets[:, 1], changed.targets[:, 1])
    np.testing.assert_array_equal(batch.targets[:, 2:], changed.targets[:, 2:])


def test_targets_are_the_next_patch_in_the_scale_of_this_one() -> None:
    values = np.random.default_rng(1).normal(3, 2, size=(4, 4 * PATCH)).astype(np.float32)
    nothing = np.zeros((4, 3), dtype=bool)
    batch = masked_batch(values, np.ones_like(values, dtype=bool), nothing, np.zeros(4, np.int64))
    seen = values[0, : 2 * PATCH].astype(np.float64)
    expected = np.arcsinh((values[0, 2 * PATCH : 3 * PATCH] - seen.mean()) / seen.std(ddof=1))
    np.testing.assert_allclose(batch.targets[0, 1], expected, atol=1e-4)
    np.testing.assert_allclose(
        batch.patches[0, 1], np.arcsinh((values[0, PATCH : 2 * PATCH] - seen.mean()) / seen.std(ddof=1)), atol=1e-4
    )


def test_positions_with_too_little_to_see_weigh_nothing() -> None:
    values = np.random.default_rng(1).normal(size=(4, 4 * PATCH)).astype(np.float32)
    observed = np.ones_like(values, dtype=bool)
    observed[0, : PATCH - MIN_OBSERVATIONS + 1] = False
    observed[1, PATCH : 2 * PATCH] = False
    batch = masked_batch(values, observed, np.zeros((4, 3), dtype=bool), np.zeros(4, np.int64))
    assert (batch.weights[0, 0] == 0).all()
    assert (batch.weights[0, 1] == 1).all()
    assert (batch.weights[1, 0] == 0).all()  # The target is missing.
    assert (batch.weights[1, 1] == 0).all()  # A gap belongs to no series.
    assert not batch.members[1, 1]
    assert (batch.weights[2:] == 1).all()


def test_a_training_batch_is_repeatable_and_bounded() -> None:
    first, again = (training_batch(SeriesGenerator(4), 3, 8, 32) for _ in range(2))
    np.testing.assert_array_equal(first.patches, again.patches)
    np.testing.assert_array_equal(first.targets, again.targets)
    assert np.abs(first.targets).max() <= 6
    assert set(np.unique(first.weights)) <= {0.0, 1.0}
    assert (first.patches[first.missing == 1] == 0).all()


def test_variates_fall_into_whole_blocks_pairs_and_singles() -> None:
    found = {tuple(block) for block in partitions(np.random.default_rng(0), 400).reshape(-1, VARIATES)}
    assert found == {(0, 0, 0, 0), (0, 1, 2, 3), (0, 0, 1, 1)}
