"""A forecast to the bytes of its answer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import orjson
from numpy.typing import NDArray

from inference import EngineInfo, Forecast

from .schemas import LEVELS

NUMPY = orjson.OPT_SERIALIZE_NUMPY
ROUNDING = 1e-6


def render(forecast: Forecast, engine: EngineInfo, milliseconds: Callable[[], float]) -> bytes:
    """The JSON of an answer, keys in the contract's order.

    Quantiles are written with float32's digits where that moves no value of the variate by more than 1e-6 of
    the variate's spread, else with float64's; both keep their order. Raises `ValueError` for a value that is
    not finite.
    """
    quantiles = np.ascontiguousarray(forecast.quantiles)  # (9, variates, steps); orjson takes no other layout
    if not np.isfinite(quantiles).all():
        raise ValueError(f"a forecast of shape {quantiles.shape} has values that are not finite")
    with np.errstate(over="ignore", under="ignore"):
        short = quantiles.astype(np.float32)
    fits = _fits(quantiles, short)
    texts = [_level(quantiles[level], short[level], fits) for level in range(len(LEVELS))]
    rest = {
        "prediction_length": quantiles.shape[2],
        "n_variates": quantiles.shape[1],
        "latency_ms": round(milliseconds(), 3),
        "model": engine.name,
        "context_length": forecast.context_length,
        "truncated": forecast.truncated,
        "device": engine.device,
        "dtype": engine.dtype,
    }
    levels = b",".join(b'"%s":%s' % (name.encode(), text) for name, text in zip(LEVELS, texts, strict=True))
    median = texts[LEVELS.index("0.5")]
    return b'{"quantiles":{%s},"median":%s,%s' % (levels, median, orjson.dumps(rest)[1:])


def _fits(quantiles: NDArray[np.float64], short: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which variates lose at most 1e-6 of their spread to float32 (a constant loses nothing)."""
    with np.errstate(over="ignore", invalid="ignore"):
        spread = quantiles.max(axis=(0, 2)) - quantiles.min(axis=(0, 2))
        moved = np.abs(short - quantiles).max(axis=(0, 2))
        moved += np.spacing(np.abs(short).max(axis=(0, 2))) / 2  # the shortest decimal that is still this float32
    fits: NDArray[np.bool_] = np.isfinite(moved) & (moved <= ROUNDING * spread)
    return fits


def _level(exact: NDArray[np.float64], short: NDArray[np.float32], fits: NDArray[np.bool_]) -> bytes:
    if fits.all():
        return orjson.dumps(short, option=NUMPY)
    rows = (orjson.dumps(short[v] if fits[v] else exact[v], option=NUMPY) for v in range(len(fits)))
    return b"[" + b",".join(rows) + b"]"
