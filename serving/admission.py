"""One rule for every request: it is admitted while there is room for it, in requests and in tokens."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from .errors import Problem, ServiceError, wait

BYTES_PER_TOKEN = 800  # 32 values of 25 bytes: few bodies hold less work for their size
BODIES_AT_ONCE = 4
SMALL_BODY_BYTES = 256 * 1024
SMALL_BODIES_AT_ONCE = 128
REQUESTS_OF_WORK = 4
SMALL_WORK = 16  # a request with at most this part of the largest one's tokens is small
STALL_SECONDS = 10.0  # in which a body must bring `bodies.LEAST_PROGRESS`: a stalled one gives its room back then


class Pace:
    """Seconds a token takes, over the last batches; written by the device thread, read by the event loop."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, float]] = deque(maxlen=32)

    def saw(self, tokens: int, seconds: float) -> None:
        self._batches.append((tokens, seconds))

    def seconds(self, tokens: int) -> float:
        """How long so many tokens take; 1 second where nothing has run yet."""
        seen = list(self._batches)
        return tokens * sum(s for _, s in seen) / sum(t for t, _ in seen) if seen else 1.0


@dataclass(eq=False)
class Ticket:
    """A request's place: how many tokens it holds."""

    tokens: int


class Admission:
    """Counts admitted requests and their tokens. Used on the event loop only.

    A request holds its place from before its body is parsed until it is answered: first with the tokens that
    its size suggests, then with those it has. Room for one more of the largest is kept for small ones, so that
    a few large requests refuse large ones only.
    """

    def __init__(self, most_requests: int, most_request_tokens: int, pace: Pace) -> None:
        self.most_requests = most_requests
        self.most_request_tokens = most_request_tokens
        self.most_tokens = REQUESTS_OF_WORK * most_request_tokens
        self.pace = pace
        self.requests = 0
        self.tokens = 0

    def suggest(self, body_bytes: int) -> int:
        """The tokens that a body of so many bytes holds at least, as bodies usually are."""
        return min(1 + body_bytes // BYTES_PER_TOKEN, self.most_request_tokens)

    def check(self, tokens: int) -> None:
        """Raises `ServiceError` with 429 where one more request, of so many tokens, has no room."""
        if self.requests >= self.most_requests:
            raise self._full(f"{self.requests} requests are admitted, at most {self.most_requests}")
        self._check_tokens(tokens, tokens)

    def enter(self, tokens: int) -> Ticket:
        """Takes a place. Raises `ServiceError` with 429."""
        self.check(tokens)
        self.requests += 1
        self.tokens += tokens
        return Ticket(tokens)

    def weigh(self, ticket: Ticket, tokens: int) -> None:
        """Gives a place the tokens of the parsed request. Raises `ServiceError` with 429 for want of room."""
        self._check_tokens(tokens - ticket.tokens, tokens)
        self.tokens += tokens - ticket.tokens
        ticket.tokens = tokens

    def leave(self, ticket: Ticket) -> None:
        self.requests -= 1
        self.tokens -= ticket.tokens

    def wait_seconds(self) -> float:
        """How long the admitted work takes."""
        return self.pace.seconds(self.tokens)

    def _check_tokens(self, more: int, whole: int) -> None:
        small = SMALL_WORK * whole <= self.most_request_tokens
        most = self.most_tokens + (self.most_request_tokens if small else 0)
        if self.tokens + more > most:
            raise self._full(f"{self.tokens} tokens of work are admitted, at most {most}")

    def _full(self, found: str) -> ServiceError:
        return ServiceError(
            429,
            Problem(("service",), f"the queue is full: {found}", "queue_full"),
            headers=wait(self.wait_seconds()),
        )


class BodySpace:
    """Bytes of bodies that are being read or parsed, all requests together.

    The first 256 KiB of each body have room of their own, for 128 bodies; what is beyond them shares the room of
    four of the largest bodies. So large bodies never take the room of small ones.
    """

    def __init__(self, most_body_bytes: int) -> None:
        self.most_first = SMALL_BODIES_AT_ONCE * min(SMALL_BODY_BYTES, most_body_bytes)
        self.most_beyond = BODIES_AT_ONCE * max(0, most_body_bytes - SMALL_BODY_BYTES)
        self.first = 0
        self.beyond = 0

    @property
    def held(self) -> int:
        return self.first + self.beyond


class BodyShare:
    """One request's share of a `BodySpace`: what it took, until it is given back."""

    def __init__(self, space: BodySpace) -> None:
        self._space, self._first, self._beyond = space, 0, 0

    def take(self, length: int) -> None:
        """Counts bytes that came. Raises `ServiceError` with 429 where all requests hold too many."""
        first = min(length, SMALL_BODY_BYTES - self._first)
        beyond = length - first
        if self._space.first + first > self._space.most_first:
            raise _bodies_full(self._space.first, self._space.most_first)
        if self._space.beyond + beyond > self._space.most_beyond:
            raise _bodies_full(self._space.beyond, self._space.most_beyond)
        self._space.first += first
        self._space.beyond += beyond
        self._first += first
        self._beyond += beyond

    def give_back(self) -> None:
        self._space.first -= self._first
        self._space.beyond -= self._beyond
        self._first = self._beyond = 0


def _bodies_full(held: int, most: int) -> ServiceError:
    msg = f"{held} bytes of bodies are held, at most {most}"
    return ServiceError(429, Problem(("service",), msg, "bodies_full"), headers=wait(STALL_SECONDS))
