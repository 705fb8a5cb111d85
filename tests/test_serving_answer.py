from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from inference import EngineInfo, Forecast
from serving.answer import render
from serving.schemas import LEVELS, ForecastAnswer

ENGINE = EngineInfo("nano", "p", "0" * 64, 1, "cpu", "float32", 0.1, 32768, 1)


def answer(quantiles: NDArray[np.float64]) -> str:
    return render(Forecast(quantiles, 12, False), ENGINE, lambda: 1.23456).decode()


def values(text: str) -> NDArray[np.float64]:
    return np.array([json.loads(text)["quantiles"][level] for level in LEVELS])


@given(
    hnp.arrays(
        np.float64,
        st.tuples(st.just(9), st.integers(1, 3), st.integers(1, 5)),
        elements=st.floats(allow_nan=False, allow_infinity=False),
    )
)
def test_what_is_parsed_back_is_ordered_and_within_a_millionth_of_the_spread(found: NDArray[np.float64]) -> None:
    quantiles = np.sort(found, axis=0)
    text = answer(quantiles)
    parsed = values(text)
    assert (np.diff(parsed / 2, axis=0) >= 0).all()
    halves = quantiles / 2  # so that a spread stays finite
    spread = halves.max(axis=(0, 2)) - halves.min(axis=(0, 2))
    assert (np.abs(parsed / 2 - halves) <= 1.1e-6 * spread[None, :, None] + np.abs(halves) * 1e-15).all()
    assert json.loads(text)["median"] == parsed[4].tolist()


def test_keys_come_in_the_contracts_order() -> None:
    got = json.loads(answer(np.zeros((9, 2, 3))))
    assert list(got)[:5] == ["quantiles", "median", "prediction_length", "n_variates", "latency_ms"]
    assert list(got["quantiles"]) == [f"0.{k}" for k in range(1, 10)]
    assert (got["prediction_length"], got["n_variates"], got["latency_ms"]) == (3, 2, 1.235)


def test_an_answer_is_what_the_documentation_says() -> None:
    ForecastAnswer.model_validate_json(answer(np.zeros((9, 1, 2))))
    assert set(json.loads(answer(np.zeros((9, 1, 2))))) == set(ForecastAnswer.model_fields)


def test_a_small_movement_on_a_big_level_keeps_its_digits() -> None:
    quantiles = 1e12 + np.linspace(-1, 1, 9)[:, None, None]
    np.testing.assert_array_equal(values(answer(quantiles)), quantiles)


def test_one_variate_that_needs_more_digits_does_not_lengthen_the_others() -> None:
    quantiles = np.stack([np.linspace(0, 1, 9), 1e12 + np.linspace(0, 1, 9)], axis=1)[:, :, None] / 3
    first, second = (json.loads(answer(quantiles))["quantiles"]["0.2"][v][0] for v in (0, 1))
    assert len(repr(first)) < 12
    assert second == quantiles[1, 1, 0]


@pytest.mark.parametrize("constant", [0.0, 5.0, -7.5, 0.1, 1e12, 1e-300, 1.7e308, 5e-324])
def test_a_constant_is_written_exactly(constant: float) -> None:
    assert (values(answer(np.full((9, 1, 2), constant))) == constant).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_never_written(bad: float) -> None:
    quantiles = np.zeros((9, 1, 2))
    quantiles[8, 0, 1] = bad
    with pytest.raises(ValueError, match="not finite"):
        answer(quantiles)
