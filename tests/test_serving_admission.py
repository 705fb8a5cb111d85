from __future__ import annotations

import pytest

from serving.admission import SMALL_BODIES_AT_ONCE, SMALL_BODY_BYTES, Admission, BodyShare, BodySpace, Pace
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
    refusal(door.enter, 10)


def test_room_for_one_more_of_the_largest_is_kept_for_small_requests() -> None:
    door = admission(most_requests=100)
    for _ in range(4):
        door.enter(100)
    tickets = [door.enter(5) for _ in range(20)]
    refusal(door.enter, 1)
    refusal(door.weigh, tickets[0], 7)


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


def test_large_bodies_share_the_room_of_four_of_them() -> None:
    large = 1_000_000
    space = BodySpace(large)
    shares = [BodyShare(space) for _ in range(5)]
    for share in shares[:4]:
        share.take(large - 1)
        share.take(1)
    error = refusal(shares[4].take, large)
    assert error.problems[0].type == "bodies_full"
    assert error.headers["Retry-After"] == "10"  # when a body that stalls is let go
    shares[0].give_back()
    shares[4].take(large)
    for share in shares * 2:
        share.give_back()
    assert space.held == 0


def test_large_bodies_leave_room_for_small_ones() -> None:
    space = BodySpace(1_000_000)
    for _ in range(4):
        BodyShare(space).take(1_000_000)
    for _ in range(SMALL_BODIES_AT_ONCE - 4):
        BodyShare(space).take(SMALL_BODY_BYTES)
    refusal(BodyShare(space).take, 1)
