"""The service on a socket of its own, in a thread, with the mock engine; and a client that sends what it is told."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn
from mock_engine import MockEngine

from server import create_app
from serving import logs, process
from serving.settings import Settings
from serving.worker import ForecastEngine

TIMEOUT = 20.0


@dataclass
class Answer:
    """Status, headers (lower case), raw bytes."""

    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def text(self) -> str:
        return self.raw.decode()


@dataclass
class Live:
    """A running service: its port, its application, its engine."""

    port: int
    server: uvicorn.Server
    app: Any
    engine: Any

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def service(self) -> Any:
        return self.app.state.service

    def ask(
        self,
        body: Any = b"",
        method: str = "POST",
        path: str = "/v1/forecast",
        headers: dict[str, str] | None = None,
        chunked: bool = False,
    ) -> Answer:
        """Sends a body (bytes as they are, else as JSON) and reads the answer."""
        raw = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        try:
            data: Any = iter([raw[:7], raw[7:]]) if chunked else raw
            sent = {"content-type": "application/json"} | (headers or {})
            connection.request(method, path, data, sent, encode_chunked=chunked)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str, headers: dict[str, str] | None = None) -> Answer:
        return self.ask(method="GET", path=path, headers=headers)

    def metric(self, name: str) -> float:
        """The value of a metric, named with its labels as the exposition has them."""
        for line in self.get("/metrics").text.splitlines():
            if line.startswith(name + " "):
                return float(line.rsplit(" ", 1)[1])
        raise KeyError(name)

    def send(self, raw: bytes) -> socket.socket:
        """An open connection on which these bytes were sent."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT)
        connection.sendall(raw)
        return connection


def read_answer(connection: socket.socket) -> Answer:
    """One answer from an open connection."""
    with contextlib.closing(http.client.HTTPResponse(connection)) as response:
        response.begin()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


def head(length: int, more: str = "", path: str = "/v1/forecast", method: str = "POST") -> bytes:
    """A request's head that announces a body of so many bytes."""
    return (
        f"{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n{more}\r\n"
    ).encode()


def forecast(series: object, horizon: object = 8, **more: object) -> dict[str, object]:
    return {"series": series, "prediction_length": horizon} | more


def until(true: Callable[[], bool]) -> None:
    """Waits for another thread to make it true."""
    done = threading.Event()
    for _ in range(2000):
        if true():
            return
        done.wait(0.005)
    raise AssertionError("it did not become true")


@contextlib.contextmanager
def running(engine: ForecastEngine | None = None, ready: bool = True, **settings: Any) -> Iterator[Live]:
    """The service with an engine (a mock one by default) on a free port of the loopback, for a `with` block."""
    engine = engine or MockEngine()
    load = settings.pop("load", lambda: engine)
    logs.configure("json", "error")
    app = create_app(Settings(**settings), load)
    listener = process.bind("127.0.0.1", 0)
    server = uvicorn.Server(process.config(app))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    live = Live(listener.getsockname()[1], server, app, engine)
    try:
        until(lambda: server.started)
        if ready:
            until(lambda: live.service.lifecycle.phase == "ready")
        yield live
    finally:
        server.should_exit = True
        if isinstance(engine, MockEngine):
            engine.open.set()
        server.config.timeout_graceful_shutdown = 1
        thread.join(TIMEOUT)
        assert not thread.is_alive()
