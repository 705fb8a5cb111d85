"""The service with the real engine and a small checkpoint: what every awkward request is put to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from live import Live, running

from inference import Engine


@pytest.fixture(scope="session")
def service(small_checkpoint: Path) -> Iterator[Live]:
    with running(load=lambda: Engine.load(small_checkpoint, "cpu", threads=1)) as live:
        yield live
