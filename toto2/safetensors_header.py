"""The header of a safetensors file, read with distrust: eight bytes of length, a JSON object, then the data.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import TypeGuard

Shape = tuple[int, ...]

_MAX_JSON_BYTES = 16 << 20  # the header of the 2.5B checkpoint has about 75 kB
_AGAIN = "copy the file again or run download_model.py"
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1}


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: one line with the path, what is wrong and what to do."""

    def __init__(self, path: Path, wrong: str, remedy: str) -> None:
        super().__init__(" ".join(f"{path}: {wrong}; {remedy}".split()))


@dataclass(frozen=True)
class Entry:
    """One tensor: ``dtype`` in the format's word, and bytes ``start`` to ``end`` of ``file``."""

    file: Path
    dtype: str
    shape: Shape
    start: int
    end: int


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """``path`` for reading. Raises ``CheckpointError`` for any error of the system until it is closed."""
    try:
        with path.open("rb") as stream:
            yield stream
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror or error}", "check the file") from None


def read_json_object(path: Path, remedy: str) -> dict[str, object]:
    """The JSON object in a small file. Raises ``CheckpointError``."""
    with opened(path) as stream:
        data = stream.read(_MAX_JSON_BYTES + 1)
    _refuse_other_content(path, data[:512])
    return _parse_object(path, data, remedy)


def read_header(path: Path) -> dict[str, Entry]:
    """Tensor name to entry, in the order of the data; the data fill the file exactly.

    Reads the header alone and allocates nothing else. Raises ``CheckpointError``.
    """
    with opened(path) as stream:
        size = stream.seek(0, 2)
        stream.seek(0)
        first = stream.read(512)
        _refuse_other_content(path, first)
        length = int.from_bytes(first[:8], "little")
        if size < 8 or length > min(size - 8, _MAX_JSON_BYTES):
            wrong = f"is no whole safetensors file: a header of {length} bytes in a file of {size} bytes"
            raise CheckpointError(path, wrong, _AGAIN)
        stream.seek(8)
        header = _parse_object(path, stream.read(length), _AGAIN)
    header.pop("__metadata__", None)
    if not header:
        raise CheckpointError(path, "holds no tensors", _AGAIN)
    entries = {name: _entry(path, name, value, 8 + length) for name, value in header.items()}
    entries = dict(sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)))
    _check_layout(path, entries, 8 + length, size)
    return entries


def _refuse_other_content(path: Path, first: bytes) -> None:
    """What is commonly found in place of weights, each by its own name."""
    if not first:
        raise CheckpointError(path, "is empty: 0 bytes", _AGAIN)
    if first.startswith(b"version https://git-lfs"):
        fields = dict(line.split(" ", 1) for line in first.decode("ascii", "replace").splitlines() if " " in line)
        wrong = f"is a Git LFS pointer to {fields.get('size', 'an unknown number of')} bytes, not the file itself"
        raise CheckpointError(path, wrong, "run `git lfs pull` there, or download_model.py")
    if first.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        wrong = "is a web page, not the file itself: what served it answered with an error or a login"
        raise CheckpointError(path, wrong, _AGAIN)
    if first.startswith(b"PK\x03\x04"):
        raise CheckpointError(
            path,
            "is a zip archive (a PyTorch pickle?), expected safetensors",
            "use the published safetensors",
        )


def _parse_object(path: Path, data: bytes, remedy: str) -> dict[str, object]:
    if len(data) > _MAX_JSON_BYTES:
        raise CheckpointError(path, f"is larger than {_MAX_JSON_BYTES} bytes", remedy)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(path, f"holds no valid JSON ({error!s:.80})", remedy) from None
    if not isinstance(value, dict):
        raise CheckpointError(path, f"expected a JSON object, found {json.dumps(value):.40}", remedy)
    return value


def _entry(path: Path, name: str, value: object, data_start: int) -> Entry:
    """One header value, checked by itself: a known type, a shape, and a byte range of just that size."""
    fields = value if isinstance(value, dict) else {}
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if isinstance(dtype, str) and _are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2:
        start, end = offsets
        if end - start == math.prod(shape) * _ITEM_BYTES.get(dtype, -1):
            return Entry(path, dtype, tuple(shape), data_start + start, data_start + end)
    wrong = f"the header gives tensor {name:.80} as {json.dumps(value):.120}, expected a size to match"
    raise CheckpointError(path, wrong, _AGAIN)


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_layout(path: Path, entries: Mapping[str, Entry], data_start: int, size: int) -> None:
    """The format's own rule: the tensors fill the file from the header's end, with no gap and no overlap."""
    position = data_start
    for name, entry in entries.items():
        if entry.start != position:
            wrong = f"tensor {name:.80} starts at byte {entry.start}, expected {position}"
            raise CheckpointError(path, wrong, _AGAIN)
        position = entry.end
    if position != size:
        state = "cut short" if size < position else "longer than its header says"
        raise CheckpointError(path, f"is {state}: {size} bytes, expected {position}", _AGAIN)
