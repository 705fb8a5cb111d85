from __future__ import annotations

import pytest

from serving.admission import Admission, BodyShare, BodySpace, Pace
from serving.errors import ServiceError


def admission(most_requests: int = 3, most_tokens: int = 100, pace: Pace | None = None) -> Admission:
    return Admission(most_requests, most_tokens, pace or Pace())


def refusal(work: object, *arguments: object) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        work(*arguments)  # type: ignore[operator]
    assert caught.value.status == 429
    return caught.value


def test_requests_are_admitted_up_to_the_limit_and_again_when_one_leaves() -> None:
    door = admission()
    tickets = [door.enter(1) for _ in range(3)]
    refusal(door.enter, 1)
    refusal(door.check, 1)
    door.leave(tickets[0])
    door.enter(1)


def test_tokens_of_four_largest_requests_are_admitted() -> None:
    door = admission(most_requests=100)
    for _ in range(4):
        door.enter(100)
    refusal(door.enter, 1)


def test_a_request_that_proves_larger_than_its_size_told_is_weighed_again() -> None:
    door = admission(most_requests=100)
    tickets = [door.enter(1) for _ in range(5)]
    for ticket in tickets[:3]:
        door.weigh(ticket, 100)
    refusal(door.weigh, tickets[3], 100)
    for ticket in tickets:
        door.leave(ticket)
    assert (door.requests, door.tokens) == (0, 0)


def test_a_body_suggests_no_more_tokens_than_a_request_may_have() -> None:
    door = admission()
    assert door.suggest(0) == 1
    assert door.suggest(8000) == 11
    assert door.suggest(10**9) == 100


def test_the_wait_is_the_admitted_work_at_the_pace_of_the_last_batches() -> None:
    pace = Pace()
    pace.saw(1000, 0.5)
    pace.saw(3000, 1.5)
    door = admission(most_requests=1, most_tokens=100_000, pace=pace)
    door.enter(9001)
    assert refusal(door.enter, 1).headers["Retry-After"] == "5"


def test_the_wait_is_at_least_a_second_and_at_most_an_hour() -> None:
    pace = Pace()
    pace.saw(1, 100.0)
    door = admission(most_requests=1, pace=pace)
    door.enter(100)
    assert refusal(door.enter, 1).headers["Retry-After"] == "3600"
    assert refusal(admission(most_requests=0).enter, 1).headers["Retry-After"] == "1"


def test_bodies_of_all_requests_share_a_bound() -> None:
    space, door = BodySpace(10), admission()
    first, second = BodyShare(space, door), BodyShare(space, door)
    first.take(30)
    second.take(10)
    refusal(second.take, 1)
    first.give_back()
    second.take(30)
    second.give_back()
    second.give_back()
    assert space.held == 0
