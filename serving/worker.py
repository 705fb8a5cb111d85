"""The one thread that owns the device: loads the model, warms it up, runs batches, says when it cannot."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from inference import EngineInfo, Forecast, ForecastRequest, UnusableRequest
from toto2.errors import DeviceFailure, OutOfDeviceMemory

from . import logs
from .admission import Pace
from .batcher import Job, Queue, computed_tokens
from .errors import Problem, ServiceError
from .lifecycle import Lifecycle
from .memory import trim
from .metrics import Metrics

CPU_BATCH_TOKENS = 2048  # a CPU gains nothing from more at once, and callers wait for the whole batch
DEVICE_BATCH_TOKENS = 32768
TRIM_SECONDS = 5.0  # batches of all sizes leave holes, which would add up to hundreds of MiB
WARM_UP = ((1, 32, 32), (3, 512, 96))  # variates, context, horizon


class ForecastEngine(Protocol):
    """What the service needs of an engine. Used on the thread that loaded it only."""

    @property
    def info(self) -> EngineInfo: ...

    def forecast(self, requests: Sequence[ForecastRequest]) -> list[Forecast]: ...

    def memory(self) -> tuple[int, int] | None: ...


class Worker(threading.Thread):
    """Owns the device. Everything it tells the event loop goes through `call_soon_threadsafe`."""

    def __init__(
        self,
        load: Callable[[], ForecastEngine],
        queue: Queue,
        most_batch_tokens: int | None,
        pace: Pace,
        metrics: Metrics,
        lifecycle: Lifecycle,
    ) -> None:
        super().__init__(name="device", daemon=True)
        self._load, self._queue, self._most = load, queue, most_batch_tokens
        self._pace, self._metrics, self._lifecycle = pace, metrics, lifecycle
        self._loop = asyncio.get_running_loop()
        self._engine: ForecastEngine
        self._batch: list[Job] = []
        self._busy_since: float | None = time.monotonic()
        self.info: EngineInfo | None = None

    def stalled(self, seconds: float) -> bool:
        """Whether the thread has died, or one piece of work has taken longer than so many seconds."""
        since = self._busy_since
        return not self.is_alive() or (since is not None and time.monotonic() - since > seconds)

    def run(self) -> None:
        try:
            self._start()
            self._serve()
        except (DeviceFailure, ValueError) as error:  # its message is one line and says what to do
            self._fail(str(error))
        except BaseException as error:
            logs.get().error("device thread ended", exc_info=True)
            self._fail(f"{type(error).__name__}: {error}")

    def _start(self) -> None:
        self._engine = self._load()
        info = self._engine.info
        self._queue.most_tokens = self._most or (CPU_BATCH_TOKENS if info.device == "cpu" else DEVICE_BATCH_TOKENS)
        for variates, context, horizon in WARM_UP * 2:
            wave = np.sin(np.arange(variates * context, dtype=np.float64)).reshape(variates, context)
            request = ForecastRequest(wave, horizon)
            start = time.perf_counter()
            self._engine.forecast([request])
            seconds = time.perf_counter() - start
        self._pace.saw(variates * -(-(context + horizon) // 32), seconds)
        gc.collect()
        gc.freeze()  # what lives as long as the process is not looked through again, which took 0.1 s each time
        self._metrics.loaded(info)
        self.info = info
        self._tell(self._lifecycle.ready)
        logs.get().info(
            "ready", model=info.name, device=info.device, dtype=info.dtype, load_s=round(info.load_seconds, 3)
        )

    def _serve(self) -> None:
        self._busy_since = None
        trimmed = 0.0
        while (jobs := self._queue.take()) is not None:
            self._busy_since, self._batch = time.monotonic(), jobs
            self._run(jobs)
            self._busy_since, self._batch = None, []
            if time.monotonic() - trimmed > TRIM_SECONDS:
                trim()
                trimmed = time.monotonic()

    def _run(self, jobs: list[Job]) -> None:
        """Forecasts a batch; where it does not fit or fails, its halves, down to the one request at fault."""
        start = time.perf_counter()
        for job in jobs:
            job.started, job.batch_size = start, len(jobs)
        try:
            forecasts = self._engine.forecast([job.request for job in jobs])
        except DeviceFailure:
            raise
        except (OutOfDeviceMemory, MemoryError):
            self._metrics.out_of_memory.inc()
            logs.get().warning("out of device memory", requests=len(jobs), tokens=computed_tokens(jobs))
            self._halve(jobs, _does_not_fit)
        except UnusableRequest as error:
            unusable = ServiceError(422, Problem(("body", "series"), str(error), "unusable"))
            self._halve(jobs, lambda _: unusable)
        except Exception as error:
            failure = error
            logs.get().error("batch failed", requests=len(jobs), error=type(error).__name__)
            self._halve(jobs, lambda _: failure)
        else:
            self._answer(jobs, forecasts, time.perf_counter())

    def _halve(self, jobs: list[Job], why: Callable[[Job], Exception]) -> None:
        if len(jobs) == 1:
            error = why(jobs[0])
            self._tell(lambda: _refuse(jobs, error))
            return
        middle = len(jobs) // 2
        self._run(jobs[:middle])
        self._run(jobs[middle:])

    def _answer(self, jobs: list[Job], forecasts: list[Forecast], finished: float) -> None:
        for job in jobs:
            job.finished = finished
        self._tell(lambda: _deliver(jobs, forecasts))
        computed = computed_tokens(jobs)
        self._pace.saw(computed, finished - jobs[0].started)
        self._metrics.batch(len(jobs), sum(job.tokens for job in jobs), computed, self._engine.memory())

    def _fail(self, reason: str) -> None:
        def tell() -> None:
            self._lifecycle.fail(reason)
            _refuse([*self._batch, *self._queue.close()], self._lifecycle.refusal())

        self._tell(tell)

    def _tell(self, what: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what)


def _deliver(jobs: list[Job], forecasts: list[Forecast]) -> None:
    for job, forecast in zip(jobs, forecasts, strict=True):
        if not job.done.done():
            job.done.set_result(forecast)


def _refuse(jobs: list[Job], error: Exception) -> None:
    for job in jobs:
        if not job.done.done():
            job.done.set_exception(error)


def _does_not_fit(job: Job) -> ServiceError:
    msg = f"{job.tokens} tokens of work do not fit the device's memory; ask for fewer variates or less context"
    return ServiceError(413, Problem(("body", "series"), msg, "out_of_device_memory"))
