"""A forecast from the bytes of its request to those of its answer: admit, read, parse, queue, serialise."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response

from inference import EngineInfo, Forecast, ForecastRequest

from . import answer, bodies, parsing
from .admission import STALL_SECONDS, Admission, BodyShare, BodySpace, Pace, Ticket
from .batcher import Job, Queue
from .errors import CallerGoneError, Problem, ServiceError
from .exchange import Exchange
from .lifecycle import Lifecycle
from .memory import trim
from .metrics import Metrics
from .settings import Settings
from .worker import ForecastEngine, Worker

T = TypeVar("T")
CODEC_THREADS = 2
HUGE_BYTES = 1024 * 1024
SECONDS = re.compile(r"(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


class Service:
    """Everything between the routes and the engine. Made on the event loop, used there."""

    def __init__(self, settings: Settings, load: Callable[[], ForecastEngine]) -> None:
        self.settings = settings
        self.lifecycle = Lifecycle()
        self.metrics = Metrics()
        self.queue = Queue(settings.batching)
        pace = Pace()
        self.admission = Admission(settings.max_concurrent_requests, settings.max_request_tokens, pace)
        self._space = BodySpace(settings.max_body_bytes)
        self._limits = parsing.Limits(settings.max_seq_length, settings.max_request_tokens)
        self._jobs: set[Job] = set()
        self._codec = ThreadPoolExecutor(CODEC_THREADS, "codec")
        self.metrics.watch(self.queue, self.admission)
        self.worker = Worker(load, self.queue, settings.max_batch_tokens, pace, self.metrics, self.lifecycle)
        self.worker.start()

    @property
    def info(self) -> EngineInfo:
        """What is loaded. Raises `ServiceError` with 503 while nothing is."""
        if self.worker.info is None:
            raise self.lifecycle.refusal()
        return self.worker.info

    def close(self) -> None:
        """Refuses what waits and what runs."""
        self.queue.close()
        for job in self._jobs:
            if not job.done.done():
                job.done.set_exception(self.lifecycle.refusal())
        self._codec.shutdown(wait=False, cancel_futures=True)

    async def forecast(self, request: Request) -> Response:
        """The answer to POST /v1/forecast. Raises `ServiceError`, and `CallerGoneError` if nobody waits."""
        exchange: Exchange = request.scope["exchange"]
        self.lifecycle.check()
        deadline = exchange.came + self._seconds(request)
        encoding = bodies.check_headers(request.headers, self.settings.max_body_bytes)
        suggested = self.admission.suggest(bodies.content_length(request.headers))
        self.admission.check(suggested)
        share = BodyShare(self._space)
        try:
            body = await self._read(request, share, deadline)
            exchange.features["bytes_in"] = len(body)
            ticket = self.admission.enter(max(suggested, self.admission.suggest(len(body))))
            try:
                parsed = await self._parse(body, encoding, exchange)
                huge = len(body) > HUGE_BYTES
                del body
                share.give_back()
                return await self._answer(request, parsed, ticket, deadline, exchange, huge)
            finally:
                self.admission.leave(ticket)
        finally:
            share.give_back()

    def _seconds(self, request: Request) -> float:
        """How long the request may wait: the client's X-Request-Timeout, at most the service's own."""
        own = self.settings.request_timeout_s
        text = request.headers.get("x-request-timeout")
        if text is None:
            return own
        asked = float(text) if SECONDS.fullmatch(text) else math.nan
        if not 0 < asked < math.inf:
            msg = "expected a number of seconds above 0"
            raise ServiceError(422, Problem(("header", "x-request-timeout"), msg, "timeout"))
        return min(asked, own)

    async def _read(self, request: Request, share: BodyShare, deadline: float) -> bytes:
        limit = asyncio.timeout(deadline - time.perf_counter())
        self.lifecycle.reading(limit)
        try:
            async with limit:
                return await bodies.read(request.receive, self.settings.max_body_bytes, share)
        except TimeoutError:
            self.lifecycle.check()
            msg = (
                f"the body did not arrive in time: expected it within the request's timeout, and at least "
                f"{bodies.LEAST_PROGRESS} bytes of it, or its end, in each {STALL_SECONDS:g} s"
            )
            raise ServiceError(408, Problem(("body",), msg, "timeout")) from None
        finally:
            self.lifecycle.has_read(limit)

    async def _parse(self, body: bytes, encoding: str, exchange: Exchange) -> ForecastRequest:
        start = time.perf_counter()
        parsed = await self._in_codec(self._decode, body, encoding)
        self._stage(exchange, "parse", time.perf_counter() - start)
        return parsed

    def _decode(self, body: bytes, encoding: str) -> ForecastRequest:
        try:
            return parsing.parse(bodies.expand(body, encoding, self.settings.max_body_bytes), self._limits)
        finally:
            if len(body) > HUGE_BYTES:
                trim()

    async def _answer(
        self,
        request: Request,
        parsed: ForecastRequest,
        ticket: Ticket,
        deadline: float,
        exchange: Exchange,
        huge: bool,
    ) -> Response:
        job = Job.of(parsed, self.settings.max_seq_length, asyncio.get_running_loop().create_future())
        variates, context = parsed.target.shape
        exchange.features |= {
            "variates": variates, "context": context, "horizon": parsed.prediction_length,
            "block": parsed.decode_block_size, "tokens": job.tokens,
        }  # fmt: skip
        self.admission.weigh(ticket, job.tokens)
        forecast = await self._wait(request, job, deadline)
        self._stage(exchange, "queue", job.started - job.arrived)
        self._stage(exchange, "compute", job.finished - job.started)
        exchange.features["batch"] = job.batch_size
        start = time.perf_counter()
        render = partial(answer.render, forecast, self.info, exchange.milliseconds)
        text = await self._in_codec(render)
        self._stage(exchange, "serialise", time.perf_counter() - start)
        after = BackgroundTask(self._in_codec, trim) if huge or len(text) > HUGE_BYTES else None
        return Response(text, media_type="application/json", background=after)

    async def _wait(self, request: Request, job: Job, deadline: float) -> Forecast:
        """The forecast of a job. Raises `ServiceError` with 504 past the deadline, `CallerGoneError`."""
        if not self.queue.put(job):
            raise self.lifecycle.refusal()
        self._jobs.add(job)
        gone = asyncio.ensure_future(_gone(request))
        both: tuple[asyncio.Future[Any], ...] = (job.done, gone)
        try:
            limit: float | None = max(0.0, deadline - time.perf_counter())
            while True:
                await asyncio.wait(both, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
                if job.done.done():
                    return job.done.result()
                if gone.done():
                    self.queue.drop(job)
                    self.metrics.dropped.labels("gone").inc()
                    raise CallerGoneError("while the request waited or ran")
                if self.queue.drop(job):
                    self.metrics.dropped.labels("deadline").inc()
                    waited = f"{time.perf_counter() - job.arrived:.3f} s"
                    raise ServiceError(
                        504,
                        Problem(("service",), f"the deadline passed in the queue, after {waited}", "deadline"),
                    )
                limit = None  # it runs: the answer is on its way
        finally:
            gone.cancel()
            job.done.cancel()
            self._jobs.discard(job)

    async def _in_codec(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._codec, work, *arguments)

    def _stage(self, exchange: Exchange, stage: str, seconds: float) -> None:
        exchange.stages[stage] = seconds
        self.metrics.stages.labels(stage).observe(seconds)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
