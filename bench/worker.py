"""One side of the speed bench: load a model, then time the forecasts that standard input asks for.

    worker.py ours|published CONFIG_JSON THREADS DTYPE

Each line of input is {"batch", "variates", "context", "horizon", "block"}; each line of output {"seconds"}.
The published side runs in an environment of its own (bench/peer/setup.sh), whose module is called toto2 too.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def load_ours(config: dict[str, Any], dtype: str) -> Any:
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    from reference_models import reference_model

    from toto2 import Toto2ModelConfig
    from toto2.device import find_device
    from toto2.folding import fold

    return fold(reference_model(Toto2ModelConfig.from_dict(config)), find_device("cpu").placement(dtype))


def load_published(config: dict[str, Any]) -> Any:
    stub = types.ModuleType("gluonts.torch")  # it would import lightning, which the model does not use
    stub.PyTorchPredictor = object  # type: ignore[attr-defined]
    sys.modules.setdefault("gluonts.torch", stub)
    sys.path[:] = [path for path in sys.path if path not in ("", str(ROOT), str(ROOT / "bench"))]
    from toto2 import Toto2Model
    from toto2.configuration import Toto2ModelConfig

    sys.path.append(str(ROOT / "tests"))
    from reference_weights import reference_state_dict

    model = Toto2Model(Toto2ModelConfig(**config)).eval()
    model.load_state_dict(reference_state_dict(model.state_dict()))
    return model


def main() -> None:
    side, config, threads, dtype = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    import torch

    torch.set_num_threads(threads)
    start = time.perf_counter()
    model = load_ours(config, dtype) if side == "ours" else load_published(config)
    print(json.dumps({"build_seconds": time.perf_counter() - start}), flush=True)
    for line in sys.stdin:
        shape = json.loads(line)
        generator = torch.Generator().manual_seed(0)
        target = torch.randn(shape["batch"], shape["variates"], shape["context"], generator=generator).cumsum(-1)
        inputs = {
            "target": target,
            "target_mask": torch.ones_like(target, dtype=torch.bool),
            "series_ids": torch.zeros(target.shape[:2], dtype=torch.long),
        }
        start = time.perf_counter()
        model.forecast(inputs, shape["horizon"], decode_block_size=shape["block"], has_missing_values=True)
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"seconds": seconds, "peak_bytes": peak}), flush=True)


if __name__ == "__main__":
    main()
