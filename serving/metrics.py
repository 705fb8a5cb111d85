"""What an operator sees: Prometheus metrics in a registry of their own, every label from a bounded set."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from inference import EngineInfo

    from .admission import Admission
    from .batcher import Queue

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
STAGES = ("parse", "queue", "compute", "serialise")
VERSION = "0.1.0"

disable_created_metrics()  # type: ignore[no-untyped-call]  # a gauge a series that nobody reads


class Metrics:
    """The counters and histograms of one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        ProcessCollector(registry=r)
        self.requests = Counter("toto_requests", "Answers by place and status", ["route", "status"], registry=r)
        self.seconds = Histogram(
            "toto_request_seconds", "Seconds a request took", ["route"], buckets=SECONDS, registry=r
        )
        self.stages = Histogram(
            "toto_stage_seconds", "Seconds of a forecast by stage", ["stage"], buckets=SECONDS, registry=r
        )
        self.dropped = Counter(
            "toto_dropped", "Requests that left before they ran or were answered", ["reason"], registry=r
        )
        self.batch_requests = Histogram(
            "toto_batch_requests", "Requests in a batch", buckets=(1, 2, 4, 8, 16, 32, 64, 128), registry=r
        )
        self.batch_tokens = Histogram(
            "toto_batch_tokens",
            "Tokens computed in a batch",
            buckets=[4**k for k in range(2, 10)],
            registry=r,
        )
        self.useful = Counter("toto_tokens_useful", "Tokens that requests asked for", registry=r)
        self.computed = Counter("toto_tokens_computed", "Tokens computed, padding included", registry=r)
        self.out_of_memory = Counter("toto_out_of_memory", "Batches that did not fit the device", registry=r)
        self.memory = Gauge("toto_device_memory_bytes", "Memory of the device", ["kind"], registry=r)
        self.load = Gauge("toto_model_load_seconds", "Seconds that loading the model took", registry=r)
        self.ready = Gauge("toto_ready", "1 while requests are admitted", registry=r)
        self.model = Gauge("toto_model_info", "What is loaded", ["name", "sha256", "device", "dtype"], registry=r)
        build = Gauge("toto_build_info", "This program", ["version", "python"], registry=r)
        build.labels(VERSION, platform.python_version()).set(1)
        for stage in STAGES:
            self.stages.labels(stage)
        for reason in ("gone", "deadline"):
            self.dropped.labels(reason)

    def watch(self, queue: Queue, admission: Admission) -> None:
        """Reads the queue's length at every scrape."""
        self.registry.register(_Work(queue, admission))

    def loaded(self, info: EngineInfo) -> None:
        self.load.set(info.load_seconds)
        self.model.labels(info.name, info.sha256, info.device, info.dtype).set(1)

    def batch(self, requests: int, useful: int, computed: int, memory: tuple[int, int] | None) -> None:
        """Counts a batch that has run; memory is (used, total) bytes of the device."""
        self.batch_requests.observe(requests)
        self.batch_tokens.observe(computed)
        self.useful.inc(useful)
        self.computed.inc(computed)
        if memory is not None:
            self.memory.labels("used").set(memory[0])
            self.memory.labels("total").set(memory[1])

    def text(self) -> bytes:
        """The exposition format, version 0.0.4."""
        return generate_latest(self.registry)


class _Work(Collector):
    def __init__(self, queue: Queue, admission: Admission) -> None:
        self._queue, self._admission = queue, admission

    def collect(self) -> Iterator[GaugeMetricFamily]:
        waiting, tokens = self._queue.waiting()
        yield GaugeMetricFamily("toto_queue_requests", "Requests that wait for the device", waiting)
        yield GaugeMetricFamily("toto_queue_tokens", "Tokens that wait for the device", tokens)
        yield GaugeMetricFamily(
            "toto_admitted_requests", "Requests between admission and answer", self._admission.requests
        )
        yield GaugeMetricFamily("toto_admitted_tokens", "Their tokens", self._admission.tokens)
