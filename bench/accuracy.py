"""``python -m bench.accuracy --model DIR``: rolling-origin accuracy on real series, against simple methods and AutoETS.

MASE (Hyndman & Koehler, 2006) is of the median, scaled by the seasonal naive error within the context. WQL is the
mean weighted quantile loss over the nine levels, 2 · sum of pinball losses / sum of |actual|. Coverage is the share of
actual values between the quantiles 0.1 and 0.9. The naive methods' quantiles are normal about the point, with the
deviation of their own errors within the context, growing as they do (Hyndman & Athanasopoulos, "Forecasting", 5.5).
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bench.real_series import RealSeries, real_series
from bench.shapes import draw_forecast, shape_errors

if TYPE_CHECKING:
    from inference import Engine

Array = NDArray[np.float64]
SCORES = "accuracy.json"  # beside the weights: what they are held to
LEVELS = np.arange(1, 10) / 10
MAX_WINDOWS = 10
MAX_CONTEXT = 4096
NORMAL = np.array([NormalDist().inv_cdf(float(level)) for level in LEVELS])
# A method answers quantiles (9, horizon) for each context.
Method = Callable[[list[Array], int, int], list[Array]]


@dataclass(frozen=True)
class Window:
    """A context (steps,) and what followed (horizon,), NaN where missing."""

    context: Array
    actual: Array


@dataclass(frozen=True)
class Score:
    """Means over the windows of a set: pinball in units of the MASE scale."""

    mase: float
    wql: float
    pinball: float
    coverage: float


def windows(series: RealSeries, horizon: int) -> list[Window]:
    """Up to ten windows, the last one at the end of the series, a horizon apart; contexts hold at least two seasons."""
    least = max(2 * series.season, 48)
    made: list[Window] = []
    for number in range(MAX_WINDOWS):
        end = len(series.values) - number * horizon
        start = end - horizon
        if start < least:
            break
        context, actual = series.values[max(0, start - MAX_CONTEXT) : start], series.values[start:end]
        if np.isfinite(actual).mean() > 0.5 and np.isfinite(context[-series.season :]).mean() > 0.5:
            made.append(Window(context, actual))
    return made


def score(found: Sequence[Array], cases: Sequence[Window], season: int) -> Score:
    """Scores of quantiles (9, horizon) against the windows they belong to."""
    errors, losses, weighted, inside, level = [], [], [], [], []
    for quantiles, case in zip(found, cases, strict=True):
        seen = np.isfinite(case.actual)
        actual, quantiles = case.actual[seen], quantiles[:, seen]
        scale = float(np.nanmean(np.abs(case.context[season:] - case.context[:-season])))
        difference = actual - quantiles
        loss = np.maximum(LEVELS[:, None] * difference, (LEVELS[:, None] - 1) * difference).mean(axis=0)
        errors.append(float(np.abs(difference[4]).mean()) / scale)
        losses.append(float(loss.mean()) / scale)
        weighted.append(2 * float(loss.sum()))
        level.append(float(np.abs(actual).sum()))
        inside.append(float(((actual >= quantiles[0]) & (actual <= quantiles[-1])).mean()))
    wql = float(np.sum(weighted) / np.sum(level))
    return Score(float(np.mean(errors)), wql, float(np.mean(losses)), float(np.mean(inside)))


def model_method(engine: Engine) -> Method:
    """The checkpoint's forecasts, all windows of a set in one batch."""
    from inference import ForecastRequest

    def forecast(contexts: list[Array], horizon: int, season: int) -> list[Array]:
        requests = [ForecastRequest(context[None], horizon) for context in contexts]
        return [answer.quantiles[:, 0] for answer in engine.forecast(requests)]

    return forecast


def last_value(contexts: list[Array], horizon: int, season: int) -> list[Array]:
    """The last value, with the random walk's spread."""
    return [_naive(context, horizon, 1) for context in contexts]


def seasonal_naive(contexts: list[Array], horizon: int, season: int) -> list[Array]:
    """The value one season before."""
    return [_naive(context, horizon, season) for context in contexts]


def _naive(context: Array, horizon: int, season: int) -> Array:
    filled = _filled(context)
    ahead = np.arange(horizon)
    point = filled[len(filled) - season + ahead % season]
    deviation = float(np.std(filled[season:] - filled[:-season])) * np.sqrt(1 + ahead // season)
    quantiles: Array = point + NORMAL[:, None] * deviation
    return quantiles


def auto_ets(contexts: list[Array], horizon: int, season: int) -> list[Array]:
    """AutoETS of statsforecast on the last 1,000 steps; seasons past 24 are beyond it and left out."""
    from statsforecast.models import AutoETS

    made = []
    for context in contexts:
        model = AutoETS(season_length=season if season <= 24 else 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = model.forecast(_filled(context)[-1000:], h=horizon, level=[20, 40, 60, 80])
        low = [answer[f"lo-{level}"] for level in (80, 60, 40, 20)]
        high = [answer[f"hi-{level}"] for level in (20, 40, 60, 80)]
        made.append(np.array([*low, answer["mean"], *high]))
    return made


def _filled(context: Array) -> Array:
    """Missing values take the one before (the first observed one, at the start)."""
    seen = np.isfinite(context)
    place = np.maximum.accumulate(np.where(seen, np.arange(len(context)), 0))
    filled: Array = np.where(np.isfinite(context[place]), context[place], context[seen.argmax()])
    return filled


def evaluate(methods: dict[str, Method], sets: Sequence[RealSeries]) -> list[dict[str, Any]]:
    """A row for each set and horizon: its scores by method."""
    rows = []
    for series in sets:
        for horizon in series.horizons:
            cases = windows(series, horizon)
            contexts = [case.context for case in cases]
            scores = {
                name: vars(score(method(contexts, horizon, series.season), cases, series.season))
                for name, method in methods.items()
            }
            rows.append(
                {"set": series.name, "horizon": horizon, "windows": len(cases), "core": series.core, "scores": scores}
            )
    return rows


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means of the model's MASE and pinball loss over those of each other method, and mean coverage."""
    answer: dict[str, Any] = {"coverage": float(np.mean([row["scores"]["model"]["coverage"] for row in rows]))}
    for other in rows[0]["scores"]:
        if other != "model":
            for metric in ("mase", "pinball"):
                ratios = [row["scores"]["model"][metric] / row["scores"][other][metric] for row in rows]
                answer[f"{metric} / {other}"] = float(np.exp(np.mean(np.log(ratios))))
    return answer


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: MASE of every method, then the model's WQL and coverage."""
    names = list(rows[0]["scores"])
    head = ["set", "horizon", "windows", *(f"MASE {name}" for name in names), "WQL model", "coverage"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        model = row["scores"]["model"]
        cells = [row["set"], row["horizon"], row["windows"], *(f"{row['scores'][name]['mase']:.2f}" for name in names)]
        cells += [f"{model['wql']:.4f}", f"{model['coverage']:.2f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _plot(engine: Engine, sets: Sequence[RealSeries], path: Path) -> None:
    """The last window of each set: the end of its context, what followed, the median and the bands."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(-(-len(sets) // 3), 3, figsize=(18, 3.4 * -(-len(sets) // 3)), squeeze=False)
    for axis in axes.ravel()[len(sets) :]:
        axis.set_axis_off()
    for axis, series in zip(axes.ravel(), sets, strict=False):
        horizon = series.horizons[-1]
        case = windows(series, horizon)[0]
        quantiles = model_method(engine)([case.context], horizon, series.season)[0]
        shown = case.context[-max(3 * horizon, min(2 * series.season, 6 * horizon)) :]
        draw_forecast(axis, shown, case.actual, quantiles)
        axis.set_title(f"{series.name}, {horizon} steps")
    figure.tight_layout()
    figure.savefig(path, dpi=70)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table and the geometric means; write them as JSON and the plots where asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.accuracy", description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, default=Path("models/toto2-nano"), help="checkpoint directory")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sets", nargs="*", default=[], help="only these sets")
    parser.add_argument("--no-ets", action="store_true", help="leave AutoETS out: it takes most of the time")
    parser.add_argument("--json", type=Path, help="write scores here")
    parser.add_argument("--plot", type=Path, help="draw the last window of every set here (PNG)")
    args = parser.parse_args(arguments)
    from inference import Engine

    engine = Engine.load(args.model, device=args.device)
    sets = real_series(tuple(args.sets))
    methods: dict[str, Method] = {
        "model": model_method(engine), "last value": last_value, "seasonal naive": seasonal_naive,
    }  # fmt: skip
    if not args.no_ets:
        methods["AutoETS"] = auto_ets
    rows = evaluate(methods, sets)
    print(f"{engine.info.name} ({engine.info.parameters:,} parameters) on {engine.info.device}\n\n{table(rows)}\n")
    core = [row for row in rows if row["core"]]
    means = {name: summary(some) for name, some in (("core", core), ("all", rows)) if some}
    for name, mean in means.items():
        for key, value in mean.items():
            print(f"{name:5} {key:26} {value:.3f}")
    shapes = shape_errors(engine)
    print(
        "\nerror on known shapes, in deviations: " + ", ".join(f"{name} {error:.3f}" for name, error in shapes.items())
    )
    if args.json:
        about = {"model": engine.info.name, "sha256": engine.info.sha256, "parameters": engine.info.parameters}
        result = {**about, "rows": rows, "means": means, "shapes": shapes}
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if args.plot:
        _plot(engine, sets, args.plot)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
