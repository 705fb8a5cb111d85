"""Scripts run beside the stand-in NPU, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAKE = ROOT / "tests" / "fake_npu.py"


def command(script: str | Path, *arguments: str | Path) -> list[str]:
    return [sys.executable, str(FAKE), str(script), *map(str, arguments)]


def environment(**variables: str) -> dict[str, str]:
    """This process's, one thread, and `variables` (FAKE_NPU_...) added."""
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"} | variables


def run_on_npu(script: str | Path, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """`script`, a path in the repository, to its end."""
    return subprocess.run(
        command(ROOT / script, *arguments),
        cwd=ROOT,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
