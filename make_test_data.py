"""A demo series: three correlated metrics of a service with daily and weekly cycles, gaps and a spike.

python make_test_data.py            # demo/metrics.csv, demo/metrics.json
"""

from __future__ import annotations

import argparse
import csv
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

NAMES = ("requests_per_second", "cpu_percent", "latency_ms")
START = datetime(2026, 3, 2, tzinfo=UTC)  # a Monday
STEPS_PER_DAY = 24


def demo_series(variates: int = 3, steps: int = 1024, seed: int = 0, gaps: bool = True) -> NDArray[np.float64]:
    """Hourly values, float64 (variates, steps), NaN where missing.

    A shared load with a daily cycle, quiet weekends and slow noise drives every variate: the first three
    are requests, CPU and latency, further ones are weighted copies with noise of their own.
    """
    rng = np.random.default_rng(seed)
    hour = np.arange(steps)
    day = np.sin(2 * np.pi * (hour / STEPS_PER_DAY - 0.3)) + 0.4 * np.sin(4 * np.pi * (hour / STEPS_PER_DAY - 0.1))
    weekend = (hour // STEPS_PER_DAY) % 7 >= 5
    drift = np.convolve(rng.normal(size=steps + 47), np.ones(48) / 48, mode="valid")
    load = np.exp(0.45 * day - 0.5 * weekend + 0.4 * drift + 0.03 * rng.normal(size=steps))
    weights = np.concatenate(([900.0, 28.0, 35.0], rng.uniform(5, 500, size=max(variates - 3, 0))))
    levels = np.concatenate(([60.0, 9.0, 40.0], rng.uniform(0, 100, size=max(variates - 3, 0))))
    powers = np.concatenate(([1.0, 0.8, 1.6], rng.uniform(0.5, 1.5, size=max(variates - 3, 0))))
    noise = 1 + 0.04 * rng.normal(size=(max(variates, 3), steps))
    values = (levels[:, None] + weights[:, None] * load ** powers[:, None]) * noise
    values[1] = np.minimum(values[1], 100)
    if gaps and steps >= 400:
        values[2, steps - 200] *= 6  # one spike of latency
        values[0, steps - 150 : steps - 138] = np.nan  # half a day lost
        values[1, rng.choice(steps, size=steps // 100, replace=False)] = np.nan
    return values[:variates]


def write_demo(directory: Path, steps: int, seed: int) -> tuple[Path, Path]:
    """Write `metrics.csv` and `metrics.json` (a body for /v1/forecast) and return their paths."""
    values = demo_series(len(NAMES), steps, seed)
    directory.mkdir(parents=True, exist_ok=True)
    table, body = directory / "metrics.csv", directory / "metrics.json"
    with table.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["time", *NAMES])
        for step, row in enumerate(values.T):
            time = (START + timedelta(hours=step)).strftime("%Y-%m-%dT%H:%M:%SZ")
            writer.writerow([time, *("" if np.isnan(x) else f"{x:.3f}" for x in row)])
    series = [[None if np.isnan(x) else round(float(x), 3) for x in row] for row in values]
    body.write_text(json.dumps({"series": series, "prediction_length": 96}), encoding="utf-8")
    return table, body


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a demo series as CSV and as a request body.")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder to write to (default: demo)")
    parser.add_argument("--steps", type=int, default=1024, help="hours (default: 1024)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for path in write_demo(arguments.out, arguments.steps, arguments.seed):
        print(path)


if __name__ == "__main__":
    main()
