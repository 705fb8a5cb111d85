"""Real series that installed packages carry, for evaluation only: nothing is trained on them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class RealSeries:
    """values float64 (steps,), NaN where missing; season in steps, 1 where there is none; horizons to score.

    core: one of the sets that the bars of the embedded checkpoint are set on.
    """

    name: str
    values: NDArray[np.float64]
    season: int
    horizons: tuple[int, ...]
    core: bool = True


def real_series(names: tuple[str, ...] = ()) -> list[RealSeries]:
    """The series of these names, or all; raises ValueError for a name that is none of them."""
    unknown = set(names) - set(_SETS)
    if unknown:
        raise ValueError(f"unknown sets {sorted(unknown)}, expected some of {sorted(_SETS)}")
    made = []
    for name, (load, season, horizons, core) in _SETS.items():
        if not names or name in names:
            made.append(RealSeries(name, np.asarray(load(), dtype=np.float64), season, horizons, core))
    return made


def _pmdarima(name: str) -> NDArray[np.float64]:
    from pmdarima import datasets

    return np.asarray(getattr(datasets, f"load_{name}")(), dtype=np.float64)


def _statsmodels(name: str) -> NDArray[np.float64]:
    import statsmodels.api as sm

    data = getattr(sm.datasets, name).load_pandas().data
    if name == "elnino":  # A row a year, a column a month.
        return np.asarray(data.drop(columns="YEAR"), dtype=np.float64).ravel()
    return np.asarray(data.iloc[:, -1], dtype=np.float64)


def _sea_surface() -> NDArray[np.float64]:
    from bokeh_sampledata.sea_surface_temperature import sea_surface_temperature

    return np.asarray(sea_surface_temperature["temperature"], dtype=np.float64)


def _glucose() -> NDArray[np.float64]:
    """Readings every five minutes, on a regular grid with gaps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from bokeh_sampledata.glucose import data

    regular = data["glucose"].resample("5min").mean().interpolate(limit=2)
    return np.asarray(regular, dtype=np.float64)[:12_000]


Loader = Callable[[], NDArray[np.float64]]

_SETS: dict[str, tuple[Loader, int, tuple[int, ...], bool]] = {
    "taylor": (lambda: _pmdarima("taylor"), 336, (48, 96), True),
    "sunspots": (lambda: _pmdarima("sunspots"), 132, (24, 48), True),
    "co2": (lambda: _statsmodels("co2"), 52, (24, 48), True),
    "elnino": (lambda: _statsmodels("elnino"), 12, (24, 48), True),
    "sea_surface": (_sea_surface, 48, (48, 96), True),
    "glucose": (_glucose, 288, (24, 48), True),
    "airline": (lambda: _pmdarima("airpassengers"), 12, (24,), True),
    "wineind": (lambda: _pmdarima("wineind"), 12, (24,), True),
    "ausbeer": (lambda: _pmdarima("ausbeer"), 4, (24,), True),
    "lynx": (lambda: _pmdarima("lynx"), 10, (24,), False),
    "nile": (lambda: _statsmodels("nile"), 1, (24,), False),
}
