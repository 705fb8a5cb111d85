"""CSV tables of series: a header, a row a step, a column a variate, and perhaps a column of times."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

DATE = re.compile(r"\d{4}-\d\d")  # how an ISO 8601 date begins
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})


class TableError(ValueError):
    """A table that cannot be read: one line with the file, the place, what was expected and what was found."""


@dataclass(frozen=True)
class Table:
    """names: of the variates; values: float64 (variates, steps), NaN where missing.

    times: of the steps, None where there is no such column; step: time between two steps, None where uneven.
    """

    names: list[str]
    values: NDArray[np.float64]
    times: pd.DatetimeIndex | None = None
    step: pd.DateOffset | pd.Timedelta | None = None

    def future_times(self, steps: int) -> list[str] | None:
        """ISO times of the `steps` after the last one; None where they do not follow from the table."""
        if self.times is None or self.step is None:
            return None
        return [(self.times[-1] + (index + 1) * self.step).isoformat() for index in range(steps)]


def read_table(path: Path) -> Table:
    """The table in a CSV file. Empty cells, NA, NaN and null are missing.

    The first column holds times where its name says so, or where its cells are ISO dates. Times
    must rise; where steps are missing between them, rows of missing values are put in. Raises `TableError`.
    """
    header, rows = _cells(path)
    times = None
    if _holds_times(header[0], [row[0] for row in rows]):
        times = _times(path, header[0], [row[0] for row in rows])
        header, rows = header[1:], [row[1:] for row in rows]
    if not header:
        raise TableError(f"{path}: expected a column for each variate beside the times, found none")
    columns = list(zip(*rows, strict=True))
    values = np.array([_numbers(path, name, cells) for name, cells in zip(header, columns, strict=True)])
    if times is None:
        return Table(header, values)
    return _evenly(header, values, times)


def _cells(path: Path) -> tuple[list[str], list[list[str]]]:
    """(header, rows) with every row as long as the header."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            lines = [(number, row) for number, row in enumerate(csv.reader(stream), 1) if row]
    except FileNotFoundError:
        raise TableError(f"{path}: no such file") from None
    except OSError as error:
        raise TableError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise TableError(f"{path}: expected a CSV file in UTF-8: {error}") from None
    if not lines:
        raise TableError(f"{path}: expected a header and a row for each step, found an empty file")
    header = [name.strip() for name in lines[0][1]]
    if len(lines) == 1:
        raise TableError(f"{path}: expected a row for each step after the header, found none")
    if len(header) == 1 and (";" in header[0] or "\t" in header[0]):
        raise TableError(f"{path}: line 1: expected commas between columns, found semicolons or tabs")
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise TableError(
            f"{path}: line 1: expected a different name for each column, found {twice[0]!r} twice or empty"
        )
    if all(_number(name) is not None for name in header):
        raise TableError(f"{path}: line 1: expected a header with a name for each column, found only numbers")
    for number, row in lines[1:]:
        if len(row) != len(header):
            raise TableError(f"{path}: line {number}: expected {len(header)} cells as in the header, found {len(row)}")
    return header, [row for _, row in lines[1:]]


def _number(cell: str) -> float | None:
    """The cell's number, NaN where missing, None where it is neither."""
    text = cell.strip()
    if text.lower() in MISSING:
        return math.nan
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in text else None


def _numbers(path: Path, name: str, cells: tuple[str, ...]) -> list[float]:
    values = []
    for index, cell in enumerate(cells):
        value = _number(cell)
        if value is None:
            raise TableError(
                f"{path}: column {name!r}, row {index + 1} after the header: expected a number or nothing, "
                f"found {cell[:40]!r}"
            )
        values.append(value)
    if all(math.isnan(value) for value in values):
        raise TableError(f"{path}: column {name!r}: expected at least one value, found none in {len(values)} rows")
    return values


def _holds_times(name: str, cells: list[str]) -> bool:
    named = name.lower() in ("time", "timestamp", "date", "datetime", "ds", "times", "dates")
    return named or all(DATE.match(cell.strip()) for cell in cells)


def _times(path: Path, name: str, cells: list[str]) -> pd.DatetimeIndex:
    import pandas as pd

    numbers = [_number(cell) for cell in cells]
    try:
        if all(number is not None and not math.isnan(number) for number in numbers):
            times = pd.to_datetime(numbers, unit="s")  # epoch seconds
        else:
            times = pd.to_datetime(cells, format="ISO8601", utc=any("+" in c or c.endswith("Z") for c in cells))
    except (ValueError, OverflowError):
        raise TableError(
            f"{path}: column {name!r}: expected ISO 8601 times or epoch seconds, row 1 is {cells[0][:40]!r}"
        ) from None
    index = pd.DatetimeIndex(times)
    if index.hasnans:
        raise TableError(f"{path}: column {name!r}: expected a time in every row, found a blank one")
    for number in range(1, len(index)):
        if not index[number] > index[number - 1]:
            what = "the same time twice" if index[number] == index[number - 1] else "an earlier time after a later one"
            raise TableError(f"{path}: column {name!r}, row {number + 1}: expected rising times, found {what}")
    return index


def _evenly(names: list[str], values: NDArray[np.float64], times: pd.DatetimeIndex) -> Table:
    """The table with rows of missing values where steps are left out of evenly spaced times."""
    import pandas as pd

    if len(times) < 3:
        return Table(names, values, times, times[1] - times[0] if len(times) == 2 else None)
    frequency = pd.infer_freq(times)
    if frequency is not None:
        return Table(names, values, times, pd.tseries.frequencies.to_offset(frequency))
    gaps = np.diff(times.asi8)
    least = int(gaps.min())
    if (gaps % least).any() or gaps.sum() // least > 4 * len(times):
        return Table(names, values, times)  # uneven, such as trading days: taken as consecutive
    where = np.concatenate(([0], np.cumsum(gaps // least)))
    filled = np.full((len(names), int(where[-1]) + 1), np.nan)
    filled[:, where] = values
    step = times[int(gaps.argmin()) + 1] - times[int(gaps.argmin())]
    return Table(names, filled, times[0] + step * np.arange(filled.shape[1]), step)
