from __future__ import annotations

import asyncio
import threading
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inference import ForecastRequest
from serving.batcher import LEAST_USEFUL, Job, Queue, choose, computed_tokens, large

BOUND = 1000


def job(rows: int = 1, context: int = 10, horizon: int = 3, block: int | None = None) -> Job:
    """A job of so many rows and patches; its future belongs to nobody."""
    future: Any = object()
    request = ForecastRequest(np.zeros((1, 1)), 1)
    return Job(request, rows, context, horizon, min(block or horizon, horizon), future)


SIZES = st.tuples(st.integers(1, 50), st.integers(1, 128), st.integers(1, 40), st.sampled_from([None, 1, 3, 24]))
WAITING = st.lists(SIZES.map(lambda size: job(*size)), min_size=1, max_size=40)


@given(WAITING, st.booleans())
def test_a_batch_is_within_its_bound_and_mostly_useful_unless_it_is_one_request(jobs: list[Job], after: bool) -> None:
    batch = choose(jobs, BOUND, after)
    cost = computed_tokens(batch)
    assert len(batch) == 1 or (cost <= BOUND and sum(j.tokens for j in batch) >= LEAST_USEFUL * cost)
    assert len(set(map(id, batch))) == len(batch)


@given(WAITING)
def test_the_oldest_request_leads(jobs: list[Job]) -> None:
    assert choose(jobs, BOUND)[0] is jobs[0]


@given(WAITING)
def test_after_a_large_request_the_oldest_small_one_leads(jobs: list[Job]) -> None:
    small = [j for j in jobs if not large(j, BOUND)]
    assert choose(jobs, BOUND, after_large=True)[0] is (small or jobs)[0]


@given(st.lists(SIZES, min_size=1, max_size=30))
def test_a_small_request_waits_for_one_batch_of_large_ones_at_most(
    sizes: list[tuple[int, int, int, int | None]],
) -> None:
    queue = Queue()
    queue.most_tokens = BOUND
    for size in sizes:
        queue.put(job(*size))
    ran = [queue.take() for _ in iter(queue.waiting, (0, 0))]
    for first, second in pairwise(ran):
        assert first
        assert second
        small_left = any(not large(j, BOUND) for batch in ran[ran.index(second) :] for j in batch or [])
        assert not (large(first[0], BOUND) and large(second[0], BOUND) and small_left)
    assert sum(len(batch or []) for batch in ran) == len(sizes)


def test_equal_requests_share_a_batch_without_padding() -> None:
    jobs = [job(3, 16, 3) for _ in range(10)]
    batch = choose(jobs, BOUND)
    assert batch == jobs
    assert computed_tokens(batch) == sum(j.tokens for j in batch) == 570


def test_a_long_context_does_not_drag_short_ones_along() -> None:
    jobs = [job(1, 128, 3), job(1, 2, 3), job(1, 120, 3)]
    assert choose(jobs, BOUND) == [jobs[0], jobs[2]]


def test_later_blocks_cost_the_rows_that_still_decode() -> None:
    short, long = job(2, 4, 1), job(3, 4, 7, block=3)
    assert computed_tokens([long]) == long.tokens
    assert computed_tokens([short, long]) == 5 * 4 + 5 * 3 + 3 * 3 + 3 * 1


def test_jobs_run_one_at_a_time_when_batching_is_off() -> None:
    queue = Queue(batching=False)
    queue.most_tokens = BOUND
    jobs = [job() for _ in range(3)]
    for each in jobs:
        queue.put(each)
    assert [queue.take() for _ in jobs] == [[each] for each in jobs]


def test_a_dropped_job_does_not_run() -> None:
    queue = Queue()
    queue.most_tokens = BOUND
    first, second = job(), job()
    queue.put(first)
    queue.put(second)
    assert queue.drop(first)
    assert queue.take() == [second]
    assert not queue.drop(second)
    assert queue.waiting() == (0, 0)


def test_closing_wakes_the_device_thread_and_returns_what_will_not_run() -> None:
    queue = Queue()
    taken: list[Any] = []
    thread = threading.Thread(target=lambda: taken.append(queue.take()))
    thread.start()
    assert queue.close() == []
    thread.join(10)
    assert taken == [None]
    assert not queue.put(job())


def test_a_job_knows_its_size_in_patches() -> None:
    async def of(request: ForecastRequest) -> Job:
        return Job.of(request, 640, asyncio.get_running_loop().create_future())

    request = ForecastRequest(np.zeros((3, 1000)), 100, 64)
    found = asyncio.run(of(request))
    assert (found.rows, found.context, found.horizon, found.block, found.tokens) == (3, 20, 4, 2, 72)
