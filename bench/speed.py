"""Time this project and the published package in turn, on the same weights, shapes and threads.

    python -m bench.speed --peer-python DIR/bin/python [--quick] [--sizes 4m 22m 313m] [--threads N]

`bench/peer/setup.sh DIR` makes DIR. Without --peer-python, this project alone. Absolute times drift on shared machines:
the ratio, of medians of forecasts made in turn, is what counts. "Share of packed peak" is how much of the packed matrix
product's own speed, measured at the same number of rows in the same run, the products of the whole forecast reach.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from toto2.configuration import PUBLISHED, Toto2ModelConfig

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Shape:
    batch: int
    variates: int
    context: int
    horizon: int
    block: int | None = 768

    def __str__(self) -> str:
        many = f"{self.batch} requests of " if self.batch > 1 else ""
        blocks = f", block {self.block}" if self.block and self.block < self.horizon else ""
        return f"{many}{self.variates}×{self.context} → {self.horizon}{blocks}"


SHAPES = {
    "4m": [Shape(1, 3, 1024, 96)],
    "22m": [Shape(1, 3, 1024, 96)],
    "313m": [
        Shape(1, 3, 1024, 96),
        Shape(1, 3, 512, 96),
        Shape(1, 1, 4096, 336),
        Shape(1, 1, 1024, 1024),
        Shape(1, 32, 1024, 96),
        Shape(16, 3, 1024, 96),
    ],
}
BARS = {
    ("4m", "3×1024 → 96"): 4.2,
    ("22m", "3×1024 → 96"): 3.6,
    ("313m", "3×1024 → 96"): 2.2,
    ("313m", "3×512 → 96"): 2.7,
    ("313m", "1×4096 → 336"): 2.0,
    ("313m", "1×1024 → 1024, block 768"): 2.8,
    ("313m", "32×1024 → 96"): 1.55,
    ("313m", "16 requests of 3×1024 → 96"): 1.6,
}


class Worker:
    """A process that answers `bench/worker.py`'s lines."""

    def __init__(self, side: str, python: str, config: Toto2ModelConfig, threads: int, dtype: str) -> None:
        fields = config.to_dict()
        if side == "published":  # it derives these itself
            fields = {name: value for name, value in fields.items() if name != "heads_per_group"}
        command = [python, str(ROOT / "bench" / "worker.py"), side, json.dumps(fields), str(threads), dtype]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
        )
        self.build_seconds = self._read()["build_seconds"]

    def forecast(self, shape: Shape) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asdict(shape)) + "\n")
        self.process.stdin.flush()
        return self._read()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _read(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a bench worker ended with status {self.process.wait()}")
        answer: dict[str, float] = json.loads(line)
        return answer


def product_flops(config: Toto2ModelConfig, shape: Shape) -> tuple[float, int]:
    """(floating-point operations of all matrix products with weights, rows of the widest product)."""
    rows, context, total = shape.batch * shape.variates, shape.context // 32, 0.0
    horizon = -(-shape.horizon // 32)
    block = min(horizon, (shape.block or shape.horizon) // 32) if shape.block else horizon
    widest, done = 0, 0
    while done < horizon:
        masked = min(block, horizon - done)
        columns = (context if done == 0 else block) + masked - 1
        widest = max(widest, rows * columns)
        total += rows * (columns * _column_weights(config) + masked * _wanted_weights(config))
        done += masked
    return 2 * total, widest


def _layer_weights(config: Toto2ModelConfig) -> tuple[int, int]:
    """Weights of a layer that every column needs (keys, values), and that only its answer needs."""
    d = config.d_model
    key_value = d * config.num_groups * (config.qk_dim + config.v_dim)
    rest = d * config.num_heads * (config.qk_dim + config.v_dim) + 3 * d * config.d_ff
    return key_value, rest


def _column_weights(config: Toto2ModelConfig) -> int:
    key_value, rest = _layer_weights(config)
    d, whole = config.d_model, config.num_layers - 2  # the last time layer and the variate layer after it are cut
    return whole * (key_value + rest) + key_value + 64 * 4 * d + 4 * d * d + 64 * d


def _wanted_weights(config: Toto2ModelConfig) -> int:
    key_value, rest = _layer_weights(config)
    d = config.d_model
    return rest + (key_value + rest) + d * 4 * d + 4 * d * 288 + d * 288


def packed_gflops(config: Toto2ModelConfig, rows: int, threads: int) -> float:
    """Speed of the packed product (rows, d_model)·(d_model, d_ff) over as many weights as the model has.

    The weights stream from memory as a forecast's do: one product repeated would find them in a cache. Best of four.
    """
    import torch

    from toto2.products import PackedProduct

    torch.set_num_threads(threads)
    with torch.inference_mode():
        count = -(-config.num_layers * sum(_layer_weights(config)) // (config.d_ff * config.d_model))
        weight = torch.randn(config.d_ff, config.d_model)
        products = [PackedProduct(weight, None) for _ in range(count)]
        x = torch.randn(rows, config.d_model)
        best = float("inf")
        for _ in range(4):
            start = time.perf_counter()
            for product in products:
                product(x)
            best = min(best, (time.perf_counter() - start) / len(products))
    return 2e-9 * rows * config.d_model * config.d_ff / best


def measure(size: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    config = PUBLISHED[size]
    ours = Worker("ours", sys.executable, config, arguments.threads, arguments.dtype)
    peer = None
    if arguments.peer_python:
        peer = Worker("published", arguments.peer_python, config, arguments.threads, "float32")
    results = []
    for shape in SHAPES[size][: 1 if arguments.quick else None]:
        times: dict[str, list[float]] = {"ours": [], "published": []}
        rounds = arguments.rounds + (10 if size != "313m" else 0)
        peaks = {}
        for turn in range(rounds + 1):
            for name, worker in (("ours", ours), ("published", peer)):
                if worker is not None:
                    answer = worker.forecast(shape)
                    peaks[name] = answer["peak_bytes"]
                    if turn:  # the first warms up
                        times[name].append(answer["seconds"])
        results.append(_result(size, shape, config, times, peaks, arguments.threads))
        print(format_row(results[-1]), flush=True)
    for worker in (ours, peer):
        if worker is not None:
            worker.close()
    return results


def _result(
    size: str,
    shape: Shape,
    config: Toto2ModelConfig,
    times: dict[str, list[float]],
    peaks: dict[str, float],
    threads: int,
) -> dict[str, Any]:
    flops, rows = product_flops(config, shape)
    best = packed_gflops(config, rows, threads)
    mine = statistics.median(times["ours"])
    theirs = statistics.median(times["published"]) if times["published"] else None
    return {
        "size": size,
        "shape": str(shape),
        "ours_ms": 1e3 * mine,
        "published_ms": None if theirs is None else 1e3 * theirs,
        "ratio": None if theirs is None else theirs / mine,
        "bar": BARS.get((size, str(shape))),
        "gflops": 1e-9 * flops / mine,
        "packed_gflops": best,
        "share_of_peak": 1e-9 * flops / mine / best,
        "ours_peak_mib": peaks["ours"] / 2**20,
        "published_peak_mib": peaks["published"] / 2**20 if "published" in peaks else None,
    }


HEADER = (
    "| size | shape | published ms | ours ms | ratio | bar | GFLOP/s | share of packed peak "
    "| peak MiB, published / ours |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def format_row(row: dict[str, Any]) -> str:
    published = "" if row["published_ms"] is None else f"{row['published_ms']:.1f}"
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    memory = "" if row["published_peak_mib"] is None else f"{row['published_peak_mib']:.0f} / "
    return (
        f"| {row['size']} | {row['shape']} | {published} | {row['ours_ms']:.1f} | {ratio} | {row['bar'] or ''} | "
        f"{row['gflops']:.0f} | {100 * row['share_of_peak']:.0f} % | {memory}{row['ours_peak_mib']:.0f} |"
    )


def main() -> None:
    from toto2.cpus import usable_cpus

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer-python", help="python of an environment made by bench/peer/setup.sh")
    parser.add_argument("--sizes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--threads", type=int, default=usable_cpus())
    parser.add_argument("--dtype", default="float32", help="of this project's side")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="the first shape of the first size alone")
    parser.add_argument("--json", type=Path, help="also write the results here")
    arguments = parser.parse_args()
    print(HEADER, flush=True)
    results = [row for size in arguments.sizes[: 1 if arguments.quick else None] for row in measure(size, arguments)]
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
