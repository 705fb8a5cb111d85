"""Requests that are awkward as JSON, as types or as HTTP."""

from __future__ import annotations

import json

from cases import WAVE, Case, put, same_as, table
from live import Answer, Live, forecast

BAD = (400, 422)
PLAIN = json.dumps(forecast([WAVE]))


def default_horizon(answer: Answer, _: Live) -> None:
    assert answer.json["prediction_length"] == 96


def ten_and_a_count(answer: Answer, _: Live) -> None:
    assert len(answer.json["detail"]) == 10
    assert answer.json["more"] == 19_990


@table(
    Case("a plain request", forecast([WAVE])),
    Case("one dimension is one variate", forecast(WAVE), check=same_as([WAVE], relative=0.0)),
    Case("the length is 96 where it is absent", {"series": [WAVE]}, check=default_horizon),
    Case("an integral length", forecast([WAVE], 4.0)),
    Case("null is missing", forecast([[1, None, 3, 4]])),
    Case("the NaN token is missing too", '{"series":[[1,NaN,3,4]],"prediction_length":8}',
         check=same_as([[1, None, 3, 4]], relative=0.0)),
    Case("whitespace everywhere", ' \n\t{ "series" :\r\n[ [ 1 , 2 ] ] , "prediction_length" : 3 }\n'),
    Case("escaped field names", '{"\\u0073eries":[1,2],"prediction_length":3}'),
    Case("exponents, negative zero and tiny numbers", '{"series":[1e2,-0,-0.0,1E-2,5e-324,1e-400]}'),
    Case("integers of any size below the doubles' end", '{"series":[18446744073709551616,1' + "0" * 300 + ',3]}'),
    Case("the last of two equal keys", '{"series":[1],"series":[2,2],"prediction_length":2}'),
    Case("null for the block", forecast([WAVE], decode_block_size=None)),
    Case("a charset in capitals", PLAIN, headers={"content-type": "application/json;charset=UTF-8"}),
)  # fmt: skip
def test_what_json_can_say_is_understood(case: Case, service: Live) -> None:
    put(case, service)


@table(
    Case("Infinity", '{"series":[[1,Infinity,3]]}', (422,), says=("series",)),
    Case("-Infinity", '{"series":[[1,-Infinity,3]]}', (422,), says=("series",)),
    Case("a number past the doubles", '{"series":[[1,1e400,3]]}', BAD),
    Case("a number past the doubles beside a NaN", '{"series":[[NaN,1e400,3]]}', BAD),
    Case("prediction_length NaN", '{"series":[[1,2]],"prediction_length":NaN}', (422,), says=("prediction_length",)),
    Case("prediction_length Infinity", '{"series":[[1,2]],"prediction_length":Infinity}', (422,)),
    Case("a missing field beside a NaN", '{"serie":[[NaN]]}', (422,), says=("series",)),
    Case("strings for numbers", forecast([["17", "2"]]), (422,), hides=('"17"',)),
    Case("booleans for numbers", forecast([[True, False, 1]]), (422,)),
    Case("objects for numbers", forecast([[{"secret": 1}, 2]]), (422,), hides=("secret",)),
    Case("one string among 10,000 numbers", forecast([[1.0] * 9_999 + ["secret"]]), (422,), says=("9999",),
         hides=("secret",)),
    Case("true for a length", forecast([WAVE], True), (422,), says=("prediction_length",)),
    Case("a string for a length", forecast([WAVE], "4"), (422,), says=("prediction_length",)),
    Case("null for a length", forecast([WAVE], None), (422,), says=("prediction_length",)),
    Case("a list for a length", forecast([WAVE], [4]), (422,), says=("prediction_length",)),
    Case("length 1.5", forecast([WAVE], 1.5), (422,), says=("4096",)),
    Case("length 0", forecast([WAVE], 0), (422,), says=("4096",)),
    Case("length -1", forecast([WAVE], -1), (422,), says=("4096",)),
    Case("length 4097", forecast([WAVE], 4097), (422,), says=("4096",)),
    Case("length of 401 digits", '{"series":[1,2],"prediction_length":1' + "0" * 400 + "}", BAD),
    Case("a word for a flag", forecast([WAVE], has_missing_values="off"), (422,), says=("has_missing_values",)),
    Case("a number for a flag", forecast([WAVE], has_missing_values=0), (422,), says=("has_missing_values",)),
    Case("null for a flag", forecast([WAVE], has_missing_values=None), (422,), says=("has_missing_values",)),
    *[Case(f"block {b!r}", forecast([WAVE], decode_block_size=b), (422,), says=("decode_block_size",))
      for b in (0, 1, 33, -32, 4128, 32.5, True, "768", [768])],
    Case("an unknown option", forecast([WAVE], decode_blocksize=32), (422,), says=("decode_blocksize",)),
    Case("a name with control characters", forecast([WAVE], **{"\u0000\u001b[2J": 1}), (422,), hides=("\u001b",)),
    Case("a name of 100,000 letters", forecast([WAVE], **{"k" * 100_000: 1}), (422,)),
    Case("1,000 unknown options", forecast([WAVE], **{f"option{i}": 1 for i in range(1000)}), (422,)),
    Case("another alphabet", forecast([WAVE], ряд=1), (422,), says=("ряд",)),
    Case("an emoji", forecast([WAVE], **{"📈": 1}), (422,), says=("📈",)),
    Case("20,000 bad cells", forecast([["x"] * 1000] * 20), (422,), check=ten_and_a_count),
)  # fmt: skip
def test_wrong_values_are_named_and_not_repeated(case: Case, service: Live) -> None:
    put(case, service)


@table(
    Case("a 401-digit integer", '{"series":[[1,1' + "0" * 400 + "]]}", BAD),
    Case("a 5,000-digit integer", '{"series":[[1,1' + "0" * 5000 + "]]}", BAD),
    Case("a 5,000-digit fraction", '{"series":[[1,0.' + "9" * 5000 + "]]}", (200, *BAD)),
    Case("900 brackets", "[" * 900 + "]" * 900, BAD),
    Case("900 brackets in the series", '{"series":' + "[" * 900 + "]" * 900 + "}", BAD),
    Case("900 brackets beside a NaN", '{"series":[NaN,' + "[" * 900 + "]" * 900 + "]}", BAD),
    Case("20,000 brackets", "[" * 20_000 + "]" * 20_000, BAD),
    Case("20,000 brackets that never close", "[" * 20_000, BAD),
    Case("20,000 objects in one another", '{"a":' * 20_000 + "1" + "}" * 20_000, BAD),
    Case("100,000 empty lists", '{"series":[' + "[]," * 99_999 + "[]]}", (413,), says=("8192",)),
    Case("100,000 objects", '{"series":[' + "{}," * 99_999 + "{}]}", (413,), says=("8192",)),
    Case("a list", "[[1,2]]", BAD),
    Case("a number", "5", BAD),
    Case("NaN", "NaN", BAD),
    Case("null", "null", BAD),
    Case("an empty body", "", BAD),
    Case("spaces", "   ", BAD),
    Case("a trailing comma", '{"series":[[1,2,]]}', BAD),
    Case("a comment", '{"series":[[1,2]]} // done', BAD),
    Case("single quotes", "{'series':[[1,2]]}", BAD),
    Case("two objects", PLAIN + PLAIN, BAD),
    Case("two objects on two lines", PLAIN + "\n" + PLAIN, BAD),
    Case("half an object", PLAIN[:100], BAD),
    Case("a byte order mark", b"\xef\xbb\xbf" + PLAIN.encode(), BAD),
    Case("UTF-16", PLAIN.encode("utf-16"), BAD),
    Case("UTF-16 without a mark", PLAIN.encode("utf-16-le"), BAD),
    Case("UTF-32", PLAIN.encode("utf-32"), BAD),
    Case("Latin-1 in a name", '{"séries":[1]}'.encode("latin-1"), BAD),
    Case("a lone surrogate in a name", '{"\\ud800":1,"series":[1,2]}', BAD),
    Case("a lone surrogate in a cell", '{"series":["\\udfff",2]}', BAD),
    Case("a lone surrogate beside a NaN", '{"series":[NaN,"\\ud800"]}', BAD),
    Case("an encoded surrogate", b'{"series":["\xed\xa0\x80"]}', BAD),
    Case("zero bytes", b"\x00" * 100, BAD),
    Case("a zero byte after the object", PLAIN.encode() + b"\x00", BAD),
    Case("a zip file's first bytes", b"PK\x03\x04" + bytes(range(256)), BAD),
)  # fmt: skip
def test_what_is_no_json_object_is_refused_shortly(case: Case, service: Live) -> None:
    put(case, service)


@table(
    Case("plain text", PLAIN, (415,), headers={"content-type": "text/plain"}),
    Case("a form", "series=1", (415,), headers={"content-type": "application/x-www-form-urlencoded"}),
    Case("a charset that is not UTF-8", PLAIN, (415,), headers={"content-type": "application/json; charset=utf-16"}),
    Case("a charset that nobody knows", PLAIN, (415,), headers={"content-type": "application/json; charset=klingon"}),
    Case("brotli", PLAIN, (415,), headers={"content-encoding": "br"}),
    Case("gzip that is none", PLAIN, BAD, headers={"content-encoding": "gzip"}),
    Case("zstd that is none", PLAIN, BAD, headers={"content-encoding": "zstd"}),
    Case("GET", "", (405,), method="GET"),
    Case("PUT", PLAIN, (405,), method="PUT"),
    Case("PATCH", PLAIN, (405,), method="PATCH"),
    Case("a verb of its own", PLAIN, (400, 405), method="FORECAST"),
    Case("no such place", "", (404,), method="GET", path="/nowhere"),
    Case("a path that climbs", "", (404,), method="GET", path="/../../etc/passwd"),
    Case("a slash too many", PLAIN, (404,), path="/v1/forecast/"),
    Case("a query is not looked at", PLAIN, (200,), path="/v1/forecast?prediction_length=x"),
    Case("a deadline of no seconds", PLAIN, (422,), headers={"x-request-timeout": "0"}, says=("x-request-timeout",)),
)  # fmt: skip
def test_what_is_not_asked_as_it_should_be_is_refused_in_json(case: Case, service: Live) -> None:
    put(case, service)
