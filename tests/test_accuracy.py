"""The accuracy benchmark, and the scores that the committed checkpoint is held to."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench import accuracy
from bench.accuracy import Window, last_value, model_method, score, seasonal_naive, summary, table, windows
from bench.real_series import RealSeries, real_series
from bench.shapes import known_shapes, shape_errors
from inference import Engine

NANO = Path("models/toto2-nano")
TOLERANCE = 1.03  # of a score: threads and libraries round differently, and decoding feeds medians back


def series(steps: int, season: int = 4, horizons: tuple[int, ...] = (8,)) -> RealSeries:
    return RealSeries("made", np.arange(steps, dtype=np.float64), season, horizons)


def test_windows_end_with_the_series_and_lie_a_horizon_apart() -> None:
    found = windows(series(100), 8)
    assert [window.actual[0] for window in found] == [92, 84, 76, 68, 60, 52]
    assert all(window.context[-1] == window.actual[0] - 1 for window in found)
    assert len(windows(series(1000), 8)) == 10
    assert len(windows(series(10_000), 8)[0].context) == 4096


def test_a_perfect_forecast_scores_zero() -> None:
    cases = windows(series(100), 8)
    found = score([np.tile(case.actual, (9, 1)) for case in cases], cases, 4)
    assert (found.mase, found.wql, found.pinball, found.coverage) == (0, 0, 0, 1)


def test_mase_is_the_error_in_units_of_the_seasonal_naive_error() -> None:
    cases = windows(series(100), 8)  # A line of slope 1: the naive error over a season of 4 is 4.
    found = score([np.tile(case.actual + 2, (9, 1)) for case in cases], cases, 4)
    assert found.mase == pytest.approx(0.5)
    assert found.pinball == pytest.approx(0.25)
    assert found.coverage == 0


def test_missing_actual_values_do_not_count() -> None:
    case = Window(np.arange(60.0), np.array([60.0, np.nan, 62.0]))
    assert score([np.tile([60.0, 1e9, 62.0], (9, 1))], [case], 4).mase == 0


def test_the_naive_methods_repeat_the_last_value_and_the_last_season() -> None:
    context = np.array([1.0, 2.0, 3.0, 4.0] * 20)
    assert (last_value([context], 6, 4)[0][4] == 4).all()
    repeated = seasonal_naive([context], 6, 4)[0]
    np.testing.assert_allclose(repeated, np.tile([1, 2, 3, 4, 1, 2], (9, 1)), atol=1e-12)


def test_the_naive_spread_grows_with_the_steps_ahead() -> None:
    walk = np.cumsum(np.random.default_rng(0).normal(size=2000))
    quantiles = last_value([walk], 25, 1)[0]
    widths = quantiles[8] - quantiles[0]
    assert widths[24] == pytest.approx(5 * widths[0])
    assert widths[0] == pytest.approx(2 * 1.2816, rel=0.1)


def test_missing_values_take_the_one_before() -> None:
    context = np.array([np.nan, 5.0, np.nan, 7.0, np.nan])
    assert (last_value([context], 2, 1)[0][4] == 7).all()


def test_the_summary_is_a_geometric_mean_of_ratios() -> None:
    rows = [
        {"scores": {"model": {"mase": 1.0, "pinball": 1.0, "coverage": 0.7, "wql": 0.1},
                    "other": {"mase": ratio, "pinball": 1.0, "coverage": 0.8, "wql": 0.1}},
         "set": "x", "horizon": 8, "windows": 3, "core": True}
        for ratio in (0.5, 2.0)
    ]  # fmt: skip
    found = summary(rows)
    assert found["mase / other"] == pytest.approx(1.0)
    assert found["coverage"] == pytest.approx(0.7)
    assert len(table(rows).splitlines()) == 4


def test_every_real_series_is_there_and_long_enough() -> None:
    for found in real_series():
        assert np.isfinite(found.values).mean() > 0.8, found.name
        assert len(windows(found, found.horizons[0])) >= 2, found.name


def test_an_unknown_set_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown sets"):
        real_series(("taylor", "nothing"))


@pytest.fixture(scope="module")
def nano() -> Engine:
    return Engine.load(NANO, device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["taylor", "elnino", "airline", "sea_surface"])
def test_the_committed_model_keeps_its_scores(nano: Engine, name: str) -> None:
    kept = json.loads((NANO / accuracy.SCORES).read_text(encoding="utf-8"))
    assert kept["sha256"] == nano.info.sha256
    rows = accuracy.evaluate({"model": model_method(nano)}, real_series((name,)))
    expected = [row["scores"]["model"] for row in kept["rows"] if row["set"] == name]
    for row, before in zip(rows, expected, strict=True):
        assert row["scores"]["model"]["mase"] <= TOLERANCE * before["mase"]
        assert row["scores"]["model"]["wql"] <= TOLERANCE * before["wql"]


@pytest.mark.slow
def test_the_committed_model_goes_on_with_shapes_it_can_know(nano: Engine) -> None:
    kept = json.loads((NANO / accuracy.SCORES).read_text(encoding="utf-8"))["shapes"]
    found = shape_errors(nano)
    assert found.keys() == known_shapes().keys()
    assert all(found[name] <= TOLERANCE * kept[name] + 1e-3 for name in found), found
