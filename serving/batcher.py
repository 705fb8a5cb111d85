"""Requests that wait, and which of them run together next. No torch, no HTTP, no timer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from inference import PATCH, Forecast, ForecastRequest

LEAST_USEFUL = 0.75  # of a batch's tokens; the rest is padding
LARGE_SHARE = 0.5  # of a batch's bound: a request above it is large, and yields the next batch to a small one


@dataclass(eq=False)
class Job:
    """A request that waits or runs, its size in patches, and the answer to come."""

    request: ForecastRequest
    rows: int
    context: int  # patches
    horizon: int  # patches
    block: int  # patches of a pass
    done: asyncio.Future[Forecast]
    arrived: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    finished: float = 0.0
    batch_size: int = 0

    @classmethod
    def of(cls, request: ForecastRequest, max_context: int, done: asyncio.Future[Forecast]) -> Job:
        context, horizon = request.patches(max_context)
        block = request.decode_block_size
        passes = horizon if block is None else min(horizon, block // PATCH)
        return cls(request, request.rows, context, horizon, passes, done)

    @property
    def tokens(self) -> int:
        return self.rows * (self.context + self.horizon)


def computed_tokens(jobs: Sequence[Job]) -> int:
    """Tokens that a batch of these costs: rows as long as the longest, later blocks for rows not yet done."""
    tokens = sum(job.rows for job in jobs) * max(job.context for job in jobs)
    left = [(job.rows, job.horizon, job.block) for job in jobs]
    while left:
        longest = max(min(horizon, block) for _, horizon, block in left)
        tokens += sum(rows for rows, _, _ in left) * longest
        left = [(rows, horizon - block, block) for rows, horizon, block in left if horizon > block]
    return tokens


def choose(waiting: Sequence[Job], most_tokens: int, after_large: bool = False) -> list[Job]:
    """The next batch. The oldest request leads it; after a large request's batch, the oldest small one does.

    Others join, those nearest in size first, while the batch stays within `most_tokens` and at least three
    quarters of its tokens are the requests' own. The leader runs whatever its size.
    """
    leader = waiting[0]
    if after_large:
        leader = next((job for job in waiting if not large(job, most_tokens)), leader)
    batch, useful = [leader], leader.tokens
    others = (job for job in waiting if job is not leader)
    for job in sorted(others, key=lambda job: abs(job.context - leader.context) + abs(job.horizon - leader.horizon)):
        cost = computed_tokens([*batch, job])
        if cost <= most_tokens and useful + job.tokens >= LEAST_USEFUL * cost:
            batch.append(job)
            useful += job.tokens
    return batch


def large(job: Job, most_tokens: int) -> bool:
    return job.tokens > LARGE_SHARE * most_tokens


class Queue:
    """Where jobs wait: filled by the event loop, emptied by the device thread."""

    def __init__(self, batching: bool = True) -> None:
        self.batching = batching
        self.most_tokens = 2
        self._changed = threading.Condition()
        self._waiting: list[Job] = []
        self._closed = False
        self._after_large = False

    def put(self, job: Job) -> bool:
        """Adds a job; False once closed."""
        with self._changed:
            if self._closed:
                return False
            self._waiting.append(job)
            self._changed.notify()
            return True

    def drop(self, job: Job) -> bool:
        """Takes a job out that still waits; False where it is running or has run."""
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
                return True
            return False

    def take(self) -> list[Job] | None:
        """The next batch, as soon as a job waits; None once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            batch = choose(self._waiting, self.most_tokens, self._after_large) if self.batching else self._waiting[:1]
            self._after_large = large(batch[0], self.most_tokens)
            self._waiting = [job for job in self._waiting if job not in batch]
            return batch

    def close(self) -> list[Job]:
        """Ends `take`; returns the jobs that will not run."""
        with self._changed:
            self._closed = True
            left, self._waiting = self._waiting, []
            self._changed.notify_all()
            return left

    def waiting(self) -> tuple[int, int]:
        """How many jobs wait, and their tokens."""
        with self._changed:
            return len(self._waiting), sum(job.tokens for job in self._waiting)
