from __future__ import annotations

import gzip
import os
import zlib
from contextlib import suppress

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from serving.bodies import check_headers, expand
from serving.errors import ServiceError

ENCODE = {"gzip": gzip.compress, "zstd": zstandard.ZstdCompressor(level=1).compress}
MOST = 100_000


def status(work: object, *arguments: object) -> int:
    with pytest.raises(ServiceError) as caught:
        work(*arguments)  # type: ignore[operator]
    return caught.value.status


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@given(data=st.binary(max_size=2000))
def test_what_was_compressed_comes_back(encoding: str, data: bytes) -> None:
    assert expand(ENCODE[encoding](data), encoding, MOST) == data
    assert expand(ENCODE[encoding](data) + ENCODE[encoding](data), encoding, MOST) == data + data


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_body_may_expand_to_the_limit_and_no_further(encoding: str) -> None:
    assert len(expand(ENCODE[encoding](b"0" * MOST), encoding, MOST)) == MOST
    assert status(expand, ENCODE[encoding](b"0" * (MOST + 1)), encoding, MOST) == 413
    assert status(expand, ENCODE[encoding](b"0" * 100_000_000), encoding, MOST) == 413
    assert status(expand, ENCODE[encoding](b"0" * MOST) * 20, encoding, MOST) == 413


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@given(data=st.binary(max_size=200))
def test_any_bytes_expand_or_are_refused(encoding: str, data: bytes) -> None:
    with suppress(ServiceError):
        assert len(expand(data, encoding, MOST)) <= MOST


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_stream_cut_anywhere_is_told_so(encoding: str) -> None:
    whole = ENCODE[encoding](b'{"series": [1, 2, 3]}')
    for length in range(len(whole)):
        for body in (whole[:length], whole + whole[:length] if length else b""):
            with pytest.raises(ServiceError, match="found one that is cut") as caught:
                expand(body, encoding, MOST)
            assert caught.value.status == 400


def test_a_zstd_frame_without_its_last_block_is_cut() -> None:
    writer = zstandard.ZstdCompressor().compressobj()
    unfinished = writer.compress(b'{"series": [1]}') + writer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    assert status(expand, unfinished, "zstd", MOST) == 400


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_many_frames_are_taken_and_too_many_refused(encoding: str) -> None:
    assert expand(ENCODE[encoding](b"0") * 1024, encoding, MOST) == b"0" * 1024
    assert status(expand, ENCODE[encoding](b"") * 100_000, encoding, MOST) == 400


def test_a_stream_that_is_cut_is_a_400() -> None:
    assert status(expand, gzip.compress(os.urandom(5000))[:-1], "gzip", MOST) == 400
    assert status(expand, gzip.compress(b"{}") + b"more", "gzip", MOST) == 400
    assert status(expand, zlib.compress(b"{}"), "gzip", MOST) == 400
    assert status(expand, b"{}", "zstd", MOST) == 400


def test_a_window_of_a_gigabyte_is_refused() -> None:
    small, huge = (b"\x28\xb5\x2f\xfd\x00" + bytes([(log - 10) << 3]) + b"\x09\x00\x000" for log in (23, 30))
    assert expand(small, "zstd", MOST) == b"0"
    assert status(expand, huge, "zstd", MOST) == 400


@pytest.mark.parametrize(
    "content_type",
    [
        *(
            "application/json",
            "Application/JSON",
            "application/json; charset=utf-8",
            'application/json;charset="UTF-8"',
        ),
        *("application/vnd.api+json", "application/json; charset=us-ascii", "application/json; odata=verbose"),
    ],
)
def test_json_in_utf_8_is_taken(content_type: str) -> None:
    assert check_headers(Headers({"content-type": content_type}), MOST) == ""


@pytest.mark.parametrize(
    "content_type",
    [
        *("text/plain", "application/x-www-form-urlencoded", "application/jsonp", "json", "", "application/", "a/b/c"),
        *("application/json; charset=utf-16", "application/json; charset=latin-1", "application/json; charset="),
        *("application/json; charset*=utf-8''x", "multipart/form-data; boundary=application/json"),
    ],
)
def test_any_other_type_or_charset_is_a_415(content_type: str) -> None:
    assert status(check_headers, Headers({"content-type": content_type}), MOST) == 415


def test_a_body_without_a_type_is_taken_as_json() -> None:
    assert check_headers(Headers({}), MOST) == ""


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "x", "identity, gzip"])
def test_another_content_encoding_is_a_415(encoding: str) -> None:
    assert status(check_headers, Headers({"content-encoding": encoding}), MOST) == 415


@pytest.mark.parametrize(("given", "found"), [("GZIP", "gzip"), (" zstd ", "zstd"), ("identity", ""), ("", "")])
def test_content_encodings_have_no_case(given: str, found: str) -> None:
    assert check_headers(Headers({"content-encoding": given}), MOST) == found


def test_a_length_over_the_limit_is_refused_before_the_body_comes() -> None:
    assert check_headers(Headers({"content-length": str(MOST)}), MOST) == ""
    assert status(check_headers, Headers({"content-length": str(MOST + 1)}), MOST) == 413
