"""An engine with the real one's methods that forecasts without a model: fast, deterministic, able to fail.

Run as a script it is the service with that engine: `python tests/mock_engine.py --port 0`; the environment
variable MOCK names what goes wrong.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from inference import EngineInfo, Forecast, ForecastRequest
from toto2.errors import DeviceAbsent, DeviceFailure, OutOfDeviceMemory

MAX_CONTEXT = 32768
LEVELS = np.arange(1, 10) / 10
POISON = 666.0  # the first value of a request that the mock cannot forecast
KILLER = 667.0  # ... that breaks the device


class MockEngine:
    """Every step of a forecast is the context's mean, the quantiles spread by a quarter of its range."""

    def __init__(self, most_tokens: int = 10**9, device: str = "mock:0") -> None:
        self.info = EngineInfo(
            "mock",
            "mock",
            "0" * 64,
            1,
            device,
            "float32",
            load_seconds=0.0,
            max_context=MAX_CONTEXT,
            threads=1,
        )
        self.most_tokens = most_tokens
        self.batches: list[int] = []
        self.pause = 0.0  # seconds, before requests of two steps
        self.open = threading.Event()  # clear it to keep a batch running
        self.open.set()
        self.running = threading.Event()

    def forecast(self, requests: Sequence[ForecastRequest]) -> list[Forecast]:
        self.running.set()
        self.open.wait()
        if any(len(request.target[0]) == 2 for request in requests):
            time.sleep(self.pause)
        self.batches.append(len(requests))
        if any(request.target[0, 0] == KILLER for request in requests):
            raise DeviceFailure("device mock:0 failed: error 107002 in a kernel")
        if sum(request.tokens(MAX_CONTEXT) for request in requests) > self.most_tokens:
            raise OutOfDeviceMemory(f"{len(requests)} requests do not fit")
        if any(request.target[0, 0] == POISON for request in requests):
            raise RuntimeError("a fault of the engine")
        return [self._one(request) for request in requests]

    def memory(self) -> tuple[int, int] | None:
        return 1000, 4000

    def _one(self, request: ForecastRequest) -> Forecast:
        used = request.target[:, int((~np.isnan(request.target)).any(axis=0).argmax()) :]
        cut = used[:, -MAX_CONTEXT:]
        with np.errstate(over="ignore"):
            centre = np.nanmean(cut / 2, axis=1) * 2
        width = np.nanmax(cut / 4, axis=1) - np.nanmin(cut / 4, axis=1)
        values = centre[None, :, None] + (LEVELS - 0.5)[:, None, None] * width[None, :, None]
        quantiles = np.repeat(values, request.prediction_length, axis=2)
        quantiles = np.clip(quantiles, -1.7e308, 1.7e308)
        return Forecast(quantiles, cut.shape[1], used.shape[1] > MAX_CONTEXT)


def _cannot_start(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def load() -> MockEngine:
    mode = os.environ.get("MOCK", "")
    if mode == "absent":
        raise DeviceAbsent("device npu:0 is not there; found cpu")
    if mode == "broken":
        raise OSError("a library is missing")
    if mode == "threadless":
        threading.Thread.start = _cannot_start  # type: ignore[method-assign, assignment]
        raise RuntimeError("can't start new thread")
    engine = MockEngine()
    if mode:
        engine.pause = 1e6 if mode == "stuck" else float(mode.removeprefix("slow"))
    return engine


if __name__ == "__main__":
    import server
    from serving.settings import read

    status = server.run(read(sys.argv[1:]), load)
    sys.stdout.flush()
    os._exit(status)
