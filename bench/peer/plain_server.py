"""The published package behind one plain handler: what bench/load.py compares the service with.

    CONFIG=4m DIR/bin/python bench/peer/plain_server.py 8041

Runs in the environment that bench/peer/setup.sh makes, on reference weights. CONFIG is a published size or the path of
a config.json.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
SIZES = {"4m": "4m_3x1024_96", "22m": "22m_4x512_96_missing", "313m": "313m_3x1024_96"}


def configuration() -> dict[str, Any]:
    """The configuration that CONFIG names."""
    import numpy as np

    name = os.environ.get("CONFIG", "22m")
    if name not in SIZES:
        fields: dict[str, Any] = json.loads(Path(name).read_text())
        return {key: value for key, value in fields.items() if key != "heads_per_group"}
    with np.load(ROOT / "tests" / "parity" / f"{SIZES[name]}.npz") as case:
        return dict(json.loads(str(case["config"])))


def build() -> Any:
    """The application."""
    sys.path.insert(0, str(ROOT / "bench"))
    load_published = importlib.import_module("worker").load_published  # keeps the other toto2 apart

    model = load_published(configuration())
    import numpy as np
    import torch
    from fastapi import FastAPI
    from pydantic import BaseModel

    class Body(BaseModel):
        series: list[list[float | None]]
        prediction_length: int = 96
        decode_block_size: int | None = 768

    app = FastAPI()

    def forecast(body: Body) -> dict[str, Any]:
        start = time.perf_counter()
        values = np.array(body.series, dtype=np.float32)
        values = np.pad(values, ((0, 0), (-values.shape[1] % 32, 0)), constant_values=np.nan)
        inputs = {
            "target": torch.from_numpy(np.nan_to_num(values))[None],
            "target_mask": torch.from_numpy(~np.isnan(values))[None],
            "series_ids": torch.zeros(1, len(values), dtype=torch.long),
        }
        answer = model.forecast(inputs, body.prediction_length, decode_block_size=body.decode_block_size)[:, 0]
        quantiles = {f"0.{level + 1}": rows.tolist() for level, rows in enumerate(answer)}
        return {
            "quantiles": quantiles,
            "median": quantiles["0.5"],
            "prediction_length": body.prediction_length,
            "n_variates": len(values),
            "latency_ms": 1000 * (time.perf_counter() - start),
        }

    forecast.__annotations__["body"] = Body  # defined here, so its name alone would not be found
    app.post("/v1/forecast")(forecast)
    return app


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(build(), port=int(sys.argv[1]), log_level="warning")
