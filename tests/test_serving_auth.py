from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import structlog.testing
from starlette.datastructures import Headers

from serving.auth import Keys, KeysError
from serving.errors import ServiceError


def bearer(key: str) -> Headers:
    return Headers({"authorization": f"Bearer {key}"})


def keys(path: Path, text: str) -> Keys:
    path.write_text(text, encoding="utf-8")
    return Keys(path)


def rewrite(path: Path, text: str) -> None:
    """Another file in the place of the old one, as editors and secret mounts do it."""
    other = path.with_suffix(".new")
    other.write_text(text, encoding="utf-8")
    os.replace(other, path)


def refused(found: Keys, headers: Headers) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        found.name(headers)
    assert caught.value.status == 401
    return caught.value


def test_each_key_of_the_file_has_its_name(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"second-key").hexdigest()
    found = keys(tmp_path / "keys", f"# keys\n\nfirst first-key\nsecond  sha256:{digest}\n")
    assert found.name(bearer("first-key")) == "first"
    assert found.name(Headers({"authorization": "bEARER second-key"})) == "second"
    assert found.name(Headers({"x-api-key": "second-key"})) == "second"


@pytest.mark.parametrize(
    "headers",
    [
        *({}, {"authorization": "Bearer "}, {"authorization": "Bearer first-ke"}, {"authorization": "Basic first-key"}),
        *({"x-api-key": ""}, {"authorization": "first-key"}, {"authorization": "Bearer first-key\xff"}),
        {"x-api-key": "sha256:" + hashlib.sha256(b"first-key").hexdigest()},
    ],
)
def test_no_key_or_another_is_a_401_that_does_not_repeat_it(tmp_path: Path, headers: dict[str, str]) -> None:
    error = refused(keys(tmp_path / "keys", "first first-key\n"), Headers(headers))
    assert error.headers["WWW-Authenticate"] == "Bearer"
    assert "first-ke" not in error.problems[0].msg


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    found = keys(path, "old old-key\n")
    rewrite(path, "new new-key\n")
    assert found.name(bearer("new-key")) == "new"
    refused(found, bearer("old-key"))


def test_an_emptied_file_leaves_nobody_in(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    found = keys(path, "old old-key\n")
    rewrite(path, "# all revoked\n")
    refused(found, bearer("old-key"))


@pytest.mark.parametrize("text", ["half", "a b c\n", None])
def test_a_broken_or_missing_file_leaves_the_old_keys_good(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "keys"
    found = keys(path, "old old-key\n")
    if text is None:
        path.unlink()
    else:
        rewrite(path, text)
    assert found.name(bearer("old-key")) == "old"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "at least one"),
        ("# none\n", "at least one"),
        ("one two three\n", "line 1"),
        ("one secret-of-mine\nalone\n", "line 2"),
        ("one sha256:abc\n", "64 hexadecimal"),
        ("bad/name key\n", "line 1"),
        ("one secret-of-mine\ntwo key\none other\n", "line 3: expected each name once, found one again"),
    ],
)
def test_a_file_that_cannot_be_used_says_why_without_its_secrets(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(KeysError, match=says) as caught:
        keys(tmp_path / "keys", text)
    assert "secret-of-mine" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match="No such file"):
        Keys(tmp_path / "none")


def test_a_short_key_is_warned_of_by_its_name(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"x").hexdigest()
    structlog.reset_defaults()  # a level that another test has set would hide the line
    with structlog.testing.capture_logs() as lines:
        keys(tmp_path / "keys", f"short fifteen-letters\nlong sixteen-letters!!\nhashed sha256:{digest}\n")
    assert [(line["event"], line["caller"]) for line in lines] == [("short key", "short")]
    assert "fifteen-letters" not in str(lines)
