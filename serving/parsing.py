"""Bytes to a `ForecastRequest`: every rule of the body, checked without echoing what was in it."""

from __future__ import annotations

import difflib
from collections import Counter
from dataclasses import dataclass
from itertools import takewhile
from math import inf
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic_core import from_json

from inference import PATCH, ForecastRequest

from .errors import Loc, Problem, Problems, ServiceError, printable
from .schemas import BLOCK_STEP, DEFAULT_BLOCK, DEFAULT_HORIZON, LONGEST_HORIZON

FIELDS = ("series", "prediction_length", "decode_block_size", "has_missing_values")
NUMBERS = {int, float, type(None)}
TOO_LARGE = 2**1024 - 2**970  # it and what is above rounds to no float64
SERIES = ("body", "series")
KINDS = {
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}
SHAPES = "expected [variate][time] numbers, or [time] numbers for one variate"


@dataclass(frozen=True)
class Limits:
    """What a request may be: steps of context used, and tokens of work."""

    max_seq_length: int
    max_request_tokens: int


def parse(body: bytes, limits: Limits) -> ForecastRequest:
    """The request in a JSON body.

    Raises `ServiceError`: 400 where the body is not JSON, 413 where the work is over the limit, 422 else.
    """
    _check_nesting(body, limits)
    fields = decode(body)
    problems = Problems()
    unknown = len(fields) - sum(name in fields for name in FIELDS)
    problems.add_all((_unknown(name) for name in fields if name not in FIELDS), unknown)
    horizon = _whole(fields, "prediction_length", DEFAULT_HORIZON, 1, 1, problems)
    block = None
    if fields.get("decode_block_size", DEFAULT_BLOCK) is not None:
        block = _whole(fields, "decode_block_size", DEFAULT_BLOCK, BLOCK_STEP, BLOCK_STEP, problems)
    may_miss = fields.get("has_missing_values", True)
    if type(may_miss) is not bool:
        problems.add(("body", "has_missing_values"), f"expected true or false, found {kind(may_miss)}", "boolean_type")
    rows = _rows(fields, problems)
    problems.stop()
    _check_work(rows, horizon, limits)
    target = _values(rows, problems)
    problems.stop()
    _check_observed(target, may_miss, limits, problems)
    problems.stop()
    return ForecastRequest(target, horizon, block)


def _unknown(name: str) -> Problem:
    close = difflib.get_close_matches(name[:100], FIELDS, 1)
    hint = f"; did you mean {close[0]}?" if close else f"; expected {', '.join(FIELDS)}"
    return Problem(("body", printable(name)), f"unknown field{hint}", "extra_forbidden")


def _check_nesting(body: bytes, limits: Limits) -> None:
    """Raises `ServiceError` with 413 where the bytes alone show more variates than the work allows.

    A list in a body of 16 MiB can take 3 bytes of it, and 20 times that in memory once it is parsed.
    """
    inner = body.count(b"],") + body.count(b"},")
    if inner >= limits.max_request_tokens:
        msg = (
            f"expected at most {limits.max_request_tokens} tokens of work, at least one for each variate, "
            f"found more than {inner} lists or objects"
        )
        raise ServiceError(413, Problem(SERIES, msg, "too_much_work"))


def decode(body: bytes) -> dict[str, Any]:
    """The JSON object in a body; the token NaN is a number there. Raises `ServiceError` with 400 or 422."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        found = _decode_with_nan(body)
    if type(found) is not dict:
        raise ServiceError(422, Problem(("body",), f"expected a JSON object, found {kind(found)}", "object_type"))
    return found


def _decode_with_nan(body: bytes) -> Any:
    if body.startswith(b"\xef\xbb\xbf"):
        raise ServiceError(400, Problem(("body",), "expected JSON in UTF-8 without a byte order mark", "json_invalid"))
    try:
        return from_json(body, allow_inf_nan=True)
    except ValueError as error:
        if str(error).startswith("number out of range"):  # more digits than are read: far past float64
            raise ServiceError(
                422, Problem(("body",), f"expected finite float64, found a {error}", "finite_number")
            ) from None
        msg = f"the body is not JSON: {error}" if body.strip() else "expected a JSON object, found an empty body"
        raise ServiceError(400, Problem(("body",), msg, "json_invalid")) from None


def kind(value: object) -> str:
    """What a JSON value is, in words, without the value."""
    return "null" if value is None else KINDS[type(value)]


def _whole(fields: dict[str, Any], name: str, default: int, least: int, step: int, problems: Problems) -> int:
    value = fields.get(name, default)
    of = (
        f"an integer from {least} to {LONGEST_HORIZON}"
        if step == 1
        else (f"null or a multiple of {step} from {least} to {LONGEST_HORIZON}")
    )
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int:
        found = "a number that is not whole" if type(value) is float else kind(value)
        problems.add(("body", name), f"expected {of}, found {found}", "integer_type")
    elif not least <= value <= LONGEST_HORIZON or value % step:
        found = str(value) if abs(value) < 10**9 else "a number far outside"
        problems.add(("body", name), f"expected {of}, found {found}", "out_of_range")
    else:
        return value
    return default


def _rows(fields: dict[str, Any], problems: Problems) -> list[list[Any]]:
    """`series` as rows of the same length, at least one value each; cells are not looked at yet."""
    series = fields.get("series")
    if "series" not in fields:
        problems.add(SERIES, f"required: {SHAPES}", "missing")
    elif type(series) is not list:
        problems.add(SERIES, f"{SHAPES}, found {kind(series)}", "list_type")
    elif not series:
        problems.add(SERIES, f"{SHAPES}, found an empty list", "too_short")
    else:
        rows = series if list in set(map(type, series)) else [series]
        lengths = [len(row) if type(row) is list else -1 for row in rows]
        if -1 in lengths:
            scalars = (i for i, length in enumerate(lengths) if length < 0)
            described = (
                Problem((*SERIES, i), f"{SHAPES}, found {kind(rows[i])} beside lists", "list_type") for i in scalars
            )
            problems.add_all(described, lengths.count(-1))
        elif lengths.count(lengths[0]) != len(lengths):
            _say_ragged(lengths, problems)
        elif lengths[0] == 0:
            problems.add((*SERIES, 0), f"{SHAPES}, found a variate without values", "too_short")
        else:
            return rows
    return []


def _say_ragged(lengths: list[int], problems: Problems) -> None:
    longest = max(lengths)
    some = ", ".join(map(str, lengths[:10])) + (", …" if len(lengths) > 10 else "")
    odd = next(i for i, length in enumerate(lengths) if length != longest)
    msg = (
        f"expected variates of the same length, found lengths {some} (variate {odd} has {lengths[odd]}, "
        f"the longest {longest}); pad the front of the shorter ones with null"
    )
    problems.add(SERIES, msg, "ragged")


def _check_work(rows: list[list[Any]], horizon: int, limits: Limits) -> None:
    """Raises `ServiceError` with 413 where variates x patches are over the limit, before arrays are made."""
    steps = len(rows[0])
    tokens = _tokens(len(rows), steps, horizon, limits)
    if tokens > limits.max_request_tokens and _missing(rows[0][0]):
        leading = min(sum(1 for _ in takewhile(_missing, row)) for row in rows)
        tokens = _tokens(len(rows), steps - leading, horizon, limits)
    if tokens > limits.max_request_tokens:
        msg = (
            f"expected at most {limits.max_request_tokens} tokens of work (variates x patches of {PATCH} "
            f"steps, context and horizon), found {tokens}: {len(rows)} variates x {steps} steps -> {horizon}"
        )
        raise ServiceError(413, Problem(SERIES, msg, "too_much_work"))


def _tokens(variates: int, steps: int, horizon: int, limits: Limits) -> int:
    return variates * (-(-min(steps, limits.max_seq_length) // PATCH) + -(-horizon // PATCH))


def _missing(cell: object) -> bool:
    return cell is None or cell != cell


def _values(rows: list[list[Any]], problems: Problems) -> NDArray[np.float64]:
    """Rows to float64 [variate][time], NaN where missing; adds a problem for each cell that is not finite."""
    flat = len(rows) == 1
    target = np.empty((len(rows), len(rows[0])))
    for variate, row in enumerate(rows):
        where: Loc = SERIES if flat else (*SERIES, variate)
        types = Counter(map(type, row))
        if not types.keys() <= NUMBERS:
            wrong = (i for i, cell in enumerate(row) if type(cell) not in NUMBERS)
            count = sum(cells for found, cells in types.items() if found not in NUMBERS)
            problems.add_all((_not_number((*where, i), row[i]) for i in wrong), count)
            continue
        try:
            target[variate] = row
        except OverflowError:
            target[variate] = [inf if type(cell) is int and abs(cell) >= TOO_LARGE else cell for cell in row]
    if not problems.kept:
        _say_infinite(target, flat, problems)
    return target


def _not_number(where: Loc, cell: object) -> Problem:
    msg = f"expected a number or null, found {kind(cell)}"
    if type(cell) is list:
        msg = f"{SHAPES}, found more than two dimensions"
    return Problem(where, msg, "number_type")


def _say_infinite(target: NDArray[np.float64], flat: bool, problems: Problems) -> None:
    infinite = np.flatnonzero(np.isinf(target))
    msg = "expected a finite float64, found an infinite one"
    places = (divmod(int(cell), target.shape[1]) for cell in infinite)
    described = (
        Problem((*SERIES, position) if flat else (*SERIES, variate, position), msg, "finite_number")
        for variate, position in places
    )
    problems.add_all(described, len(infinite))


def _check_observed(target: NDArray[np.float64], may_miss: bool, limits: Limits, problems: Problems) -> None:
    missing = np.isnan(target)
    if not missing.any():
        return
    if not may_miss:
        variate, position = divmod(int(missing.argmax()), target.shape[1])
        msg = f"false, but the data have missing values; the first is at variate {variate}, position {position}"
        problems.add(("body", "has_missing_values"), msg, "missing_values")
    used = missing[:, -limits.max_seq_length :]
    for variate in np.flatnonzero(used.all(axis=1)).tolist():
        msg = f"expected an observed value in variate {variate}, found none in the {used.shape[1]} steps used"
        problems.add((*SERIES, variate), msg, "nothing_observed")
