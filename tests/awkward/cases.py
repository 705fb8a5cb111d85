"""A case: one request, and what a careful engineer expects of the answer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from live import Answer, Live, forecast
from numpy.typing import NDArray

from serving.schemas import LEVELS

LONGEST_ERROR = 10_000
WAVE = [10 + math.sin(i / 5) for i in range(512)]
Check = Callable[[Answer, Live], None]


@dataclass(frozen=True)
class Case:
    """`says` are words that an error's text must hold; `hides`, words that no answer may hold."""

    name: str
    body: Any
    status: tuple[int, ...] = (200,)
    check: Check | None = None
    method: str = "POST"
    path: str = "/v1/forecast"
    headers: dict[str, str] = field(default_factory=dict)
    says: tuple[str, ...] = ()
    hides: tuple[str, ...] = ()


def table(*cases: Case) -> pytest.MarkDecorator:
    """Parametrizes a test by cases."""
    return pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in cases])


def put(case: Case, service: Live) -> None:
    """Asks the service, and holds the answer to the case and to what is true of every answer."""
    answer = service.ask(case.body, case.method, case.path, case.headers)
    assert answer.status in case.status, answer.raw[:300]
    if answer.status >= 400:
        holds_as_error(answer)
        assert all(word in answer.text for word in case.says), answer.text
    elif case.path == "/v1/forecast":
        holds_as_forecast(answer, case.body)
    assert not any(word in answer.text for word in case.hides)
    if case.check is not None:
        case.check(answer, service)


def holds_as_error(answer: Answer) -> None:
    assert len(answer.raw) <= LONGEST_ERROR
    problems = answer.json["detail"]
    assert 1 <= len(problems) <= 10
    assert all(set(problem) == {"loc", "msg", "type"} for problem in problems)
    answer.text.encode("utf-8")


def holds_as_forecast(answer: Answer, body: Any) -> None:
    """Nine finite quantiles, ordered and of the right shape; the median is the middle one."""
    got = json.loads(answer.raw, parse_constant=_no_json)
    assert list(got["quantiles"]) == list(LEVELS)
    assert got["median"] == got["quantiles"]["0.5"]
    found = quantiles(answer)
    assert found.shape == (9, got["n_variates"], got["prediction_length"])
    assert np.isfinite(found).all()
    assert (found[1:] >= found[:-1]).all()
    if isinstance(body, dict):
        series = body["series"]
        assert got["n_variates"] == (len(series) if isinstance(series[0], list) else 1)
        assert got["prediction_length"] == body.get("prediction_length", 96)


def _no_json(token: str) -> float:
    raise AssertionError(f"{token} is not JSON")


def quantiles(answer: Answer) -> NDArray[np.float64]:
    """float64 (9, variates, steps)."""
    return np.array([answer.json["quantiles"][level] for level in LEVELS], dtype=np.float64)


def near(value: float, relative: float = 1e-3) -> Check:
    """Every quantile is within relative * max(1, |value|) of value."""

    def check(answer: Answer, _: Live) -> None:
        assert np.abs(quantiles(answer) / 2 - value / 2).max() <= relative * max(1.0, abs(value)) / 2

    return check


def same_as(
    series: object, horizon: int = 8, relative: float = 1e-4, scale: float = 1, shift: float = 0, **more: object
) -> Check:
    """The answer is scale times the one to another request, plus shift, within relative * its spread."""

    def check(answer: Answer, service: Live) -> None:
        other = service.ask(forecast(series, horizon, **more))
        assert other.status == 200
        expected = scale * quantiles(other) + shift
        spread = expected.max() - expected.min()
        assert np.abs(quantiles(answer) - expected).max() <= relative * spread

    return check
