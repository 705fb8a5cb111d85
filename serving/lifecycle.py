"""Where the service stands: loading, ready, draining or failed; and who must hear of a change."""

from __future__ import annotations

import asyncio
from typing import Literal

from .errors import ServiceError, unavailable

Phase = Literal["loading", "ready", "draining", "failed"]
SAYS = {
    "loading": "the model is being loaded",
    "ready": "the service is shutting down",
    "draining": "the service is shutting down",
    "failed": "the device has failed; the service is shutting down",
}
CUT = "the service ended before the request was answered: it was stopped, and the time for what was running is over"


class Lifecycle:
    """The service's phase and its requests in flight. Used on the event loop only."""

    def __init__(self) -> None:
        self.phase: Phase = "loading"
        self.reason = ""  # why it failed
        self.cut = 0  # requests that the end left unanswered
        self.stopping = asyncio.Event()
        self.in_flight = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self._readers: set[asyncio.Timeout] = set()

    @property
    def exit_code(self) -> int:
        return 1 if self.reason else 0

    def ready(self) -> None:
        """The model is loaded and warm."""
        if self.phase == "loading":
            self.phase = "ready"

    def drain(self) -> None:
        """Admit no more; bodies that are still being sent are not waited for."""
        self._stop("draining")

    def fail(self, reason: str) -> None:
        """The model cannot be loaded, or the device cannot be trusted any more."""
        self.reason = self.reason or reason
        self._stop("failed")

    def check(self) -> None:
        """Raises `ServiceError` with 503 unless requests are admitted."""
        if self.phase != "ready":
            raise self.refusal()

    def refusal(self) -> ServiceError:
        """The 503 of the phase that is not ready."""
        return unavailable(CUT if self.cut and not self.reason else SAYS[self.phase], self.phase, 5)

    def came(self) -> None:
        self.in_flight += 1
        self._empty.clear()

    def went(self) -> None:
        self.in_flight -= 1
        if not self.in_flight:
            self._empty.set()

    async def empty(self, seconds: float) -> bool:
        """Waits until no request is in flight; False where that takes longer than so many seconds."""
        try:
            await asyncio.wait_for(self._empty.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def reading(self, limit: asyncio.Timeout) -> None:
        """A body is read within `limit`, which ends at once when the service stops."""
        self._readers.add(limit)

    def has_read(self, limit: asyncio.Timeout) -> None:
        self._readers.discard(limit)

    def _stop(self, phase: Phase) -> None:
        self.phase = phase
        self.stopping.set()
        for limit in self._readers:
            limit.reschedule(asyncio.get_running_loop().time())
