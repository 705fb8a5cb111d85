"""Who may ask: API keys from a file, kept as SHA-256, compared in constant time, reloaded on change."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from pathlib import Path

from starlette.datastructures import Headers

from . import logs
from .errors import Problem, ServiceError

NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
HASHED = "sha256:"
SHORT = 16  # characters; a key with fewer can be guessed


class KeysError(ValueError):
    """A key file that cannot be used: its path, what is wrong, what is expected."""


class Keys:
    """The keys of a file with a line `name key` or `name sha256:HEX` for each; # begins a comment line."""

    def __init__(self, path: Path) -> None:
        """Raises `KeysError` where the file is absent, malformed, or holds no key."""
        self._path = path
        self._stamp = _stamp(path)
        self._digests = _read(path)
        if not self._digests:
            raise KeysError(f"{path}: expected at least one line 'name key', found none")

    def name(self, headers: Headers) -> str:
        """The name of the caller's key. Raises `ServiceError` with 401 where it is not one of the file's."""
        self._reload()
        found = ""
        given = hashlib.sha256(_given(headers).encode("latin-1", "replace")).digest()
        for digest, name in self._digests:  # all of them, whatever matches: the time says nothing
            if hmac.compare_digest(digest, given):
                found = name
        if not found:
            msg = "expected a known key as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"
            raise ServiceError(
                401, Problem(("header", "authorization"), msg, "key"), headers={"WWW-Authenticate": "Bearer"}
            )
        return found

    def _reload(self) -> None:
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._digests = _read(self._path)
        except KeysError as error:  # half written or gone: the keys that were good stay good
            logs.get().error("keys not reloaded", reason=str(error))
        else:
            logs.get().info("keys reloaded", keys=len(self._digests))


def _given(headers: Headers) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: Path) -> list[tuple[bytes, str]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise KeysError(f"{path}: expected a readable file of keys: {reason}") from None
    digests: list[tuple[bytes, str]] = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or not NAME.fullmatch(words[0]):
            raise KeysError(f"{path}: line {number}: expected 'name key' or 'name sha256:HEX'")
        name, key = words
        if name in (other for _, other in digests):
            raise KeysError(f"{path}: line {number}: expected each name once, found {name} again")
        if not key.startswith(HASHED) and len(key) < SHORT:
            logs.get().warning("short key", caller=name, characters=len(key), expected_at_least=SHORT)
        digests.append((_digest(key, f"{path}: line {number}"), name))
    return digests


def _digest(key: str, where: str) -> bytes:
    if not key.startswith(HASHED):
        return hashlib.sha256(key.encode()).digest()
    try:
        digest = bytes.fromhex(key.removeprefix(HASHED))
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise KeysError(f"{where}: expected 64 hexadecimal digits after {HASHED}")
    return digest
