"""How right the band is past the first block: `python -m bench.blocks --model models/toto2-nano`.

Held-out synthetic series of the generator that trains the embedded checkpoint, and long enough real ones (taylor,
sunspots, glucose), 512 steps given, 1,024 asked. Each is forecast in blocks, as published (a block takes the medians
before it as if observed) and as the engine does (their uncertainty is inherited, `toto2.propagation`), and in one
pass. Coverage is the share of values between the quantiles 0.1 and 0.9; pinball the mean quantile loss in deviations
of the context, each value's at most 10. Then how often medians run astray: of forty noisy cycles, those whose median
leaves the context's mean by more than so many deviations within so many steps.
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
ASTRAY, WITHIN = (5, 20), (1024, 2048, 4096)  # deviations, steps
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


def noisy_cycles() -> list[Array]:
    """Sines and peaks of periods from 6 to 200 steps, noise of 0.02 to 0.3, some with a trend; 256 to 1,024 steps."""
    rng, time, made = np.random.default_rng(5), np.arange(1024), []
    for number in range(40):
        phase = 2 * np.pi * time / np.exp(rng.uniform(np.log(6), np.log(200))) + rng.uniform(0, 2 * np.pi)
        cycle = np.sin(phase) if number % 2 else np.exp(np.sin(phase))
        noise, trend = (0.02, 0.1, 0.3)[number % 3] * rng.normal(size=1024), 0.001 * time * (number % 4 == 0)
        made.append((cycle + noise + trend)[: rng.choice([256, 512, 1024])])
    return made


def astray(engine: Engine, block: int) -> Array:
    """Share of the noisy cycles whose median strays, (bounds, reaches) as `ASTRAY` and `WITHIN` have them."""
    found = []
    for series in noisy_cycles():
        (answer,) = engine.forecast([ForecastRequest(series[None], max(WITHIN), block)])
        distance = np.abs(answer.quantiles[4, 0] - series.mean()) / series.std()
        found.append([[distance[:steps].max() > bound for steps in WITHIN] for bound in ASTRAY])
    share: Array = np.mean(found, axis=0)
    return share


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
            coverage = ", ".join(f"{share:.2f}" for share, _ in found)
            pinball = ", ".join(f"{loss:.3f}" for _, loss in found)
            print(f"| {name} | {block} | {coverage} | {pinball} |", flush=True)
    print(f"\n| block | astray by {ASTRAY[0]} within {WITHIN} steps | by {ASTRAY[1]} |\n|---|---|---|")
    for block in arguments.blocks:
        shares = (", ".join(f"{share:.3f}" for share in row) for row in astray(ours, block))
        print(f"| {block} | {' | '.join(shares)} |", flush=True)


if __name__ == "__main__":
    main()
