"""Bodies that nobody thought of: none is answered with a 500, and every error has the one form."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from live import Answer, Live, running
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from serving.schemas import ErrorAnswer, ForecastAnswer

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]
FEW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with running(max_request_tokens=500) as service:
        yield service


def holds(answer: Answer) -> None:
    assert answer.status in (200, 400, 413, 422), answer.raw[:300]
    (ForecastAnswer if answer.status == 200 else ErrorAnswer).model_validate_json(answer.raw)
    assert len(answer.raw) < 10_000 or answer.status == 200


@FEW
@given(body=st.binary(max_size=300))
def test_any_bytes_are_answered(live: Live, body: bytes) -> None:
    holds(live.ask(body))


NUMBERS = st.one_of(st.floats(), st.integers(), st.integers(-(10**400), 10**400), st.none())
CELLS = st.one_of(NUMBERS, st.text(max_size=5), st.booleans(), st.lists(NUMBERS, max_size=2))
ROWS = st.lists(st.one_of(NUMBERS, CELLS), max_size=40)
VALUES = st.recursive(CELLS, lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)), max_leaves=10)
FIELDS = {
    "series": st.one_of(st.lists(NUMBERS, max_size=40), st.lists(ROWS, max_size=4), VALUES),
    "prediction_length": st.one_of(st.integers(1, 100), VALUES),
    "decode_block_size": st.one_of(st.sampled_from([None, 32, 64.0, 4096]), VALUES),
    "has_missing_values": st.one_of(st.booleans(), VALUES),
}


@FEW
@given(body=st.fixed_dictionaries({}, optional=FIELDS), extra=st.dictionaries(st.text(max_size=80), VALUES, max_size=1))
@example(body={"series": [1.0], "prediction_length": 3}, extra={})
def test_any_values_of_the_fields_are_answered(live: Live, body: dict[str, Any], extra: dict[str, Any]) -> None:
    holds(live.ask(json.dumps(body | extra).encode()))


VALID = json.dumps({"series": [[1.5, None, 3e5], [1, 2, -3]], "prediction_length": 3, "decode_block_size": 64}).encode()
PIECES = st.sampled_from([b"", b"[", b"]", b"{", b"}", b",", b'"', b"NaN", b"-", b"e9", b"\\", b"\xff", b"null", b"0"])


@settings(FEW, max_examples=150)
@given(start=st.integers(0, len(VALID)), length=st.integers(0, 12), piece=PIECES)
def test_a_valid_body_with_a_piece_replaced_is_answered(live: Live, start: int, length: int, piece: bytes) -> None:
    holds(live.ask(VALID[:start] + piece + VALID[start + length :]))


@FEW
@given(
    st.dictionaries(
        st.sampled_from(["content-type", "content-encoding", "x-request-timeout", "x-request-id", "authorization"]),
        st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=30),
    )
)
def test_any_headers_are_answered(live: Live, headers: dict[str, str]) -> None:
    answer = live.ask(VALID, headers={name: value.strip() for name, value in headers.items()})
    assert answer.status in (200, 400, 415, 422, 504)
    assert answer.headers["x-request-id"]


def test_the_service_answers_as_its_documentation_says(live: Live) -> None:
    schema = schemathesis.openapi.from_url(f"{live.url}/openapi.json")
    asked, before = 0, threading.active_count()
    for operation in schema.get_all_operations():

        @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
        @given(case=operation.ok().as_strategy())
        def ask(case: Any) -> None:
            case.call_and_validate(checks=CHECKS, headers={"X-Request-Timeout": "60"})  # a short one is a 504, rightly

        ask()
        asked += 1
    assert asked == 5
    assert threading.active_count() < before + 20  # not one a request
