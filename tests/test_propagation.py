"""What later blocks inherit: the arithmetic, and bands that can be believed past the first block."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference import EMBEDDED_MODEL, QUANTILE_LEVELS, Engine, ForecastRequest
from toto2.network import MEDIAN
from toto2.propagation import SIDE, Propagation

NORMAL = np.array([NormalDist().inv_cdf(level) for level in QUANTILE_LEVELS])
STEPS = np.arange(512)


def band(spread: list[float], median: float = 0.0) -> np.ndarray:
    """Normal quantiles (1, patches, 32, 9) with these deviations, a patch each."""
    return np.broadcast_to(median + np.array(spread)[None, :, None, None] * NORMAL, (1, len(spread), 32, 9))


def spreads(quantiles: np.ndarray) -> np.ndarray:
    """Deviations of the first row's patches."""
    return quantiles[0, :, 0, 8] / NORMAL[8]


def test_a_random_walks_band_goes_on_growing() -> None:
    # Four patches a pass, one more to look ahead; given the medians, patch k after them has a deviation of √k.
    pass_of = band([float(np.sqrt(k)) for k in range(1, 6)])
    state = Propagation(np.array([4]))
    np.testing.assert_array_equal(state.widen(pass_of, 1, first=True), pass_of)
    second = spreads(state.widen(pass_of, 1, first=False))[:4]
    third = spreads(state.widen(pass_of[:, :4], 0, first=False))
    found, exact = np.concatenate((second, third)), np.sqrt(np.arange(5, 13))
    assert (found <= exact + 1e-12).all()
    assert (found >= 0.9 * exact).all()


def test_noise_that_medians_say_nothing_about_keeps_its_band() -> None:
    state = Propagation(np.array([2]))
    for index in range(20):
        answer = state.widen(band([1.0, 1.0, 1.0], index), 1, first=index == 0)
        np.testing.assert_allclose(answer, band([1.0, 1.0, 1.0], index))


def test_a_block_that_is_less_sure_than_the_pass_before_inherits_nothing() -> None:
    state = Propagation(np.array([2]))
    state.widen(band([1.0, 1.0, 1.0]), 1, first=True)
    np.testing.assert_allclose(state.widen(band([3.0, 3.0]), 0, first=False), band([3.0, 3.0]))


def test_spreads_are_root_mean_squares_over_a_patch() -> None:
    state, uneven = Propagation(np.array([1])), band([1.0, 1.0]).copy()
    uneven[:, 1, 8:] *= 3  # root mean square of the patch ahead: √7
    state.widen(uneven, 1, first=True)
    answer = state.widen(band([1.0]), 0, first=False)
    np.testing.assert_allclose(spreads(answer), np.hypot(1, np.sqrt(7) - 1 / np.sqrt(7)))


def test_a_random_walk_decoded_patch_by_patch_keeps_four_fifths_of_its_band() -> None:
    state, steps = Propagation(np.array([1])), np.arange(1, 65).reshape(1, 2, 32, 1)
    for index in range(200):
        answer = state.widen(np.sqrt(steps) * NORMAL, 1, first=index == 0)
    last = answer[0, 0, -1, 8] / NORMAL[8]
    assert last / np.sqrt(200 * 32) == pytest.approx(0.81, abs=0.01)


def test_rows_inherit_their_own_and_shorter_ones_leave() -> None:
    state = Propagation(np.array([1, 2, 1]))
    lost, noise = band([1.0, 5.0, 9.0]), band([1.0, 1.0, 1.0])
    state.widen(np.concatenate((lost, lost, noise)), 2, first=True)
    answer = state.widen(np.concatenate((noise, noise)), 0, first=False)
    np.testing.assert_allclose(spreads(answer[:1]), np.hypot(1, 5 - 1 / 5))
    np.testing.assert_allclose(spreads(answer[1:]), np.hypot(1, 9 - 1 / 9))


@given(seed=st.integers(0, 10_000), passes=st.integers(2, 6), exponent=st.integers(-100, 100))
def test_any_quantiles_stay_in_order_around_their_medians_and_never_narrow(
    seed: int, passes: int, exponent: int
) -> None:
    rng, state = np.random.default_rng(seed), Propagation(np.array([2, 2]))
    for index in range(passes):
        scale = 10.0 ** (exponent + rng.integers(-8, 8)) * rng.integers(0, 2, (2, 3, 32, 1))
        given_quantiles = np.sort(rng.standard_t(2, (2, 3, 32, 9)) * scale, axis=-1)
        answer = state.widen(given_quantiles, 2, first=index == 0)
        assert np.isfinite(answer).all()
        assert (answer[..., 1:] >= answer[..., :-1]).all()
        np.testing.assert_array_equal(answer[..., MEDIAN], given_quantiles[..., MEDIAN])
        slack = 1e-12 * np.abs(given_quantiles).max()
        assert (answer[..., :MEDIAN] <= given_quantiles[..., :MEDIAN] + slack).all()
        assert (answer[..., MEDIAN:] >= given_quantiles[..., MEDIAN:] - slack).all()


@pytest.fixture(scope="module")
def nano() -> Engine:
    return Engine.load(EMBEDDED_MODEL, device="cpu", threads=1)


@pytest.fixture(scope="module")
def published() -> Engine:
    return Engine.load(EMBEDDED_MODEL, device="cpu", threads=1, propagate_uncertainty=False)


def quantiles(engine: Engine, series: np.ndarray, horizon: int, block: int | None) -> np.ndarray:
    """(9, variates, horizon)"""
    (answer,) = engine.forecast([ForecastRequest(np.atleast_2d(series), horizon, block)])
    return answer.quantiles


@pytest.mark.parametrize("block", [32, 96])
def test_medians_and_the_first_block_are_those_of_published_decoding(
    nano: Engine, published: Engine, block: int
) -> None:
    walk = np.random.default_rng(1).normal(size=(3, 300)).cumsum(axis=1)
    walk[1, 50:80] = np.nan
    ours, theirs = (quantiles(engine, walk, 250, block) for engine in (nano, published))
    deviation = np.nanstd(walk, axis=1)[:, None]
    assert (np.abs(ours[MEDIAN] - theirs[MEDIAN]) <= 1e-4 * deviation).all()
    assert (np.abs(ours - theirs)[:, :, :block] <= 1e-4 * deviation).all()
    width = [answer[8] - answer[0] for answer in (ours, theirs)]
    assert (width[0][:, block:] > 1.1 * width[1][:, block:]).mean() > 0.9


def test_what_is_inherited_stays_within_the_cap(nano: Engine) -> None:
    answer = quantiles(nano, np.sin(STEPS / 5), 4096, 32)  # in so many blocks its medians reach the cap themselves
    assert 10_000 < np.abs(answer).max() / np.sin(STEPS / 5).std() < 10_020


@pytest.mark.parametrize("covariates", [0, 1])
def test_two_blocks_are_made_of_published_passes(nano: Engine, published: Engine, covariates: int) -> None:
    walk = np.random.default_rng(2).normal(size=(2, 200)).cumsum(axis=1)
    known = np.sin(np.arange(328) / 7)[None] if covariates else None

    def ask(engine: Engine, horizon: int) -> np.ndarray:
        future = None if known is None else known[:, : 200 + horizon]
        block = None if horizon < 128 else 64
        (answer,) = engine.forecast([ForecastRequest(walk, horizon, block, known_covariates=future)])
        return answer.quantiles

    ahead, given_medians = ask(published, 96)[:, :, 64:], ask(published, 128)[:, :, 64:]
    whole, part = (
        np.sqrt(np.square(patch - patch[MEDIAN]).mean(axis=2, keepdims=True))
        for patch in (ahead, given_medians[:, :, :32])
    )
    assert (part[[0, 8]] < whole[[0, 8]]).all()
    hidden = np.where(part < whole, whole - part**2 / np.where(whole > 0, whole, 1), 0)
    median = given_medians[MEDIAN]
    expected = median + SIDE[:, None, None] * np.hypot(given_medians - median, hidden)
    deviation = walk.std(axis=1)[:, None]
    assert (np.abs(ask(nano, 128)[:, :, 64:] - expected) <= 1e-4 * deviation).all()


PERIODS = (10, 12.3, 16.7, 29, 10 * np.pi, 33, 37, 55.5, 73, 100, 131)
OTHERS = {
    "two cycles": np.sin(STEPS / 5) + np.sin(STEPS / 17),
    "square": np.sign(np.sin(2 * np.pi * STEPS / 37.3)),
    "saw": (STEPS / 41.7) % 1,
    "line": STEPS.astype(float),
    "step": (STEPS > 300).astype(float),
    "spikes": (STEPS % 50 == 0).astype(float),
}
WAVES = {f"sine {period:.1f}": np.sin(2 * np.pi * STEPS / period) for period in PERIODS} | OTHERS


@pytest.mark.slow
@pytest.mark.parametrize("block", [32, 64, 96, 256, 768])
def test_the_band_does_not_fall_where_a_block_begins(nano: Engine, block: int) -> None:
    horizon = min(1024, 6 * block)
    requests = [ForecastRequest(10 + wave[None], horizon, block) for wave in WAVES.values()]
    for name, answer in zip(WAVES, nano.forecast(requests), strict=True):
        width = (answer.quantiles[8] - answer.quantiles[0])[0]
        for edge in range(block, horizon, block):
            assert width[edge] * 4 >= width[edge - 1], (name, edge)


@pytest.mark.slow
def test_noise_keeps_its_band_and_a_random_walks_grows_over_thirty_blocks(nano: Engine) -> None:
    noise = np.random.default_rng(3).normal(size=512)
    for series, least, most in ((noise, 0.7, 1.4), (noise.cumsum(), 2.0, 8.0)):
        answer = quantiles(nano, series, 960, 32)[:, 0]
        width = (answer[8] - answer[0]).reshape(-1, 32).mean(axis=1)
        assert least <= width[-1] / width[0] <= most
