"""What narrower types cost in accuracy: quantiles against float32's over the real series of `bench.real_series`.

    python -m bench.dtypes --model models/toto2-nano

`error` is the mean and the largest difference of a quantile from float32's, in standard deviations of the context;
`pinball` the change of the pinball loss over all series, in percent.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from bench.accuracy import Window, model_method, score, windows
from bench.real_series import RealSeries, real_series
from inference import Engine


def forecasts(engine: Engine, sets: list[tuple[RealSeries, int, list[Window]]]) -> list[list[np.ndarray]]:
    """Quantiles (9, horizon) of every window of every set."""
    forecast = model_method(engine)
    return [forecast([case.context for case in cases], horizon, series.season) for series, horizon, cases in sets]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path("models/toto2-nano"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "int8"])
    arguments = parser.parse_args()
    sets = [(series, h, windows(series, h)) for series in real_series(()) for h in series.horizons]
    exact = forecasts(Engine.load(arguments.model, arguments.device), sets)
    print("| dtype | error, mean | error, largest | pinball |\n|---|---|---|---|")
    for dtype in arguments.dtypes:
        try:
            engine = Engine.load(arguments.model, arguments.device, dtype)
        except ValueError as refused:
            print(f"| {dtype} | refused: {refused} | | |", flush=True)
            continue
        narrow = forecasts(engine, sets)
        errors, losses = [], []
        for (series, _, cases), ours, theirs in zip(sets, narrow, exact, strict=True):
            deviation = [float(np.nanstd(case.context)) for case in cases]
            errors += [np.abs(a - b) / d for a, b, d in zip(ours, theirs, deviation, strict=True)]
            losses.append([score(some, cases, series.season).pinball for some in (ours, theirs)])
        change = np.exp(np.mean([np.log(a / b) for a, b in losses])) - 1
        mean, largest = float(np.mean([e.mean() for e in errors])), max(float(e.max()) for e in errors)
        print(f"| {dtype} | {mean:.4f} | {largest:.3f} | {100 * change:+.2f} % |", flush=True)


if __name__ == "__main__":
    main()
