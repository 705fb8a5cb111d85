"""Structured logs on stdout: features of requests (shapes, counts, durations), never values."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Any

import orjson
import structlog

Processor = Any


class _Stdout:
    """Where log lines go. A closed pipe must not fail a request."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()


def _json(_: object, __: str, event: dict[str, Any]) -> str:
    return orjson.dumps(event, default=str).decode()


def configure(form: str, level: str) -> None:
    """Sends structlog's and the standard library's lines (uvicorn's) through one renderer to stdout."""
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
    ]
    plain = form == "console"
    renderer: Processor = structlog.dev.ConsoleRenderer(colors=False) if plain else _json
    errors: list[Processor] = [] if plain else [structlog.processors.format_exc_info]
    structlog.configure(
        processors=[*shared, *errors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(_Stdout()),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(_Stdout())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *errors, renderer],
            foreign_pre_chain=shared,
        )
    )
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(max(number, logging.WARNING))


def get() -> Any:
    """The service's logger."""
    return structlog.get_logger()
