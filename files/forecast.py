"""Forecasts as files: CSV or JSON text, and a picture."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np

from files.table import Table
from toto2.request import Forecast

LEVELS = [f"{tenths / 10:.1f}" for tenths in range(1, 10)]
DRAWN_CONTEXT = 4  # contexts drawn are at most so many horizons long


def to_csv(table: Table, forecast: Forecast) -> str:
    """A row for each step and variate: step (1 is the first forecast one), time where known, variate, quantiles."""
    steps = forecast.quantiles.shape[2]
    times = table.future_times(steps)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["step", *(["time"] if times else []), "variate", *LEVELS])
    for step in range(steps):
        for variate, name in enumerate(table.names):
            numbers = (repr(float(x)) for x in forecast.quantiles[:, variate, step])
            writer.writerow([step + 1, *([times[step]] if times else []), name, *numbers])
    return text.getvalue()


def to_json(table: Table, forecast: Forecast, about: dict[str, object]) -> str:
    """Quantiles as the service answers them, with the variates' names and what forecast (`about`)."""
    quantiles = {level: forecast.quantiles[index].tolist() for index, level in enumerate(LEVELS)}
    steps = forecast.quantiles.shape[2]
    answer: dict[str, object] = {
        "quantiles": quantiles,
        "median": quantiles["0.5"],
        "prediction_length": steps,
        "n_variates": len(table.names),
        "variates": table.names,
        "context_length": forecast.context_length,
        "truncated": forecast.truncated,
    }
    times = table.future_times(steps)
    return json.dumps(answer | ({"times": times} if times else {}) | about) + "\n"


def draw(table: Table, forecast: Forecast, path: Path) -> None:
    """A PNG with the end of the context, the median and the bands 0.1-0.9 and 0.3-0.7 of each variate."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    steps = forecast.quantiles.shape[2]
    shown = min(table.values.shape[1], max(DRAWN_CONTEXT * steps, 64))
    past, ahead = np.arange(-shown + 1, 1), np.arange(1, steps + 1)
    figure = Figure(figsize=(11, 0.8 + 2.4 * len(table.names)), layout="constrained")
    FigureCanvasAgg(figure)
    for variate, axes in enumerate(figure.subplots(len(table.names), 1, sharex=True, squeeze=False)[:, 0]):
        quantiles = forecast.quantiles[:, variate]
        axes.plot(past, table.values[variate, -shown:], color="0.25", linewidth=1, label="context")
        axes.fill_between(ahead, quantiles[0], quantiles[8], color="C0", alpha=0.2, linewidth=0, label="0.1 to 0.9")
        axes.fill_between(ahead, quantiles[2], quantiles[6], color="C0", alpha=0.3, linewidth=0, label="0.3 to 0.7")
        marker = "o" if steps == 1 else None  # a line or band of one step cannot be seen
        if steps == 1:
            axes.vlines(ahead, quantiles[0], quantiles[8], color="C0", alpha=0.4, linewidth=5)
        axes.plot(ahead, quantiles[4], color="C0", linewidth=1.5, marker=marker, label="median")
        axes.set_title(table.names[variate], fontsize=10, loc="left")
        axes.axvline(0.5, color="0.7", linewidth=0.8)
    axes.set_xlabel("steps from the end of the context")
    figure.axes[0].legend(loc="upper left", ncols=4, fontsize=8, frameon=False)
    figure.savefig(path, dpi=100)
