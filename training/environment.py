"""What the process needs before it starts: glibc's allocator set to keep its memory, OpenMP to wait idly."""

from __future__ import annotations

import os
import sys

# A step frees and takes hundreds of megabytes. By default glibc gives them back to the kernel and faults every page
# in again, a third of the time of a step; these thresholds keep them in the process.
SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
    "MALLOC_TOP_PAD_": str(1 << 28),
    # On a shared machine a thread that spins at a barrier keeps the one it waits for from running.
    "OMP_WAIT_POLICY": "passive",
}


def keep_memory(module: str) -> None:
    """Start `python -m module` again with these settings, unless they are there: both libraries read them at start."""
    missing = {name: value for name, value in SETTINGS.items() if name not in os.environ}
    if missing and sys.platform == "linux":
        os.environ.update(missing)
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])
