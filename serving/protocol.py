"""HTTP/1.1 on a socket: uvicorn's httptools protocol, with limits and errors that are JSON."""

from __future__ import annotations

import asyncio
import re

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

MOST_HEADER_BYTES = 64 * 1024
HEADER_SECONDS = 30.0
UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)


class Protocol(HttpToolsProtocol):
    """Closes connections that send no whole request header in 30 s; refuses headers over 64 KiB."""

    _between = True  # no request is being read
    _header_bytes = 0
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._between and (end := data.find(b"\r\n\r\n")) > 0:
            # The parser drops the body of a request that offers an upgrade, as Java's client does with h2c.
            data = UPGRADE.sub(b"", data[:end]) + data[end:]
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._between = False
        self._header_bytes = 0
        if self._patience is None and not self.pipeline:
            self._wait_for_headers()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._between = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self.pipeline and self.cycle.more_body:
            self._wait_for_headers()  # refused before its body had come: the rest is thrown away, for a while
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        content = {"detail": [{"loc": ["header"], "msg": "expected a valid HTTP request", "type": "http_invalid"}]}
        body = orjson.dumps(content)
        lines = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"connection", b"close"),
        ]
        head = b"".join(b"%s: %s\r\n" % line for line in [*lines, (b"content-length", b"%d" % len(body))])
        self.transport.write(STATUS_LINE[400] + head + b"\r\n" + body)
        self.transport.close()

    def _count(self, length: int) -> None:
        self._header_bytes += length
        if self._header_bytes > MOST_HEADER_BYTES:
            raise ValueError(f"expected at most {MOST_HEADER_BYTES} bytes of headers")

    def _wait_for_headers(self) -> None:
        self._stop_waiting()
        self._patience = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
