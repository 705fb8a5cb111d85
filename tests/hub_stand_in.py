"""Both hubs' HTTP interfaces on loopback, for their real clients, with the faults of real networks."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlparse

COMMIT = "c0ffee" * 6 + "beef"
PIECE = 1 << 16
PIECES_BEFORE_BREAK = 12


@dataclass
class HubStandIn:
    """A hub with one repository. ``faults`` names, per file, what each of the next answers does wrong:

    ``gone`` (closes after the headers), ``cut`` (closes after some pieces), ``stall`` (sends some pieces, then
    nothing), ``flip`` (one byte differs), ``empty``, ``page`` (HTML with status 200), ``busy`` (status 503),
    ``slow`` (pieces with pauses).
    """

    files: dict[str, bytes]
    faults: dict[str, list[str]] = field(default_factory=dict)
    listed_sha256: dict[str, str] = field(default_factory=dict)  # where it is not that of the file
    lists_digests: bool = True
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, range

    def __enter__(self) -> HubStandIn:
        self.broken_off = threading.Event()
        self.closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.stand_in = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def ranges(self, name: str) -> list[str | None]:
        """The Range header of each request for the file's bytes, in order."""
        return [range_ for method, path, range_ in self.requests if method == "GET" and path.endswith(name)]

    def sha256(self, name: str) -> str:
        return self.listed_sha256.get(name) or hashlib.sha256(self.files[name]).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> HubStandIn:
        return self.server.stand_in  # type: ignore[attr-defined]

    def do_GET(self) -> None:
        path = unquote(self.path)
        self.hub.requests.append((self.command, path, self.headers.get("Range")))
        url = urlparse(path)
        if url.path.endswith("/repo/files"):
            self._json({"Code": 200, "Success": True, "Data": {"Files": self._modelscope_listing()}})
        elif url.path.endswith("/repo"):
            self._file(parse_qs(url.query)["FilePath"][0])
        elif re.fullmatch(r"/api/models/[^/]+/[^/]+", url.path):
            self._json({"id": "x/y", "sha": COMMIT, "siblings": self._huggingface_listing()})
        elif found := re.fullmatch(rf"/[^/]+/[^/]+/resolve/{COMMIT}/(.+)", url.path):
            self._file(found[1])
        else:
            self._send(404, b"{}")

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Requests are kept for the test, not printed."""

    def _modelscope_listing(self) -> list[dict[str, Any]]:
        return [
            {"Path": name, "Name": name, "Type": "blob", "Size": len(data)}
            | ({"Sha256": self.hub.sha256(name)} if self.hub.lists_digests else {})
            for name, data in self.hub.files.items()
        ]

    def _huggingface_listing(self) -> list[dict[str, Any]]:
        listing: list[dict[str, Any]] = []
        for name, data in self.hub.files.items():
            entry: dict[str, Any] = {"rfilename": name, "size": len(data)}
            if self.hub.lists_digests:
                entry["blobId"] = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            if self.hub.lists_digests and name.endswith(".safetensors"):
                entry["lfs"] = {"sha256": self.hub.sha256(name), "size": len(data), "pointerSize": 130}
            listing.append(entry)
        return listing

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _file(self, name: str) -> None:
        if name not in self.hub.files:
            return self._send(404, b"{}")
        data = self.hub.files[name]
        headers = {"ETag": f'"{self.hub.sha256(name)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if self.command == "HEAD":
            return self._send(200, data, headers | {"X-Linked-Size": str(len(data))})
        faults = self.hub.faults.get(name, [])
        fault = faults.pop(0) if faults else ""
        if fault == "busy":
            return self._send(503, b"{}", {"Retry-After": "0"})
        if fault == "empty":
            return self._send(200, b"", headers)
        if fault == "page":
            return self._send(200, b"<!DOCTYPE html><html>Log in</html>", {"Content-Type": "text/html"})
        if fault == "flip":
            data = data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
        start = 0
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            start = int(asked[1])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        return self._send(206 if asked else 200, data[start:], headers, fault)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, fault: str = "") -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        pieces = [body[at : at + PIECE] for at in range(0, len(body), PIECE)]
        for piece in pieces[: {"gone": 0, "cut": PIECES_BEFORE_BREAK, "stall": PIECES_BEFORE_BREAK}.get(fault)]:
            if fault == "slow":
                self.hub.closing.wait(0.02)
            self.wfile.write(piece)
        if fault in ("gone", "cut", "stall"):
            self.wfile.flush()
            self.hub.broken_off.set()
            self.close_connection = True
        if fault == "stall":
            self.hub.closing.wait(60)
