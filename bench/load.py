"""Offer a service mixed requests at a concurrency for a time; print throughput, latency, waste, errors, memory.

    python bench/load.py http://127.0.0.1:8040 --concurrency 16 --seconds 30 --shapes 3x512-96
    python bench/load.py http://127.0.0.1:8040 --against http://127.0.0.1:8041 --concurrency 16

Each caller keeps one connection and sends the next request when the answer to the last has come. With --against, both
are asked in turn, round by round, so that a drift of the machine falls on both.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import random
import re
import sys
import time
import urllib.parse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

MIXED = ("1x96-24", "1x512-96", "3x512-96", "3x1024-96", "1x4096-336", "8x256-48", "1x1024-1024", "32x512-96")
GAPS = 0.02
METRICS = {
    "useful": "toto_tokens_useful_total",
    "computed": "toto_tokens_computed_total",
    "resident": "process_resident_memory_bytes",
}


@dataclass
class Tally:
    """What came back: seconds of each 200, counts of every status, `error NAME` for broken exchanges."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    retry_after: list[int] = field(default_factory=list)
    elapsed: float = 0.0

    def percentile(self, share: float) -> float:
        """Milliseconds; NaN where nothing was answered."""
        ordered = sorted(self.seconds)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else math.nan

    @property
    def throughput(self) -> float:
        return len(self.seconds) / self.elapsed if self.elapsed else 0.0


@dataclass(frozen=True)
class Target:
    """Where to ask."""

    host: str
    port: int
    key: str | None

    @classmethod
    def of(cls, url: str, key: str | None) -> Target:
        parts = urllib.parse.urlsplit(url)
        return cls(parts.hostname or "127.0.0.1", parts.port or 80, key)

    def head(self, method: str, path: str, length: int) -> bytes:
        key = f"authorization: Bearer {self.key}\r\n" if self.key else ""
        return (
            f"{method} {path} HTTP/1.1\r\nhost: {self.host}\r\n{key}"
            f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        ).encode()


def bodies(shapes: Sequence[str], seed: int, each: int = 4) -> list[bytes]:
    """JSON requests of the shapes `VARIATESxCONTEXT-HORIZON`: waves with noise and some gaps."""
    draw = random.Random(seed)
    made = []
    for shape in shapes:
        variates, context, horizon = map(int, re.split("[x-]", shape))
        for _ in range(each):
            rows = [[_value(draw, step, row) for step in range(context)] for row in range(variates)]
            made.append(json.dumps({"series": rows, "prediction_length": horizon}).encode())
    return made


def _value(draw: random.Random, step: int, row: int) -> float | None:
    return None if draw.random() < GAPS else 100 + 20 * math.sin(step / (4 + row)) + draw.gauss(0, 3)


class Connection:
    """One keep-alive HTTP/1.1 connection, opened again when it breaks."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self.target.host, self.target.port, limit=2**20)
        reader, writer = self._streams
        writer.write(self.target.head(method, path, len(body)) + body)
        await writer.drain()
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        answer = await reader.readexactly(int(headers.get("content-length", "0")))
        if headers.get("connection") == "close":
            self.close()
        return int(lines[0].split()[1]), headers, answer

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


async def call(target: Target, offered: list[bytes], until: float, tally: Tally, seed: int) -> None:
    """One caller: asks until the time is over."""
    draw, connection = random.Random(seed), Connection(target)
    while (start := time.perf_counter()) < until:
        try:
            status, headers, _ = await connection.ask("POST", "/v1/forecast", draw.choice(offered))
        except (OSError, EOFError) as error:
            tally.statuses[f"error {type(error).__name__}"] += 1
            connection.close()
            await asyncio.sleep(0.1)
            continue
        tally.statuses[str(status)] += 1
        if status == 200:
            tally.seconds.append(time.perf_counter() - start)
        elif "retry-after" in headers:
            tally.retry_after.append(int(headers["retry-after"]))
            await asyncio.sleep(min(1.0, int(headers["retry-after"])))
    connection.close()


async def offer(target: Target, offered: list[bytes], concurrency: int, seconds: float, tally: Tally) -> None:
    """Adds to the tally what so many callers get in so many seconds."""
    start = time.perf_counter()
    seeds = range(tally.statuses.total(), tally.statuses.total() + concurrency)
    await asyncio.gather(*(call(target, offered, start + seconds, tally, seed) for seed in seeds))
    tally.elapsed += time.perf_counter() - start


async def scrape(target: Target) -> dict[str, float]:
    """The service's counts of tokens and its memory; empty where it has no such metrics."""
    connection = Connection(target)
    _, _, text = await connection.ask("GET", "/metrics")
    connection.close()
    samples = dict(line.rsplit(" ", 1) for line in text.decode().splitlines() if line.count(" ") == 1)
    return {name: float(samples[metric]) for name, metric in METRICS.items() if metric in samples}


def waste(before: dict[str, float], after: dict[str, float]) -> str:
    """The share of computed tokens that no request asked for."""
    if "computed" not in after or after["computed"] == before["computed"]:
        return "-"
    return f"{1 - (after['useful'] - before['useful']) / (after['computed'] - before['computed']):.1%}"


async def measure(arguments: argparse.Namespace) -> int:
    offered = bodies(arguments.shapes, arguments.seed)
    urls = [arguments.url, *([arguments.against] if arguments.against else [])]
    targets = [Target.of(url, arguments.key) for url in urls]
    for target in targets:  # one of each, not measured
        await offer(target, offered, 1, 1.0, Tally())
    tallies = [Tally() for _ in targets]
    seen = [[await scrape(target)] for target in targets]
    for _ in range(arguments.rounds):
        for target, tally, scrapes in zip(targets, tallies, seen, strict=True):
            await offer(target, offered, arguments.concurrency, arguments.seconds / arguments.rounds, tally)
            with contextlib.suppress(OSError, EOFError):  # a service that has ended: the statuses say so
                scrapes.append(await scrape(target))
    print(f"{'service':32} {'answers/s':>9} {'p50 ms':>9} {'p95 ms':>9} {'p99 ms':>9} {'padding':>8}  statuses")
    for url, tally, scrapes in zip(urls, tallies, seen, strict=True):
        figures = " ".join(f"{tally.percentile(share):9.1f}" for share in (0.5, 0.95, 0.99))
        wasted = waste(scrapes[0], scrapes[-1])
        print(f"{url:32} {tally.throughput:9.2f} {figures} {wasted:>8}  {dict(tally.statuses)}", end="")
        print(f", Retry-After {min(tally.retry_after)} to {max(tally.retry_after)} s" if tally.retry_after else "")
        if "resident" in scrapes[0]:
            rounds = " ".join(f"{found['resident'] / 2**20:.0f}" for found in scrapes)
            print(f"{'':32} resident MiB before and after each round: {rounds}")
    if len(tallies) == 2 and all(tally.seconds for tally in tallies):
        ours, theirs = tallies
        shares = ", ".join(
            f"{n} {ours.percentile(s) / theirs.percentile(s):.2f}" for n, s in (("p50", 0.5), ("p99", 0.99))
        )
        print(f"ratio: throughput {ours.throughput / theirs.throughput:.2f}, {shares}")
    return 0 if set(tallies[0].statuses) <= {"200", "429"} else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--against", help="another service, asked in turn")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=20.0, help="of load on each service")
    parser.add_argument("--rounds", type=int, default=1, help="turns that the seconds are split into")
    parser.add_argument("--shapes", nargs="+", default=MIXED, metavar="VxC-H", help="variates x context - horizon")
    parser.add_argument("--key")
    parser.add_argument("--seed", type=int, default=0)
    try:
        return asyncio.run(measure(parser.parse_args()))
    except (OSError, EOFError) as error:
        print(f"load.py: a service does not answer: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
