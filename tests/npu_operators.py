"""Run on the stand-in NPU: forecasts of every kind, and on standard output what reached the device, as JSON.

Arguments: a checkpoint directory, and the form of attention.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from inference import Engine, ForecastRequest
from tests.fake_npu import RECORD
from toto2.network import Toto2Network


def requests() -> list[list[ForecastRequest]]:
    """Batches: a single pass, blocks, gaps and whole missing patches, covariates, all of them mixed; one patch."""
    rng = np.random.default_rng(0)

    def series(variates: int, steps: int) -> Any:
        return rng.normal(0, 1, (variates, steps)).cumsum(axis=1)

    gaps = series(3, 500)
    gaps[rng.random(gaps.shape) < 0.2] = np.nan
    gaps[0, 64:160] = np.nan
    single, blocks = ForecastRequest(series(2, 256), 96), ForecastRequest(series(2, 256), 200, 64)
    missing = ForecastRequest(gaps, 96, 32)
    known = ForecastRequest(series(1, 192), 40, past_covariates=series(1, 192), known_covariates=series(1, 232))
    mixed = [single, blocks, missing, known]
    return [[single], [blocks], [missing], [known], mixed, [ForecastRequest(series(1, 32), 32)]]


def main(checkpoint: str, attention: str) -> None:
    forward = Toto2Network.forward

    def observed(self: Toto2Network, *args: Any) -> Any:
        with RECORD.during("stack"):
            return forward(self, *args)

    Toto2Network.forward = observed  # type: ignore[method-assign, assignment]
    with RECORD.during("load"):
        engine = Engine.load(Path(checkpoint), "npu:1", threads=1, attention=attention)
    host = Engine.load(Path(checkpoint), "cpu", threads=1)
    worst = 0.0
    for batch in requests():
        with RECORD.during("pass"):
            found = engine.forecast(batch)
        for request, ours, theirs in zip(batch, found, host.forecast(batch), strict=True):
            scale = np.nanstd(request.target, axis=1)[:, None]
            worst = max(worst, float((np.abs(ours.quantiles - theirs.quantiles) / scale).max()))
    calls = [[section, name, *dtypes] for section, name, dtypes in RECORD.calls]
    print(json.dumps({"calls": calls, "crossings": RECORD.crossings, "worst": worst}))


if __name__ == "__main__":
    main(*sys.argv[1:])
