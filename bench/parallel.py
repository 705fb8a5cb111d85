"""Four forecasts in four threads at once against four in a row, on one model: `python -m bench.parallel`.

State belongs to the call, so threads may share a model; what they must not do is slow each other down.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from toto2.configuration import PUBLISHED
from toto2.cpus import usable_cpus
from toto2.device import Device
from toto2.folding import fold

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
CALLS = 4


def main() -> None:
    from reference_models import reference_model

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", default="22m", choices=list(PUBLISHED))
    parser.add_argument("--threads", type=int, default=usable_cpus())
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = fold(reference_model(PUBLISHED[arguments.size]), Device("cpu").placement())
    target = torch.randn(1, 3, 1024).cumsum(-1)
    inputs = {
        "target": target,
        "target_mask": torch.ones_like(target, dtype=torch.bool),
        "series_ids": torch.zeros(1, 3, dtype=torch.long),
    }

    def forecast(_: int) -> None:
        model.forecast(inputs, 96)

    def in_pool(count: int) -> float:
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(forecast, range(CALLS)))  # each thread warms up
            start = time.perf_counter()
            list(pool.map(forecast, range(CALLS)))
            return time.perf_counter() - start

    in_pool(1)
    turns = [(in_pool(1), in_pool(CALLS)) for _ in range(arguments.rounds)]
    row, parallel = (statistics.median(times) for times in zip(*turns, strict=True))
    print(f"{arguments.size}, {arguments.threads} threads: {CALLS} in a row {1e3 * row:.1f} ms, at once "
          f"{1e3 * parallel:.1f} ms, ratio {parallel / row:.2f} (at most 1.2 wanted)")  # fmt: skip


if __name__ == "__main__":
    main()
