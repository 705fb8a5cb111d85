"""The model card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import accuracy
from inference import Engine
from toto2 import Toto2Model
from toto2.checkpoint import save
from toto2.configuration import Toto2ModelConfig
from training import card

ENTRY = {
    "step": 10, "points": 1_310_720, "seconds": 60.0, "points_per_second": 21845, "train_loss": 0.3,
    "held_out_loss": 0.25, "gradient_norm": 0.1, "factor": 0.5,
}  # fmt: skip


def made_scores(sha256: str, parameters: int) -> dict[str, Any]:
    each = {"mase": 0.5, "wql": 0.1, "pinball": 0.2, "coverage": 0.8}
    row = {"set": "taylor", "horizon": 48, "windows": 10, "core": True}
    rows = [{**row, "scores": {"model": each, "last value": each, "seasonal naive": each}}]
    means = {name: accuracy.summary(rows) for name in ("core", "all")}
    return {"sha256": sha256, "parameters": parameters, "rows": rows, "means": means, "shapes": {"line": 0.01}}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = Toto2ModelConfig(d_model=32, num_heads=1, num_layers=2, d_ff=32)
    save(tmp_path / "model", config, Toto2Model(config).state_dict())
    begun = {"step": 0, "points": 0, "seconds": 0.0, "held_out_loss": 0.21, "base": "first"}
    logs = {"first": [ENTRY, {**ENTRY, "points": 2_621_440}], "second": [begun, {**ENTRY, "held_out_loss": 0.2}]}
    for name, entries in logs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return tmp_path


@pytest.mark.slow
def test_the_card_tells_run_and_scores(checkpoint: Path) -> None:
    model = checkpoint / "model"
    info = Engine.load(model, device="cpu").info
    (model / accuracy.SCORES).write_text(json.dumps(made_scores(info.sha256, info.parameters)))
    states = [str(checkpoint / name) for name in ("first", "second")]
    assert card.main(["--model", str(model), "--state", *states]) == 0
    text = (model / "MODEL_CARD.md").read_text(encoding="utf-8")
    begins, ends = "| 2 | 0 | 0 |  | 0.2100 |", "20 steps, 2 minutes"
    for part in (
        info.sha256,
        f"{info.parameters:,}",
        "loss 0.2000",
        begins,
        ends,
        "| taylor | 48 | 10 |",
        "seasonal naive | 1.000",
    ):
        assert part in text
    assert all((model / name).stat().st_size > 1000 for name in ("loss.png", "shapes.png"))
    assert card.main(["--model", str(model)]) == 0  # Again, from what lies beside the model.


def test_scores_of_other_weights_are_refused(checkpoint: Path) -> None:
    model = checkpoint / "model"
    (model / accuracy.SCORES).write_text(json.dumps(made_scores("0" * 64, 1)))
    with pytest.raises(SystemExit, match="score them first"):
        card.main(["--model", str(model), "--state", str(checkpoint / "first")])
