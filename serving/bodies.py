"""Request bodies: what may be sent, how many bytes of it, and gzip or zstd undone."""

from __future__ import annotations

import asyncio
import io
import re
import zlib
from collections.abc import Callable
from email.message import Message
from typing import Protocol, TypeVar

import zstandard
from starlette.datastructures import Headers
from starlette.types import Receive

from .admission import STALL_SECONDS, BodyShare
from .errors import CallerGoneError, Problem, ServiceError

BODY = ("body",)
CHARSETS = {"utf-8", "utf8", "us-ascii", "ascii"}
LEAST_PROGRESS = 64 * 1024  # bytes in `STALL_SECONDS`, or the body's end
MOST_FRAMES = 1024  # gzip members or zstd frames: an empty one takes 9 bytes, and longer than its body does
PIECE = 64 * 1024
LARGEST_WINDOW = 8 * 1024 * 1024  # the window that RFC 9659 lets a zstd content encoding use
JSON_TYPE = re.compile(r"application/([\w.+-]+\+)?json", re.ASCII)


def check_headers(headers: Headers, most_bytes: int) -> str:
    """The content encoding ("" where there is none) of a body that may be read.

    Raises `ServiceError`: 415 for another type, charset or encoding; 413 where its length is over `most_bytes`.
    """
    if "content-type" in headers:
        message = Message()
        message["content-type"] = headers["content-type"]
        if not JSON_TYPE.fullmatch(message.get_content_type()):
            raise ServiceError(415, Problem(("header", "content-type"), "expected application/json", "content_type"))
        charset = message.get_param("charset", "utf-8")
        if not isinstance(charset, str) or charset.lower() not in CHARSETS:
            raise ServiceError(415, Problem(("header", "content-type"), "expected the charset utf-8", "charset"))
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip", "zstd"):
        problem = Problem(("header", "content-encoding"), "expected gzip, zstd or none", "content_encoding")
        raise ServiceError(415, problem, headers={"Accept-Encoding": "gzip, zstd"})
    length = content_length(headers)
    if length > most_bytes:
        raise too_large(most_bytes, f"{length}")
    return "" if encoding == "identity" else encoding


def content_length(headers: Headers) -> int:
    """Content-Length, or 0 where it is absent (a chunked body)."""
    text = headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def too_large(most_bytes: int, found: str) -> ServiceError:
    """413 that gives the limit and what was found."""
    return ServiceError(413, Problem(BODY, f"expected at most {most_bytes} bytes, found {found}", "body_too_large"))


async def read(receive: Receive, most_bytes: int, space: BodyShare) -> bytes:
    """The whole body, its bytes counted in `space` as they come.

    Raises `ServiceError` with 413 past `most_bytes` and 429 where `space` is full, `CallerGoneError` where
    the caller left, `TimeoutError` where 10 s brought neither 64 KiB nor the end.
    """
    parts: list[bytes] = []
    length, due = 0, LEAST_PROGRESS
    async with asyncio.timeout(STALL_SECONDS) as stall:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise CallerGoneError("while the body was read")
            part = message.get("body", b"")
            length += len(part)
            if length > most_bytes:
                raise too_large(most_bytes, "more")
            space.take(len(part))
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)
            if length >= due:
                due = length + LEAST_PROGRESS
                stall.reschedule(asyncio.get_running_loop().time() + STALL_SECONDS)


def expand(body: bytes, encoding: str, most_bytes: int) -> bytes:
    """The body, content encoding undone. Raises `ServiceError`: 413 past `most_bytes`, 400 where damaged."""
    try:
        if encoding == "gzip":
            return _gunzip(body, most_bytes)
        if encoding == "zstd":
            return _unzstd(body, most_bytes)
    except EOFError:
        raise _damaged(f"expected a whole {encoding} stream, found one that is cut") from None
    except (zlib.error, zstandard.ZstdError):
        raise _damaged(f"expected a whole {encoding} stream, found one that is damaged") from None
    return body


def _damaged(msg: str) -> ServiceError:
    return ServiceError(400, Problem(BODY, msg, "content_encoding"))


def _gunzip(body: bytes, most_bytes: int) -> bytes:
    """Every member of a gzip stream (RFC 1952 2.2)."""
    parts: list[bytes] = []
    room = most_bytes + 1

    def keep(member: zlib._Decompress, piece: bytes) -> None:
        nonlocal room
        parts.append(member.decompress(piece, room))
        room -= len(parts[-1])
        if room <= 0:
            raise too_large(most_bytes, "more once decompressed")

    _walk(body, lambda: zlib.decompressobj(wbits=31), keep)
    return b"".join(parts)


def _unzstd(body: bytes, most_bytes: int) -> bytes:
    """Every frame of a zstd stream. Read by the output's size: 4 bytes of a frame can hold 128 KiB."""
    frames = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)
    expanded = frames.stream_reader(io.BytesIO(body), read_across_frames=True).read(most_bytes + 1)
    if len(expanded) > most_bytes:
        raise too_large(most_bytes, "more once decompressed")
    # The reader takes a frame that is cut for a whole one; so, its output known to fit, once more.
    _walk(body, frames.decompressobj, lambda frame, piece: frame.decompress(piece))
    return expanded


class _Frame(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...


F = TypeVar("F", bound=_Frame)


def _walk(body: bytes, begin: Callable[[], F], feed: Callable[[F, bytes], object]) -> None:
    """Feeds each frame its bytes. Raises `EOFError` where the last one is cut, `ServiceError` where they are too many.

    Piece by piece, since what is left over after a frame is copied.
    """
    position = 0
    for _ in range(MOST_FRAMES):
        frame = begin()
        while not frame.eof:
            piece = body[position : position + PIECE]
            if not piece:
                raise EOFError
            feed(frame, piece)
            position += len(piece) - len(frame.unused_data)
        if position == len(body):
            return
    raise _damaged(f"expected at most {MOST_FRAMES} compressed frames, found more")
