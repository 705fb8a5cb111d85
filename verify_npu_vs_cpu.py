"""Compare forecasts of a device with the CPU's: `python verify_npu_vs_cpu.py --device npu:1`.

The first thing to run on new hardware. The same requests go through the engine on the device and on the CPU in
float32 (or through the published package): two variates of 512 steps to 96 first, then a grid of shapes, gaps,
blocks and scales. A case holds where the largest difference is at most 1e-4 of the context's standard deviation and
the cosine is at least 0.9999999. Exit status 0 where all hold and no operator fell back to the CPU, else 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference import QUANTILE_LEVELS, Engine, ForecastRequest, default_model_path
from toto2.errors import DeviceFailure, OutOfDeviceMemory

MOST_DIFFERENCE, LEAST_COSINE = 1e-4, 0.9999999
FALLBACK = "CAUTION: The operator"
UPSTREAM = Path(__file__).resolve().parent / "patches" / "upstream_forecasts.py"
MEDIAN = QUANTILE_LEVELS.index(0.5)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """Requests of one batch. published: the published package gives the same answer by its own rules."""

    name: str
    requests: tuple[ForecastRequest, ...]
    published: bool = True


@dataclass(frozen=True)
class Comparison:
    """One case on one device: per quantile level, in standard deviations of the context; seconds are medians."""

    case: str
    differences: list[float]
    cosine: float
    median_correlation: float
    device_seconds: float
    reference_seconds: float | None

    @property
    def holds(self) -> bool:
        return max(self.differences) <= MOST_DIFFERENCE and self.cosine >= LEAST_COSINE


def series(variates: int, steps: int, seed: int, level: float = 0.0, scale: float = 1.0) -> Floats:
    """Two cycles, a drift and noise, (variates, steps), rounded to float32 as the published package takes it."""
    rng = np.random.default_rng(seed)
    time_of = np.arange(steps)
    phase = rng.uniform(0, 2 * np.pi, (variates, 2, 1))
    waves = np.sin(2 * np.pi * time_of / np.array([[24.0], [168.0]]) + phase).sum(axis=1)
    drift = rng.normal(0, 0.02, (variates, steps)).cumsum(axis=1)
    values = level + scale * (waves + drift + rng.normal(0, 0.2, (variates, steps)))
    return values.astype(np.float32).astype(np.float64)


def with_gaps(values: Floats, seed: int) -> Floats:
    """The same with a tenth of the steps missing, none of them in the first or last patch, and no patch whole."""
    rng = np.random.default_rng(seed)
    missing = rng.random(values.shape) < 0.1
    missing[:, :32] = missing[:, -32:] = False
    missing[:, 64:84] = True
    return np.where(missing, np.nan, values)


def cases() -> Iterator[Case]:
    """The first contact, then the grid."""
    yield _one("2x512 to 96", series(2, 512, 1), 96)
    yield _one("3x1024 to 96", series(3, 1024, 2), 96)
    yield _one("1x4096 to 336", series(1, 4096, 3), 336)
    yield _one("1x1024 to 1024, blocks of 768", series(1, 1024, 4), 1024, 768)
    yield _one("3x512 to 300, blocks of 96", series(3, 512, 5), 300, 96)
    yield _one("one patch to one", series(1, 32, 6), 32)
    yield _one("16x256 to 64", series(16, 256, 7), 64)
    yield _one("gaps", with_gaps(series(3, 512, 8), 9), 96)
    yield _one("gaps, blocks of 64", with_gaps(series(2, 512, 32), 33), 200, 64)
    # Where float32 has few digits of a level left, and below its floor of 1e-6, the published package is no measure.
    yield _one("level 1e6", series(2, 512, 12, level=1e6, scale=10.0), 96, published=False)
    yield _one("scale 1e-9", series(2, 512, 13, scale=1e-9), 96, published=False)
    yield _one("scale 1e9", series(2, 512, 14, scale=1e9), 96)
    late = series(3, 700, 15)
    late[0, :333], late[1, -40:], late[2, 100:300] = np.nan, np.nan, np.nan
    yield _one("late start, missing tail, missing patches", late, 192, 64, published=False)
    known = ForecastRequest(
        series(2, 480, 16), 100, 64, past_covariates=series(1, 480, 17), known_covariates=series(1, 580, 18)
    )
    yield Case("covariates", (known,), published=False)
    mixed = (
        ForecastRequest(series(1, 1000, 19), 96),
        ForecastRequest(with_gaps(series(5, 320, 20), 21), 400, 128),
        ForecastRequest(series(3, 77, 22), 31),
        known,
    )
    yield Case("a mixed batch", mixed, published=False)


def _one(name: str, target: Floats, horizon: int, block: int | None = 768, published: bool = True) -> Case:
    return Case(name, (ForecastRequest(target, horizon, block),), published)


def forecast(engine: Engine, chosen: Sequence[Case], repeats: int) -> list[tuple[list[Floats], float]]:
    """Each case's quantiles, one array a request, and the median seconds of `repeats` runs after a first one."""
    answers = []
    for case in chosen:
        seconds = []
        for _ in range(1 + repeats):
            start = time.perf_counter()
            forecasts = engine.forecast(case.requests)
            seconds.append(time.perf_counter() - start)
        quantiles = [answer.quantiles for answer in forecasts]
        answers.append((quantiles, statistics.median(seconds[1:] or seconds)))
    return answers


def forecast_upstream(python: str, model: Path, chosen: Sequence[Case]) -> list[tuple[list[Floats], None]]:
    """As `forecast`, by the published package under the interpreter `python`."""
    arrays: dict[str, Any] = {}
    for number, case in enumerate(chosen):
        (request,) = case.requests
        arrays[f"{number}.target"] = request.target
        arrays[f"{number}.horizon"] = request.prediction_length
        arrays[f"{number}.block"] = request.decode_block_size or 0
    with tempfile.TemporaryDirectory() as directory:
        requests, answers = Path(directory) / "requests.npz", Path(directory) / "answers.npz"
        np.savez(requests, **arrays)
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [python, "-P", str(UPSTREAM), str(model.resolve()), str(requests), str(answers)]
        done = subprocess.run(command, env=clean, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip() or "no output").splitlines()[-1]
            raise ValueError(f"{python} cannot forecast with the published package ({last}); see patches/README.md")
        with np.load(answers) as stored:
            return [([stored[str(number)]], None) for number in range(len(chosen))]


def compare(case: Case, found: list[Floats], expected: list[Floats], float32: bool) -> tuple[list[float], float, float]:
    """Per level the largest difference, the cosine, and the least correlation of a variate's medians.

    float32: what was expected is rounded to it, so that one step of the value says nothing about the device.
    """
    differences, cosines, correlations = [], [], []
    for request, ours, theirs in zip(case.requests, found, expected, strict=True):
        mean = np.nanmean(request.target, axis=1)[:, None]
        step = np.spacing(np.abs(theirs).astype(np.float32)).astype(np.float64) if float32 else 0.0
        scale = np.maximum(np.nanstd(request.target, axis=1), np.finfo(np.float64).tiny)[:, None]
        differences.append((np.maximum(np.abs(ours - theirs) - step, 0) / scale).max(axis=(1, 2)))
        a, b = ((answer - mean) / scale for answer in (ours, theirs))
        cosines.append((a * b).sum() / np.sqrt(np.square(a).sum() * np.square(b).sum()))
        correlations += [correlation(a[MEDIAN, v], b[MEDIAN, v]) for v in range(a.shape[1])]
    return np.max(differences, axis=0).tolist(), float(min(cosines)), float(min(correlations))


def correlation(a: Floats, b: Floats) -> float:
    """Pearson's; of a constant, 1 with an equal one and 0 with any other."""
    if not (a.std() and b.std()):
        return float(np.array_equal(a, b))
    return float(np.corrcoef(a, b)[0, 1])


@contextmanager
def stderr_lines() -> Iterator[list[str]]:
    """What is written to file descriptor 2 meanwhile, C++ included; it is passed on at the end."""
    lines: list[str] = []
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield lines
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            kept.seek(0)
            text = kept.read()
            os.write(2, text)
            lines += text.decode(errors="replace").splitlines()


def show(comparison: Comparison) -> None:
    """One line, and below it the quantiles' differences."""
    reference = comparison.reference_seconds
    times = f"{1e3 * comparison.device_seconds:8.1f} ms" + (f" / {1e3 * reference:8.1f} ms" if reference else "")
    verdict = "ok  " if comparison.holds else "FAIL"
    print(
        f"{verdict} {comparison.case:42} {max(comparison.differences):.1e}  cosine {comparison.cosine:.9f}  "
        f"medians {comparison.median_correlation:.9f}  {times}"
    )
    print("     " + " ".join(f"{q}: {d:.1e}" for q, d in zip(QUANTILE_LEVELS, comparison.differences, strict=True)))


def versions() -> dict[str, str]:
    """What is installed, of what matters to whoever reads the report."""
    found = {"python": platform.python_version(), "machine": platform.machine(), "system": platform.platform()}
    for package in ("torch", "torch-npu", "numpy", "unit-scaling"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def verify(options: argparse.Namespace) -> dict[str, Any]:
    """Run and print everything; the report. Raises what `Engine.load` and `Engine.forecast` do."""
    model = options.model_path or default_model_path()
    chosen = [case for case in cases() if options.reference == "cpu" or case.published]
    chosen = chosen[: 1 if options.quick else None]
    upstream = options.reference == "upstream"
    engine = Engine.load(model, options.device, attention=options.attention, propagate_uncertainty=not upstream)
    composite = engine.model.placement.composite_attention
    report: dict[str, Any] = {
        "device": engine.info.device, "chip": engine.device.chip, "reference": options.reference,
        "attention": "composite" if composite else "fused", "model": asdict(engine.info), "versions": versions(),
    }  # fmt: skip
    chip = f" ({report['chip']})" if report["chip"] else ""
    print(f"{engine.info.device}{chip} against {options.reference}: {engine.info.name} at {engine.info.path}, float32")
    print(f"{report['attention']} attention, torch {report['versions']['torch']}, {engine.info.threads} threads")
    with stderr_lines() as lines:
        found = forecast(engine, chosen, options.repeats)
    report["fallbacks"] = sorted({line for line in lines if FALLBACK in line})
    expected: Sequence[tuple[list[Floats], float | None]]
    if options.reference == "cpu":
        expected = forecast(Engine.load(model, "cpu"), chosen, options.repeats)
    else:
        expected = forecast_upstream(options.upstream_python, Path(model), chosen)
    comparisons = [
        Comparison(case.name, *compare(case, ours, theirs, reference_seconds is None), seconds, reference_seconds)
        for case, (ours, seconds), (theirs, reference_seconds) in zip(chosen, found, expected, strict=True)
    ]
    for comparison in comparisons:
        show(comparison)
    for line in report["fallbacks"]:
        print(f"FAIL an operator ran on the CPU: {line}")
    report["cases"] = [asdict(comparison) | {"holds": comparison.holds} for comparison in comparisons]
    report["passed"] = not report["fallbacks"] and all(comparison.holds for comparison in comparisons)
    return report


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="auto, cpu, npu:N or cuda:N")
    parser.add_argument("--model-path", type=Path, help="checkpoint directory; the service's default otherwise")
    parser.add_argument("--attention", default="auto", choices=("auto", "fused", "composite"))
    parser.add_argument("--reference", default="cpu", choices=("cpu", "upstream"))
    parser.add_argument("--upstream-python", default=".venv-upstream/bin/python", metavar="PATH",
                        help="interpreter that has the published package, as patches/README.md sets it up")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="the first case alone")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each case after the first")
    parser.add_argument("--report", type=Path, default=Path("verify_npu_vs_cpu.json"), help="JSON report to write")
    options = parser.parse_args(arguments)
    try:
        report = verify(options)
    except (ValueError, OSError, OutOfDeviceMemory, DeviceFailure) as error:
        print(f"FAIL {error}")
        report = {"passed": False, "error": str(error), "versions": versions(), "device": options.device}
    options.report.write_text(json.dumps(report, indent=1) + "\n")
    if report["passed"]:
        print(f"passed: {len(report['cases'])} cases; report in {options.report}")
        return 0
    print(f"failed. Send back {options.report} and what `python -m serving.doctor --json` prints.")
    if "attention" in report:
        other = "fused" if report["attention"] == "composite" else "composite"
        print(f"Try --attention {other} too; where that holds, set ATTENTION={other} for the service.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
