"""Forecasts of the published toto-2 package, for `verify_npu_vs_cpu.py --reference upstream`.

    python -P patches/upstream_forecasts.py MODEL_DIR REQUESTS.npz ANSWERS.npz

Runs under an interpreter that has that package (its module is called toto2 too, so never beside this project's),
on the CPU in float32. REQUESTS holds NAME.target (variates, steps; NaN missing), NAME.horizon and NAME.block (0 is
none); ANSWERS gets NAME (9, variates, horizon).
"""

import sys

import numpy as np
import torch

from toto2 import Toto2Model

model = Toto2Model.from_pretrained(sys.argv[1]).float().eval()
requests = np.load(sys.argv[2])
answers = {}
for name in sorted(key.removesuffix(".target") for key in requests.files if key.endswith(".target")):
    target = torch.from_numpy(requests[f"{name}.target"]).float()[None]
    observed = torch.isfinite(target)
    inputs = {
        "target": target.nan_to_num(0.0),
        "target_mask": observed,
        "series_ids": torch.zeros(target.shape[:2], dtype=torch.long),
    }
    with torch.inference_mode():
        quantiles = model.forecast(
            inputs,
            int(requests[f"{name}.horizon"]),
            decode_block_size=int(requests[f"{name}.block"]) or None,
            has_missing_values=not bool(observed.all()),
            scaler_fallback_min_obs=8,
            quantile_real_cap_k=1e4,
        )
    answers[name] = quantiles[:, 0].double().numpy()
np.savez(sys.argv[3], **answers)  # type: ignore[arg-type]
