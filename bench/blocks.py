"""How right the band is past the first block: `python -m bench.blocks --model models/toto2-nano`.

Held-out synthetic series of the generator that trains the embedded checkpoint, and long enough real ones (taylor,
sunspots, glucose), 512 steps given, 1,024 asked. Each is forecast in blocks, as published (a block takes the medians
before it as if observed) and as the engine does (their uncertainty is inherited, `toto2.propagation`), and in one
pass. Coverage is the share of values between the quantiles 0.1 and 0.9; pinball the mean quantile loss in deviations
of the context, each value's at most 10.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.accuracy import LEVELS
from bench.real_series import real_series
from inference import Engine, ForecastRequest
from training.generator import VARIATES, SeriesGenerator
from training.trainer import HELD_OUT_SEED

CONTEXT, HORIZON = 512, 1024
REAL = ("taylor", "sunspots", "glucose")
Array = NDArray[np.float64]
Cases = Iterator[tuple[Array, Array]]  # contexts and what followed, each (variates, steps), NaN where missing


def synthetic(batches: int) -> Cases:
    """Blocks of variates of the held-out stream, each with at least two patches observed and not constant."""
    generator = SeriesGenerator(HELD_OUT_SEED)
    for index in range(batches):
        values, observed = generator.batch(index, 64, CONTEXT + HORIZON)
        series = np.where(observed, values, np.nan).astype(np.float64)
        for block in series.reshape(-1, VARIATES, CONTEXT + HORIZON):
            context = block[:, :CONTEXT]
            if (np.isfinite(context).sum(axis=1) >= 64).all() and (np.nanstd(context, axis=1) > 1e-3).all():
                yield context, block[:, CONTEXT:]


def real(windows: int) -> Cases:
    """Up to so many windows of each set, the last at its end, 512 steps apart."""
    for series in real_series(REAL):
        for number in range(windows):
            start = len(series.values) - HORIZON - 512 * number
            if start >= CONTEXT:
                window = series.values[None, start - CONTEXT : start + HORIZON]
                if np.isfinite(window[:, :CONTEXT]).mean() > 0.5:
                    yield window[:, :CONTEXT], window[:, CONTEXT:]


def scores(engine: Engine, cases: Cases, block: int | None, begin: int) -> tuple[float, float]:
    """Coverage and pinball loss of the steps from `begin` on."""
    inside, losses = [], []
    for context, actual in cases:
        (answer,) = engine.forecast([ForecastRequest(context, HORIZON, block)])
        quantiles, truth = answer.quantiles[:, :, begin:], actual[:, begin:]
        error = (truth - quantiles) / np.nanstd(context, axis=1)[:, None]
        level = LEVELS[:, None, None]
        loss = np.maximum(level * error, (level - 1) * error).mean(axis=0)
        seen = np.isfinite(truth)
        losses.append(np.minimum(loss[seen], 10))
        inside.append(((truth >= quantiles[0]) & (truth <= quantiles[-1]))[seen])
    return float(np.concatenate(inside).mean()), float(np.concatenate(losses).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path("models/toto2-nano"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--blocks", type=int, nargs="+", default=[32, 96, 256, 768])
    parser.add_argument("--batches", type=int, default=12, help="of 64 synthetic series")
    parser.add_argument("--windows", type=int, default=6, help="of each real set")
    arguments = parser.parse_args()
    ours, published = (
        Engine.load(arguments.model, arguments.device, propagate_uncertainty=inherits) for inherits in (True, False)
    )
    sources: dict[str, Callable[[], Cases]] = {
        "synthetic": lambda: synthetic(arguments.batches),
        "real": lambda: real(arguments.windows),
    }
    print("| series | block | coverage: published, ours, one pass | pinball: published, ours, one pass |")
    print("|---|---|---|---|")
    for name, cases in sources.items():
        for block in arguments.blocks:
            ways = (published, block), (ours, block), (ours, None)
            found = [scores(engine, cases(), way, begin=block) for engine, way in ways]
            coverage, pinball = (", ".join(f"{row[column]:.{3 - (not column)}f}" for row in found) for column in (0, 1))
            print(f"| {name} | {block} | {coverage} | {pinball} |", flush=True)


if __name__ == "__main__":
    main()
