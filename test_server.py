"""Check a running service, and time it: `python test_server.py http://127.0.0.1:8040 [--key KEY]`.

Exits with 0 where every answer has the right shape and order, with 1 where one has not, with 2 where nothing answers.
Standard library only.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import statistics
import sys
import time
import urllib.parse
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

SHAPES = ((3, 1024, 96), (3, 512, 96), (1, 4096, 336), (1, 1024, 1024))
LEVELS = [f"0.{k}" for k in range(1, 10)]


class WrongAnswerError(Exception):
    """An answer that is not what the service promises."""


@dataclass(frozen=True)
class Service:
    """A service under a URL, asked over one connection."""

    connection: http.client.HTTPConnection
    headers: dict[str, str]

    @classmethod
    def of(cls, url: str, key: str | None, timeout: float) -> Service:
        parts = urllib.parse.urlsplit(url if "//" in url else f"//{url}")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "127.0.0.1", parts.port, timeout=timeout)
        return cls(connection, {"Authorization": f"Bearer {key}"} if key else {})

    def ask(self, path: str, body: object = None) -> tuple[int, Any]:
        """Status and JSON of a GET, or of a POST where there is a body."""
        raw = None if body is None else json.dumps(body)
        headers = self.headers | ({"Content-Type": "application/json"} if raw else {})
        self.connection.request("GET" if raw is None else "POST", path, raw, headers)
        response = self.connection.getresponse()
        return response.status, json.loads(response.read())


def series(variates: int, context: int) -> list[list[float]]:
    """Waves of a day and a week of hours, each variate at its own level."""
    return [
        [100 + 10 * v + 8 * math.sin(t * math.tau / 24) + 3 * math.sin(t * math.tau / 168 + v) for t in range(context)]
        for v in range(variates)
    ]


def expect(true: bool, what: str) -> None:
    if not true:
        raise WrongAnswerError(what)


def check(status: int, answer: Any, variates: int, horizon: int) -> None:
    """Raises `WrongAnswerError` unless these are nine ordered, finite quantiles [variate][step]."""
    expect(status == 200, f"expected status 200, found {status}: {json.dumps(answer)[:300]}")
    found = list(answer["quantiles"])
    expect(found == LEVELS, f"expected the quantiles {LEVELS}, found {found}")
    expect(answer["median"] == answer["quantiles"]["0.5"], "expected the median to be the 0.5 quantile")
    rows = [answer["quantiles"][level] for level in LEVELS]
    shapes = {(len(row), *{len(values) for values in row}) for row in rows}
    expect(shapes == {(variates, horizon)}, f"expected shape {(variates, horizon)}, found {shapes}")
    flat = [[x for values in row for x in values] for row in rows]
    expect(all(math.isfinite(x) for row in flat for x in row), "expected finite numbers")
    ordered = all(a <= b for low, high in pairwise(flat) for a, b in zip(low, high, strict=True))
    expect(ordered, "expected quantiles in rising order")


def times(service: Service, shape: tuple[int, int, int], rounds: int) -> list[float]:
    """Seconds of each of so many checked forecasts, after one that is not counted."""
    variates, context, horizon = shape
    body = {"series": series(variates, context), "prediction_length": horizon}
    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        status, answer = service.ask("/v1/forecast", body)
        seconds.append(time.perf_counter() - start)
        check(status, answer, variates, horizon)
    return seconds[1:]


def check_other_places(service: Service) -> str:
    """Raises `WrongAnswerError` unless the service is ready and refuses what is wrong; returns what is loaded."""
    for path in ("/health", "/ready"):
        status, _ = service.ask(path)
        expect(status == 200, f"{path}: expected status 200, found {status}")
    for field, wrong in (("series", [[1, 2], [3]]), ("prediction_length", 0)):
        status, answer = service.ask("/v1/forecast", {"series": [1]} | {field: wrong})
        found = status, answer["detail"][0]["loc"]
        expect(found == (422, ["body", field]), f"expected status 422 and an error at {field}, found {found}")
    status, gap = service.ask("/v1/forecast", {"series": [1.0, None, 3.0], "prediction_length": 5})
    check(status, gap, 1, 5)
    status, models = service.ask("/v1/models")
    expect(status == 200, f"/v1/models: expected status 200, found {status}")
    loaded = models["data"][0]
    return f"{loaded['id']}, {loaded['parameters']:,} parameters, {loaded['dtype']} on {loaded['device']}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8040")
    parser.add_argument("--key", help="API key, where the service asks for one")
    parser.add_argument("--rounds", type=int, default=7, help="forecasts timed for each shape")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds to wait for an answer")
    arguments = parser.parse_args()
    service = Service.of(arguments.url, arguments.key, arguments.timeout)
    try:
        print(check_other_places(service))
        print(f"{'shape':>16} {'p50 ms':>9} {'least':>9} {'most':>9}")
        for shape in SHAPES:
            found = [1000 * seconds for seconds in times(service, shape, arguments.rounds)]
            name = f"{shape[0]}×{shape[1]}→{shape[2]}"
            print(f"{name:>16} {statistics.median(found):9.1f} {min(found):9.1f} {max(found):9.1f}")
    except (WrongAnswerError, KeyError, ValueError) as error:
        print(f"test_server.py: wrong: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except (OSError, http.client.HTTPException) as error:
        print(f"test_server.py: {arguments.url} does not answer: {error}", file=sys.stderr)
        return 2
    print("all answers are right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
