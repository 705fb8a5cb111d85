"""The engine: every number of an answer can be trusted, alone and in company."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference import EMBEDDED_MODEL, Engine, Forecast, ForecastRequest, UnusableRequest

TOLERANCE = 1e-4  # of the context's deviation
ENGINE: dict[str, Engine] = {}


@pytest.fixture(scope="module", autouse=True)
def engine() -> Engine:
    # Trained weights: random ones answer tens of deviations away, and rounding grows with the answer.
    ENGINE["nano"] = Engine.load(EMBEDDED_MODEL, "cpu", threads=1)
    return ENGINE["nano"]


def ask(target: object, horizon: int = 40, block: int | None = 768, **more: np.ndarray) -> Forecast:
    values = np.atleast_2d(np.asarray(target, dtype=np.float64))
    return ENGINE["nano"].forecast([ForecastRequest(values, horizon, block, **more)])[0]


def walk(variates: int, steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(variates, steps)).cumsum(axis=1)


def with_gaps(values: np.ndarray, share: float, seed: int = 1) -> np.ndarray:
    hidden = np.random.default_rng(seed).random(values.shape) < share
    hidden[:, values.shape[1] // 2] = False
    return np.where(hidden, np.nan, values)


def deviation(values: np.ndarray) -> np.ndarray:
    return np.maximum(np.nanstd(values, axis=1), 1e-300)[None, :, None]


def assert_sound(answer: Forecast, variates: int, horizon: int) -> None:
    assert answer.quantiles.shape == (9, variates, horizon)
    assert np.isfinite(answer.quantiles).all()
    assert (answer.quantiles[1:] >= answer.quantiles[:-1]).all()


shapes = {"variates": st.integers(1, 4), "steps": st.integers(1, 200), "seed": st.integers(0, 10_000)}


@given(
    **shapes,
    scale=st.floats(1e-12, 1e12),
    shift=st.floats(-1e3, 1e3),
    gaps=st.floats(0, 0.6),
    block=st.sampled_from([None, 32, 64]),
)
@settings(max_examples=60)
def test_a_forecast_scales_and_shifts_with_its_series(
    variates: int, steps: int, seed: int, scale: float, shift: float, gaps: float, block: int | None
) -> None:
    x = with_gaps(walk(variates, steps, seed), gaps, seed)
    plain = ask(x, 70, block)
    moved = ask(scale * (x + shift), 70, block)  # shift in units of the series: float64 can hold it
    expected = scale * (plain.quantiles + shift)
    assert (np.abs(moved.quantiles - expected) <= TOLERANCE * scale * deviation(x) + 1e-9 * np.abs(expected)).all()


@pytest.mark.parametrize("exponent", [-300, -200, -12, 0, 12, 200, 307])
def test_every_magnitude_of_a_double_is_forecast(exponent: int) -> None:
    x = np.sin(np.arange(300) / 9) + 1.2
    plain, scaled = ask(x), ask(x * 10.0**exponent)
    assert_sound(scaled, 1, 40)
    np.testing.assert_allclose(scaled.quantiles / 10.0**exponent, plain.quantiles, rtol=1e-3, atol=1e-3)


def test_the_widest_doubles_stay_finite() -> None:
    largest = np.finfo(np.float64).max
    assert_sound(ask([largest, -largest] * 40), 1, 40)
    assert_sound(ask([5e-324, 0.0] * 40), 1, 40)
    assert_sound(ask([[1.0] * 511 + [1e300], [0.0] * 511 + [5e-324]]), 2, 40)


@pytest.mark.parametrize("constant", [0.0, 1.0, -7.5, 0.1, 1e6, 1e12, 16_777_217.0, 1e308, 5e-324, 1_790_000_000.25])
@pytest.mark.parametrize("steps", [1, 5, 70])
def test_a_constant_forecasts_that_constant_exactly(constant: float, steps: int) -> None:
    assert (ask([constant] * steps, 100, 32).quantiles == constant).all()


def test_a_small_movement_on_a_large_level_is_kept() -> None:
    x = np.sin(np.arange(512) / 5)
    plain, lifted = ask(x), ask(1e12 + 1000 * x)
    np.testing.assert_allclose((lifted.quantiles - 1e12) / 1000, plain.quantiles, atol=2e-3)


def test_epoch_seconds_keep_their_seconds() -> None:
    x = 60.0 * np.arange(400) + np.random.default_rng(3).integers(0, 5, 400)
    plain, lifted = ask(x), ask(x + 1_790_000_000)
    np.testing.assert_allclose(lifted.quantiles - 1_790_000_000, plain.quantiles, atol=TOLERANCE * x.std())


@given(**shapes, leading=st.integers(1, 100), block=st.sampled_from([None, 32]))
@settings(max_examples=40)
def test_leading_missing_values_change_nothing(
    variates: int, steps: int, seed: int, leading: int, block: int | None
) -> None:
    x = walk(variates, steps, seed)
    padded = np.concatenate((np.full((variates, leading), np.nan), x), axis=1)
    answer = ask(padded, 70, block)
    assert (answer.quantiles == ask(x, 70, block).quantiles).all()
    assert answer.context_length == steps
    assert not answer.truncated


@given(**shapes, gaps=st.floats(0, 0.9))
@settings(max_examples=40)
def test_reversing_the_variates_reverses_the_answer(variates: int, steps: int, seed: int, gaps: float) -> None:
    x = with_gaps(walk(variates, steps, seed), gaps, seed)
    difference = ask(x[::-1]).quantiles[:, ::-1] - ask(x).quantiles
    assert (np.abs(difference) <= TOLERANCE * deviation(x)).all()


@pytest.mark.parametrize("horizon", [1, 31, 64, 200])
def test_a_block_as_long_as_the_horizon_is_one_pass(horizon: int) -> None:
    x = walk(2, 100)
    one = ask(x, horizon, None).quantiles
    for block in (-(-horizon // 32) * 32, 4096):
        assert (ask(x, horizon, block).quantiles == one).all()


def test_a_missing_tail_takes_the_last_observed_value_not_zero() -> None:
    x = np.concatenate((np.full(300, 100.0), np.full(20, np.nan)))
    x[:300] += np.sin(np.arange(300))
    filled = np.concatenate((x[:300], np.full(20, x[299])))
    np.testing.assert_allclose(ask(x).quantiles, ask(filled).quantiles, atol=TOLERANCE * filled.std())


def test_a_gap_at_the_start_of_a_short_series_takes_the_first_value_after_it() -> None:
    other = np.arange(10.0)
    gap = np.array([np.nan, np.nan, 4, 5, 6, 7, 8, 9, 10, 11])
    filled = np.array([4, 4, 4, 5, 6, 7, 8, 9, 10, 11.0])
    answer, expected = ask([other, gap]), ask([other, filled])
    # What is filled counts as observed in the last patch; only the normalisation sees two values more.
    assert (np.abs(answer.quantiles - expected.quantiles) <= 0.5 * deviation(np.array([other, filled]))).all()


def test_one_observed_value_is_enough_wherever_it_stands() -> None:
    for position in (0, 17, 99):
        x = np.full((2, 100), np.nan)
        x[0, position], x[1] = 5.0, np.arange(100)
        answer = ask(x)
        assert_sound(answer, 2, 40)
        assert (answer.quantiles[:, 0] == 5.0).all()


def test_a_context_past_the_limit_is_cut_in_front_and_the_answer_says_so(small_checkpoint: Path) -> None:
    short = Engine.load(small_checkpoint, "cpu", max_context=128, threads=1)
    x = walk(1, 300)
    (cut,) = short.forecast([ForecastRequest(x, 32)])
    (same,) = short.forecast([ForecastRequest(x[:, -128:], 32)])
    assert (cut.context_length, cut.truncated) == (128, True)
    assert (same.context_length, same.truncated) == (128, False)
    np.testing.assert_array_equal(cut.quantiles, same.quantiles)


def test_a_variate_with_nothing_in_the_steps_used_is_named(small_checkpoint: Path) -> None:
    short = Engine.load(small_checkpoint, "cpu", max_context=64, threads=1)
    x = walk(3, 200)
    x[1, 100:] = np.nan
    with pytest.raises(UnusableRequest, match=r"variate 1 .* 64 steps") as error:
        short.forecast([ForecastRequest(x, 32)])
    assert error.value.variate == 1


requests = st.builds(
    lambda variates, steps, horizon, block, gaps, seed: ForecastRequest(
        with_gaps(10.0 ** (seed % 7 - 3) * walk(variates, steps, seed), gaps, seed), horizon, block
    ),
    variates=st.integers(1, 5),
    steps=st.integers(1, 300),
    horizon=st.integers(1, 200),
    block=st.sampled_from([None, 32, 64, 96, 768]),
    gaps=st.sampled_from([0.0, 0.0, 0.3, 0.8]),
    seed=st.integers(0, 10_000),
)


@given(batch=st.lists(requests, min_size=2, max_size=6))
@settings(max_examples=60)
def test_an_answer_is_the_same_alone_and_in_any_batch(batch: list[ForecastRequest]) -> None:
    together = ENGINE["nano"].forecast(batch)
    for request, answer in zip(batch, together, strict=True):
        (alone,) = ENGINE["nano"].forecast([request])
        bound = TOLERANCE * deviation(request.target)
        assert (np.abs(answer.quantiles - alone.quantiles) <= bound).all()
        assert_sound(answer, len(request.target), request.prediction_length)
        assert answer.context_length == alone.context_length


def test_a_batch_with_covariates_answers_each_as_alone() -> None:
    rng = np.random.default_rng(5)
    with_known = ForecastRequest(walk(2, 90), 80, 32, known_covariates=rng.normal(size=(2, 170)))
    with_past = ForecastRequest(walk(1, 200), 64, 32, past_covariates=walk(2, 200, 4))
    plain = ForecastRequest(walk(3, 150), 96, 64)
    batch = [with_known, with_past, plain]
    for request, answer in zip(batch, ENGINE["nano"].forecast(batch), strict=True):
        (alone,) = ENGINE["nano"].forecast([request])
        assert (np.abs(answer.quantiles - alone.quantiles) <= TOLERANCE * deviation(request.target)).all()


def test_covariates_change_the_answer_and_the_future_of_a_known_one_counts() -> None:
    x, known = walk(1, 96), np.sin(np.arange(160) / 4)[None]
    plain, helped = ask(x, 64), ask(x, 64, known_covariates=known)
    later = known.copy()
    later[:, 96:] *= -1
    assert np.abs(helped.quantiles - plain.quantiles).max() > 1e-3
    assert np.abs(ask(x, 64, known_covariates=later).quantiles - helped.quantiles).max() > 1e-3


def test_many_variates_are_answered() -> None:
    assert_sound(ask(walk(600, 40), 8), 600, 8)


def test_nan_of_the_network_is_an_error_and_no_forecast(small_checkpoint: Path) -> None:
    broken = Engine.load(small_checkpoint, "cpu", threads=1)
    with torch.inference_mode():
        broken.model.output_head.param_projection["proj"].linear2.products[0].bias.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="NaN"):
        broken.forecast([ForecastRequest(walk(1, 40), 8)])
