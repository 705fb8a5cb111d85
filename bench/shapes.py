"""Series whose continuation is known: how far the median is from it, and how a forecast of them looks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from inference import Engine

Array = NDArray[np.float64]
CONTEXT, HORIZON = 1024, 96


def known_shapes() -> dict[str, Array]:
    """Noise-free series of 1,120 steps, by name."""
    time = np.arange(CONTEXT + HORIZON, dtype=np.float64)
    shapes = {f"sine {period}": np.sin(2 * np.pi * time / period) for period in (12, 24, 48, 96, 168)}
    line = time / CONTEXT
    return shapes | {
        "line": line,
        "line and sine": 3 * line + np.sin(2 * np.pi * time / 24),
        "growth": np.exp(3 * line),
        "square 24": np.sign(np.sin(2 * np.pi * (time + 0.5) / 24)),
        "saw 24": time % 24,
        "constant": np.full_like(time, 3.0),
    }


def shape_errors(engine: Engine) -> dict[str, float]:
    """Mean absolute error of the median over 96 steps, in deviations of the context (in units if constant)."""
    from inference import ForecastRequest

    shapes = known_shapes()
    answers = engine.forecast([ForecastRequest(values[None, :CONTEXT], HORIZON) for values in shapes.values()])
    errors = {}
    for (name, values), answer in zip(shapes.items(), answers, strict=True):
        deviation = float(values[:CONTEXT].std()) or 1.0
        errors[name] = float(np.abs(answer.quantiles[4, 0] - values[CONTEXT:]).mean()) / deviation
    return errors


def example_shapes(seed: int = 0) -> dict[str, Array]:
    """What people send: a noisy sine, a trend, a load curve of days and weeks, a constant, an intermittent series."""
    rng, time = np.random.default_rng(seed), np.arange(CONTEXT + HORIZON, dtype=np.float64)
    day, weekend = np.sin(2 * np.pi * (time / 24 - 0.3)), (time // 24 % 7) >= 5
    load = 100 + np.where(weekend, 8, 20) * (day + 0.4 * np.sin(4 * np.pi * time / 24)) - 15 * weekend
    sales = rng.poisson(3, len(time)) * (rng.random(len(time)) < 0.25)
    return {
        "a sine with noise": np.sin(2 * np.pi * time / 48) + rng.normal(scale=0.2, size=len(time)),
        "a trend": 50 + 0.05 * time + rng.normal(scale=1.5, size=len(time)),
        "a load curve of days and weeks": load + rng.normal(scale=2, size=len(time)),
        "a constant": np.full_like(time, 7.0),
        "an intermittent series": sales.astype(np.float64),
    }


def draw_examples(engine: Engine, path: Path) -> None:
    """Context's end, what followed, the median and the bands of each example, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from inference import ForecastRequest

    shapes = example_shapes()
    answers = engine.forecast([ForecastRequest(values[None, :CONTEXT], HORIZON) for values in shapes.values()])
    figure, axes = pyplot.subplots(len(shapes), 1, figsize=(11, 2.2 * len(shapes)))
    for axis, (name, values), answer in zip(axes, shapes.items(), answers, strict=True):
        draw_forecast(axis, values[CONTEXT - 336 : CONTEXT], values[CONTEXT:], answer.quantiles[:, 0])
        axis.set_title(name, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=70)
    pyplot.close(figure)


def draw_forecast(axis: object, context: Array, actual: Array, quantiles: Array) -> None:
    """One forecast on a matplotlib axis: quantiles (9, steps), bands 0.1 to 0.9 and 0.3 to 0.7."""
    plot, fill = axis.plot, axis.fill_between  # type: ignore[attr-defined]
    ahead = np.arange(len(actual))
    plot(np.arange(-len(context), 0), context, color="0.45", linewidth=0.9)
    plot(ahead, actual, color="black", linewidth=0.9)
    plot(ahead, quantiles[4], color="C0", linewidth=1.3)
    for low, alpha in ((0, 0.2), (2, 0.3)):
        fill(ahead, quantiles[low], quantiles[8 - low], color="C0", alpha=alpha, linewidth=0)
