"""What tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "project", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("project")


@pytest.fixture(scope="session")
def small_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint directory with the published flags at toy width and reference weights."""
    from reference_models import save_reference_checkpoint

    return save_reference_checkpoint(tmp_path_factory.mktemp("models") / "small")
