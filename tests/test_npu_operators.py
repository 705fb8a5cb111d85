"""What a forecast sends to the device is what deploy/operators.md says, and no more."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from npu_process import ROOT, run_on_npu

TABLE = ROOT / "deploy" / "operators.md"
ROW = re.compile(r"^\| `(\w+)` \| ([\w, ]+) \| (.+) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def sent(small_checkpoint: Path) -> dict[str, Any]:
    """For each form of attention what reached the stand-in."""
    found = {}
    for attention in ("fused", "composite"):
        done = run_on_npu("tests/npu_operators.py", small_checkpoint, attention)
        assert done.returncode == 0, done.stderr
        found[attention] = json.loads(done.stdout)
    return found


def written() -> set[tuple[str, ...]]:
    rows = {(f"aten::{name}", *dtypes.split(", ")) for name, dtypes, _ in ROW.findall(TABLE.read_text())}
    assert len(rows) > 20
    return rows


def test_every_operator_sent_is_written_down(sent: dict[str, Any]) -> None:
    seen = {tuple(call[1:]) for form in sent.values() for call in form["calls"]}
    assert seen - written() == set()


def test_every_operator_written_down_is_sent(sent: dict[str, Any]) -> None:
    seen = {tuple(call[1:]) for form in sent.values() for call in form["calls"]}
    assert written() - seen == set()


def test_nothing_but_float32_masks_and_row_numbers_reaches_the_device(sent: dict[str, Any]) -> None:
    dtypes = {dtype for form in sent.values() for call in form["calls"] for dtype in call[2:]}
    assert dtypes == {"float32", "bool", "int64"}


def test_composite_attention_needs_no_bool(sent: dict[str, Any]) -> None:
    assert not any("bool" in call for call in sent["composite"]["calls"])


def test_nothing_crosses_to_the_host_inside_the_layer_stack(sent: dict[str, Any]) -> None:
    for form in sent.values():
        assert any(section == "stack" for section, *_ in form["calls"])
        assert "stack" not in form["crossings"]
        assert form["crossings"]["pass"] > 0  # patches and tables go there, quantiles come back


def test_the_device_answers_as_the_cpu_does(sent: dict[str, Any]) -> None:
    for form in sent.values():
        assert form["worst"] <= 1e-4
