"""Around every exchange: request id, key, a log line, counts, `Server-Timing`, an answer to any exception."""

from __future__ import annotations

import re
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import errors, logs
from .auth import Keys
from .errors import CallerGoneError

if TYPE_CHECKING:
    from .service import Service

SANE_ID = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
ROUTES = {"/v1/forecast", "/v1/models", "/health", "/ready", "/metrics", "/docs", "/openapi.json"}
QUIET = {"/health", "/ready", "/metrics"}
GONE = 499


@dataclass
class Exchange:
    """One request and its answer: when it came, its id, its stages' seconds, its features for the log."""

    id: str
    came: float = field(default_factory=time.perf_counter)
    stages: dict[str, float] = field(default_factory=dict)
    features: dict[str, Any] = field(default_factory=dict)
    status: int = 0

    def milliseconds(self) -> float:
        return 1000 * (time.perf_counter() - self.came)


class Exchanges:
    """ASGI middleware. The service is made when the application starts, so each request looks it up."""

    def __init__(self, app: ASGIApp, keys: Keys | None) -> None:
        self._app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        exchange = Exchange(given if SANE_ID.fullmatch(given) else uuid.uuid4().hex)
        scope["exchange"] = exchange
        service: Service = scope["app"].state.service
        service.lifecycle.came()
        try:
            await self._ask(scope, headers, receive, _stamping(exchange, service, send))
        finally:
            service.lifecycle.went()
            _record(scope, exchange, service)

    async def _ask(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        exchange: Exchange = scope["exchange"]
        try:
            if self._keys is not None and scope["path"].startswith("/v1/"):
                exchange.features["caller"] = self._keys.name(headers)
            await self._app(scope, receive, send)
        except CallerGoneError as gone:
            exchange.status = GONE
            exchange.features["gone"] = str(gone)
        except Exception as error:
            if not isinstance(error, errors.ServiceError):
                logs.get().error("internal error", id=exchange.id, exc_info=True)
            if exchange.status:
                raise  # the answer has begun: only the connection can be closed
            await errors.response(error)(scope, receive, send)


def _stamping(exchange: Exchange, service: Service, send: Send) -> Send:
    async def stamped(message: Message) -> None:
        if message["type"] == "http.response.start":
            exchange.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-ID"] = exchange.id
            timed = [*exchange.stages.items(), ("total", exchange.milliseconds() / 1000)]
            headers["Server-Timing"] = ", ".join(f"{name};dur={1000 * seconds:.2f}" for name, seconds in timed)
            if service.lifecycle.stopping.is_set():
                headers["Connection"] = "close"
        await send(message)

    return stamped


def _record(scope: Scope, exchange: Exchange, service: Service) -> None:
    route = scope["path"] if scope["path"] in ROUTES else "other"
    seconds = time.perf_counter() - exchange.came
    service.metrics.requests.labels(route, str(exchange.status)).inc()
    service.metrics.seconds.labels(route).observe(seconds)
    log = logs.get()
    line = log.debug if route in QUIET else log.info
    stages = {f"{name}_ms": round(1000 * taken, 2) for name, taken in exchange.stages.items()}
    line("request", id=exchange.id, method=scope["method"][:16], route=route, status=exchange.status,
         ms=round(1000 * seconds, 2), **stages, **exchange.features)  # fmt: skip
