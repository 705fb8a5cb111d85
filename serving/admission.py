"""One rule for every request: it is admitted while there is room for it, in requests and in tokens."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from .errors import Problem, ServiceError, wait

BYTES_PER_TOKEN = 800  # 32 values of 25 bytes: few bodies hold less work for their size
BODIES_AT_ONCE = 4
REQUESTS_OF_WORK = 4


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
    its size suggests, then with those it has.
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
        self._check_tokens(tokens)

    def enter(self, tokens: int) -> Ticket:
        """Takes a place. Raises `ServiceError` with 429."""
        self.check(tokens)
        self.requests += 1
        self.tokens += tokens
        return Ticket(tokens)

    def weigh(self, ticket: Ticket, tokens: int) -> None:
        """Gives a place the tokens of the parsed request. Raises `ServiceError` with 429 for want of room."""
        self._check_tokens(tokens - ticket.tokens)
        self.tokens += tokens - ticket.tokens
        ticket.tokens = tokens

    def leave(self, ticket: Ticket) -> None:
        self.requests -= 1
        self.tokens -= ticket.tokens

    def wait_seconds(self) -> float:
        """How long the admitted work takes."""
        return self.pace.seconds(self.tokens)

    def _check_tokens(self, more: int) -> None:
        if self.tokens + more > self.most_tokens:
            raise self._full(f"{self.tokens} tokens of work are admitted, at most {self.most_tokens}")

    def _full(self, found: str) -> ServiceError:
        return ServiceError(
            429,
            Problem(("service",), f"the queue is full: {found}", "queue_full"),
            headers=wait(self.wait_seconds()),
        )


class BodySpace:
    """Bytes of bodies that are being read or parsed, all requests together: at most four of the largest."""

    def __init__(self, most_body_bytes: int) -> None:
        self.most = BODIES_AT_ONCE * most_body_bytes
        self.held = 0


class BodyShare:
    """One request's share of a `BodySpace`: a context manager that gives back what it took."""

    def __init__(self, space: BodySpace, admission: Admission) -> None:
        self._space, self._admission, self._held = space, admission, 0

    def take(self, length: int) -> None:
        """Counts bytes that came. Raises `ServiceError` with 429 where all requests hold too many."""
        if self._space.held + length > self._space.most:
            msg = f"{self._space.held} bytes of bodies are held, at most {self._space.most}"
            retry = wait(self._admission.wait_seconds())
            raise ServiceError(429, Problem(("service",), msg, "bodies_full"), headers=retry)
        self._space.held += length
        self._held += length

    def give_back(self) -> None:
        self._space.held -= self._held
        self._held = 0
