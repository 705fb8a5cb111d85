"""The one place that turns what went wrong into an answer: `{"detail": [{loc, msg, type}, ...]}`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import islice

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response

MOST_PROBLEMS = 10
LONGEST_NAME = 32
Loc = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where (`loc`), what was expected and found (`msg`), its kind (`type`)."""

    loc: Loc
    msg: str
    type: str


class ServiceError(Exception):
    """An answer with an error status. `more` counts the problems beyond the ten that are listed."""

    def __init__(
        self, status: int, *problems: Problem, more: int = 0, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, problems[0].msg if problems else "")
        self.status = status
        self.problems = problems[:MOST_PROBLEMS]
        self.more = more + max(0, len(problems) - MOST_PROBLEMS)
        self.headers = dict(headers or {})


class CallerGoneError(Exception):
    """The caller closed the connection; nobody reads an answer."""


@dataclass
class Problems:
    """Collects what is wrong with a request; keeps ten and counts the rest."""

    kept: list[Problem] = field(default_factory=list)
    more: int = 0

    def add(self, loc: Loc, msg: str, kind: str) -> None:
        self.add_all((Problem(loc, msg, kind),), 1)

    def add_all(self, problems: Iterable[Problem], count: int) -> None:
        """Adds so many problems; takes only those that are kept, so that millions cost no more than ten."""
        room = min(count, MOST_PROBLEMS - len(self.kept))
        self.kept += islice(problems, room)
        self.more += count - room

    def stop(self, status: int = 422) -> None:
        """Raise `ServiceError` if anything was added."""
        if self.kept:
            raise ServiceError(status, *self.kept, more=self.more)


def printable(name: str) -> str:
    """A caller's field name, safe to repeat: printable, at most 32 characters."""
    shown = "".join(c if c.isprintable() else "?" for c in name[:LONGEST_NAME])
    return shown + ("…" if len(name) > LONGEST_NAME else "")


def unavailable(msg: str, kind: str, retry_after: float) -> ServiceError:
    """503 with a `Retry-After` of whole seconds, at least one."""
    return ServiceError(503, Problem(("service",), msg, kind), headers=wait(retry_after))


def wait(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(min(seconds, 3600.0))))}


def response(error: Exception) -> Response:
    """The answer to an exception: a `ServiceError`'s own, Starlette's 404 and 405, and 500 for all others."""
    if isinstance(error, HTTPException):
        error = _from_http(error)
    if not isinstance(error, ServiceError):
        error = ServiceError(
            500,
            Problem(("service",), "an internal error; the log has it under this request's id", "internal"),
        )
    content: dict[str, object] = {"detail": [{"loc": p.loc, "msg": p.msg, "type": p.type} for p in error.problems]}
    if error.more:
        content["more"] = error.more
    return Response(orjson.dumps(content), error.status, error.headers, "application/json")


def _from_http(error: HTTPException) -> ServiceError:
    phrase = HTTPStatus(error.status_code).phrase
    headers = dict(error.headers or {})
    where, msg = ("path",), phrase.lower()
    if error.status_code == 404:
        msg = "no such place; see /docs"
    elif error.status_code == 405:
        headers["Allow"] = ", ".join(sorted(headers["Allow"].split(", ")))
        where, msg = ("method",), f"expected {headers['Allow']}"
    return ServiceError(error.status_code, Problem(where, msg, phrase.lower().replace(" ", "_")), headers=headers)
