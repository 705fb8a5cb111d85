from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving import parsing
from serving.errors import Problem, ServiceError
from serving.parsing import Limits, parse

LIMITS = Limits(max_seq_length=32768, max_request_tokens=16384)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def refused(body: object, limits: Limits = LIMITS) -> ServiceError:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(ServiceError) as caught:
        parse(raw, limits)
    return caught.value


def only_problem(body: object, limits: Limits = LIMITS) -> tuple[int, tuple[Any, ...], str, str]:
    error = refused(body, limits)
    assert len(error.problems) == 1
    problem = error.problems[0]
    return error.status, problem.loc, problem.msg, problem.type


@given(st.lists(st.lists(st.one_of(FLOATS, st.none()), min_size=4, max_size=4), min_size=1, max_size=3))
def test_numbers_arrive_as_float64_and_null_as_nan(rows: list[list[float | None]]) -> None:
    rows = [[0.5, *row] for row in rows]
    target = parse(json.dumps({"series": rows}).encode(), LIMITS).target
    assert target.dtype == np.float64
    np.testing.assert_array_equal(target, np.array(rows, dtype=np.float64))


def test_defaults_are_those_of_the_contract() -> None:
    request = parse(b'{"series":[1,2]}', LIMITS)
    assert (request.prediction_length, request.decode_block_size) == (96, 768)
    assert request.target.shape == (1, 2)


def test_the_nan_token_is_missing() -> None:
    np.testing.assert_array_equal(parse(b'{"series":[[1,NaN,3]]}', LIMITS).target, [[1, math.nan, 3]])


@pytest.mark.parametrize("length", ["4.0", "4", "4e0"])
def test_an_integral_length_passes(length: str) -> None:
    request = parse(b'{"series":[1],"prediction_length":%s}' % length.encode(), LIMITS)
    assert request.prediction_length == 4
    assert type(request.prediction_length) is int


@pytest.mark.parametrize(
    "length",
    [*("1.5", '"4"', "true", "null", "NaN", "Infinity", "-1", "0", "4097", "1e300", "[4]", "{}"), "9" * 401, "1e-400"],
)
def test_other_lengths_are_refused_with_the_range(length: str) -> None:
    status, loc, msg, _ = only_problem(b'{"series":[1],"prediction_length":%s}' % length.encode())
    assert (status, loc) == (422, ("body", "prediction_length"))
    assert "from 1 to 4096" in msg
    assert len(msg) < 200


@pytest.mark.parametrize("block", ["null", "32", "64.0", "4096"])
def test_a_block_of_whole_patches_passes(block: str) -> None:
    found = parse(b'{"series":[1],"decode_block_size":%s}' % block.encode(), LIMITS).decode_block_size
    assert found == (None if block == "null" else int(float(block)))


@pytest.mark.parametrize("block", ["0", "1", "33", "-32", "4128", "true", '"768"', "NaN", "32.5", "[]"])
def test_other_blocks_are_refused(block: str) -> None:
    status, loc, msg, _ = only_problem(b'{"series":[1],"decode_block_size":%s}' % block.encode())
    assert (status, loc) == (422, ("body", "decode_block_size"))
    assert "multiple of 32 from 32 to 4096" in msg


@pytest.mark.parametrize("flag", ["0", "1", '"true"', "null", "[]", "NaN"])
def test_only_true_and_false_are_flags(flag: str) -> None:
    status, loc, _, _ = only_problem(b'{"series":[1],"has_missing_values":%s}' % flag.encode())
    assert (status, loc) == (422, ("body", "has_missing_values"))


@pytest.mark.parametrize(
    "bad", ["[]", "[[]]", "5", '"1"', "null", "{}", "true", "[[[1]]]", "[1,[2]]", "[[1],2]", "[[],[]]"]
)
def test_other_shapes_are_refused_with_what_is_expected(bad: str) -> None:
    error = refused(b'{"series":%s}' % bad.encode())
    assert error.status == 422
    assert error.problems[0].loc[:2] == ("body", "series")
    assert "[variate][time]" in error.problems[0].msg


@pytest.mark.parametrize("cell", ['"secret"', "true", "Infinity", "-Infinity", "1e400", "-1e400", "{}", "9" * 401])
@pytest.mark.parametrize("where", ["[[1,2],[3,@]]", "[3,@]"])
def test_a_cell_that_is_no_finite_number_is_named_by_its_place(cell: str, where: str) -> None:
    status, loc, msg, _ = only_problem(b'{"series":%s}' % where.replace("@", cell).encode())
    assert status == 422
    assert loc == (("body", "series", 1, 1) if where.startswith("[[") else ("body", "series", 1))
    assert "secret" not in msg
    assert "999" not in msg


def test_an_integer_of_thousands_of_digits_is_a_422_as_one_of_hundreds_is() -> None:
    status, loc, msg, kind = only_problem(b'{"series":[1,%s]}' % (b"9" * 5000))
    assert (status, loc[0], kind) == (422, "body", "finite_number")
    assert "999" not in msg


def test_an_integer_past_float64_is_no_worse_than_the_largest_one() -> None:
    largest = str(2**1024 - 2**971)
    target = parse(b'{"series":[1,NaN,%s]}' % largest.encode(), LIMITS).target
    assert target[0, 2] == np.finfo(np.float64).max


def test_ten_problems_are_listed_and_the_rest_counted() -> None:
    error = refused({"series": [["x"] * 1000] * 20})
    assert len(error.problems) == 10
    assert error.more == 19_990


@pytest.mark.parametrize("series", [b"[[%s]]", b"[%s]"])
@pytest.mark.parametrize("cell", [b'"x"', b"true", b"Infinity", b"9" * 401, b"[]"])
def test_the_first_ten_of_many_wrong_cells_are_named_in_order(series: bytes, cell: bytes) -> None:
    cells = b",".join([b"1"] * 5 + [cell] * 30)
    if (series, cell) == (b"[%s]", b"[]"):  # there the numbers are wrong, beside rows
        cells = b",".join([b"[]"] * 5 + [b"1"] * 30)
    error = refused(b'{"series":%s}' % (series % cells))
    assert error.status == 422
    assert [problem.loc[-1] for problem in error.problems] == list(range(5, 15))
    assert error.more == 20


def test_no_more_than_ten_unknown_fields_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[str] = []

    def describe(name: str) -> Problem:
        described.append(name)
        return Problem((), "", "")

    monkeypatch.setattr(parsing, "_unknown", describe)
    error = refused({"series": [1], "horizon": 0} | {f"k{i}": 1 for i in range(1000)})
    assert described == ["horizon", *(f"k{i}" for i in range(9))]
    assert error.more == 991


def test_every_field_that_is_wrong_is_named_at_once() -> None:
    error = refused({"series": 1, "prediction_length": "x", "decode_block_size": 1, "has_missing_values": 2, "more": 3})
    assert {problem.loc[1] for problem in error.problems} == {
        *("series", "prediction_length", "decode_block_size", "has_missing_values", "more")
    }


def test_an_unknown_field_is_named_with_the_one_that_was_meant() -> None:
    status, loc, msg, kind = only_problem({"series": [1], "decode_blocksize": 32})
    assert (status, loc, kind) == (422, ("body", "decode_blocksize"), "extra_forbidden")
    assert "decode_block_size" in msg


def test_an_unknown_field_of_any_length_and_alphabet_is_repeated_safely() -> None:
    _, loc, _, _ = only_problem({"series": [1], "\x00\x1b[31m\n" + "k" * 5000: 1})
    assert loc[1].isprintable()
    assert len(loc[1]) <= 33


def test_rows_of_different_length_are_told_their_lengths() -> None:
    status, loc, msg, _ = only_problem({"series": [[1, 2, 3, 4, 5], [9, 8]]})
    assert (status, loc) == (422, ("body", "series"))
    assert "5, 2" in msg
    assert "null" in msg


def test_a_thousand_lengths_make_a_short_message() -> None:
    _, _, msg, _ = only_problem({"series": [[1] * n for n in range(1, 1000)]})
    assert len(msg) < 300


@pytest.mark.parametrize("body", [b"", b" ", b"{", b"[1,", b'{"series":[[1,2,]]}', b"{}{}", b"nul", b"'a'", b"{'a':1}"])
def test_what_is_not_json_is_a_400(body: bytes) -> None:
    status, loc, _, kind = only_problem(body)
    assert (status, loc, kind) == (400, ("body",), "json_invalid")


@pytest.mark.parametrize(
    "body",
    [
        *(b"\xef\xbb\xbf{}", b'{"\xff":1}', b'{"a":"\\ud800"}', b'{"\\ud800":1}', b'{"a":"\xed\xa0\x80"}'),
        *('{"series":[1]}'.encode("utf-16"), b"[" * 900 + b"]" * 900, b"[" * 20_000 + b"]" * 20_000),
        *(b'{"a":' * 900 + b"1" + b"}" * 900, b"1" * 5000, b'{"series":[' + b"1" * 5000 + b"]}", b"\x00", b"{}\x00"),
    ],
)
def test_awkward_bytes_are_refused_with_a_short_message(body: bytes) -> None:
    error = refused(body)
    assert error.status in (400, 422)
    assert all(len(problem.msg) < 300 for problem in error.problems)


@pytest.mark.parametrize("body", [b"[[1,2]]", b"1", b'"x"', b"null", b"true", b"NaN", b"[]"])
def test_json_that_is_no_object_is_a_422(body: bytes) -> None:
    assert only_problem(body)[:2] == (422, ("body",))


def test_the_last_of_two_equal_keys_counts() -> None:
    assert parse(b'{"series":[1],"series":[2]}', LIMITS).target.tolist() == [[2.0]]


def test_no_gaps_promised_and_one_found_names_the_first() -> None:
    body = {"series": [[1, 2, 3], [4, None, None]], "has_missing_values": False}
    status, loc, msg, _ = only_problem(body)
    assert (status, loc) == (422, ("body", "has_missing_values"))
    assert "variate 1, position 1" in msg


def test_a_variate_without_a_value_is_named() -> None:
    status, loc, msg, _ = only_problem({"series": [[1, 2], [None, None], [None, 1]]})
    assert (status, loc) == (422, ("body", "series", 1))
    assert "variate 1" in msg


def test_a_variate_whose_values_are_all_in_the_part_that_is_cut_is_named() -> None:
    series = [[1.0] * 300, [1.0] * 100 + [None] * 200]
    assert only_problem({"series": series}, Limits(128, 10_000))[1] == ("body", "series", 1)


def test_more_work_than_the_limit_is_a_413_with_both_figures() -> None:
    status, _, msg, _ = only_problem({"series": [[1.0] * 64] * 100, "prediction_length": 33}, Limits(1000, 399))
    assert status == 413
    assert "399" in msg
    assert "400" in msg


def test_as_many_variates_as_the_limit_allows_pass() -> None:
    exact = Limits(max_seq_length=64, max_request_tokens=1000)
    assert parse(json.dumps({"series": [[1.0]] * 500, "prediction_length": 1}).encode(), exact).rows == 500
    assert refused({"series": [[1.0]] * 501, "prediction_length": 1}, exact).status == 413
    assert refused({"series": [[1.0]] * 5000, "prediction_length": 1}, exact).status == 413


def test_work_is_counted_after_the_cut_and_without_leading_gaps() -> None:
    exact = Limits(max_seq_length=64, max_request_tokens=3)
    assert parse(json.dumps({"series": [1.0] * 5000, "prediction_length": 32}).encode(), exact)
    leading = {"series": [[None] * 500 + [1.0] * 64], "prediction_length": 32}
    assert parse(json.dumps(leading).encode(), Limits(4096, 3))
    assert refused(leading | {"prediction_length": 33}, Limits(4096, 3)).status == 413


@given(st.integers(1, 200), st.integers(0, 100), st.integers(1, 200), st.integers(1, 3), st.integers(32, 150))
def test_work_is_the_engines_count_of_it(observed: int, leading: int, horizon: int, rows: int, longest: int) -> None:
    body = {"series": [[None] * leading + [1.0] * observed] * rows, "prediction_length": horizon}
    request = parse(json.dumps(body).encode(), Limits(longest, 10**6))
    tokens = request.tokens(longest)
    assert parse(json.dumps(body).encode(), Limits(longest, tokens))
    assert refused(body, Limits(longest, tokens - 1)).status == 413
