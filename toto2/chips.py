"""Ascend chips by name, and what follows from it. Knows no framework, so that a host can be looked at without one."""

from __future__ import annotations

import re
from typing import Literal

Generation = Literal["910A", "910B", "910C"]

_NAMES: tuple[tuple[str, Generation], ...] = (
    (r"910(A|B|ProA|ProB|PremiumA)", "910A"),  # "910B" without a digit is of the first generation
    (r"910B\d.*", "910B"),
    (r"(Ascend)?910_93.*", "910C"),
)

NO_FLOAT32 = (
    "a chip of the first generation (910A) multiplies float32 as float16 and saturates Inf and NaN: "
    "forecasts would be wrong; take an Ascend 910B or 910C, or DEVICE=cpu"
)


def generation(name: str) -> Generation | None:
    """Of a chip as torch_npu names it (Ascend910B3, Ascend910_9392) or npu-smi does (910B3, Ascend910 for a 910C).

    None for a name that this project does not know.
    """
    if name == "Ascend910":
        return "910C"
    bare = name.removeprefix("Ascend")
    return next((chip for pattern, chip in _NAMES if re.fullmatch(pattern, bare)), None)
