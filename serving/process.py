"""The process around the application: its socket, its signals, and the way it ends."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
from types import FrameType

import uvicorn
from fastapi import FastAPI

from . import logs
from .protocol import Protocol
from .service import Service
from .settings import Settings

BACKLOG = 2048
KEEP_ALIVE_S = 75  # longer than the 60 s of common load balancers, which must be the ones to close
FAILURE_DRAIN_S = 2.0
EXIT_S, EXIT_SHARE = 1.0, 0.25  # of the time to drain, for the answers to what is cut and for the exit itself


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; taken before the model is loaded, so that a second server finds out at once.

    Raises `OSError` whose text is one line.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise OSError(f"cannot listen on {host}: {error.strerror or error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    return listener


def config(app: FastAPI) -> uvicorn.Config:
    """How the application is served: one process, httptools, no access log of uvicorn's own."""
    return uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        backlog=BACKLOG,
    )


class Server(uvicorn.Server):
    """Uvicorn, ended by the service's lifecycle: SIGTERM and SIGINT drain it, a failure ends it too."""

    def __init__(self, app: FastAPI, settings: Settings) -> None:
        super().__init__(config(app))
        self._app = app
        self._drain_s = settings.drain_timeout_s
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self._ending = asyncio.create_task(self._end())

    @property
    def service(self) -> Service:
        service: Service = self._app.state.service
        return service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains; a second one ends the process at once."""
        if self._loop is None or self.service.lifecycle.stopping.is_set():
            os._exit(1)
        self._loop.call_soon_threadsafe(self._drain, sig)

    def _drain(self, sig: int) -> None:
        lifecycle = self.service.lifecycle
        lifecycle.drain()
        logs.get().info("draining", signal=sig, in_flight=lifecycle.in_flight, at_most_s=self._drain_s)

    async def _end(self) -> None:
        """Waits for the end to begin, gives what is admitted its time, then lets uvicorn close the rest."""
        lifecycle = self.service.lifecycle
        await lifecycle.stopping.wait()
        whole = FAILURE_DRAIN_S if lifecycle.phase == "failed" else self._drain_s
        self._end_by(whole)
        end = time.monotonic() + whole
        spare = min(EXIT_S, EXIT_SHARE * whole)
        if not await lifecycle.empty(whole - spare):
            lifecycle.cut = lifecycle.in_flight
            logs.get().warning("requests cut short", in_flight=lifecycle.cut, waited_s=round(whole - spare, 3))
            self.service.close()
            await lifecycle.empty(spare / 3)
        self.config.timeout_graceful_shutdown = max(spare / 6, end - time.monotonic() - spare / 2)  # type: ignore[assignment]
        self.should_exit = True

    def _end_by(self, seconds: float) -> None:
        """Ends the process then, whatever clients, the loop or the device do."""
        last = threading.Timer(seconds, os._exit, [1])
        last.daemon = True
        try:
            last.start()
        except RuntimeError:  # no thread can be started, which may be why the device failed; the loop still runs
            asyncio.get_running_loop().call_later(seconds, os._exit, 1)


def run(app: FastAPI, settings: Settings, listener: socket.socket) -> int:
    """Serves until the end; returns the exit status. The last log line says why."""
    host, port = listener.getsockname()[:2]
    logs.get().info("listening", host=host, port=port)
    server = Server(app, settings)
    server.run(sockets=[listener])
    lifecycle = server.service.lifecycle
    if lifecycle.reason:
        print(f"server.py: {lifecycle.reason}", file=sys.stderr)
    ended = f"cut: DRAIN_TIMEOUT_S was over with {lifecycle.cut} unanswered" if lifecycle.cut else "drained"
    level = 40 if lifecycle.reason else 30 if lifecycle.cut else 20
    logs.get().log(level, "stopped", reason=lifecycle.reason or ended)
    return lifecycle.exit_code
