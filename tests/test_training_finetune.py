"""Fine-tuning: what is kept back, the verdict, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from toto2 import Toto2Model
from toto2.checkpoint import save
from toto2.configuration import Toto2ModelConfig
from training import finetune
from training.tuning import Parts, Verdict, horizon_loss, split, tune

CONFIG = Toto2ModelConfig(d_model=32, num_heads=1, num_layers=2, d_ff=32)


@pytest.fixture
def model() -> Toto2Model:
    torch.manual_seed(0)
    return Toto2Model(CONFIG)


def cycle(steps: int, variates: int = 2) -> np.ndarray:
    noise = np.random.default_rng(0).normal(scale=0.05, size=(variates, steps))
    return np.sin(2 * np.pi * np.arange(steps) / 16)[None] * np.arange(1, variates + 1)[:, None] * 1e6 + noise


def test_the_end_is_kept_back_twice() -> None:
    parts = split(cycle(1000), 32)
    assert (parts.train, parts.stop) == (800, 900)
    assert split(cycle(600), 96).train == 600 - 2 * 96


def test_a_table_too_short_is_refused_with_the_numbers() -> None:
    with pytest.raises(ValueError, match=r"at least 448 steps .* found 400"):
        split(cycle(400), 96)


def test_the_loss_of_a_horizon_sees_no_value_of_it(model: Toto2Model) -> None:
    values = cycle(800)
    parts = split(values, 64)
    before = horizon_loss(model, parts, parts.stop, 800, 64)
    assert before > 0
    # A change of what follows a window's context changes the target, not the forecast: the loss moves with the error.
    shifted = Parts(np.concatenate([values[:, :736], values[:, 736:] + 1e6], axis=1), parts.train, parts.stop)
    assert horizon_loss(model, shifted, 736, 800, 64) != pytest.approx(before, rel=1e-3)


def test_missing_values_and_scale_are_taken_in(model: Toto2Model) -> None:
    values = cycle(800)
    scaled = Parts(values * 1e-9 + 5, 600, 700)
    plain = Parts(values, 600, 700)
    assert horizon_loss(model, scaled, 700, 800, 32) == pytest.approx(
        horizon_loss(model, plain, 700, 800, 32), rel=1e-3
    )
    values[0, 100:300] = np.nan
    assert np.isfinite(horizon_loss(model, Parts(values, 600, 700), 700, 800, 32))


def test_a_verdict_needs_a_gain_worth_a_second_model() -> None:
    assert Verdict(0.2, 0.19, 40).better
    assert not Verdict(0.2, 0.1999, 40).better
    assert not Verdict(0.2, 0.3, 0).better


@pytest.mark.slow
def test_a_few_steps_on_a_cycle_beat_the_base(model: Toto2Model) -> None:
    lines: list[str] = []
    verdict = tune(model, split(cycle(900), 32), 32, max_steps=40, seed=0, show=lines.append)
    assert verdict.better
    assert verdict.steps > 0
    assert len(lines) == 3


@pytest.mark.slow
def test_the_command_writes_a_checkpoint_only_where_it_is_better(
    model: Toto2Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / "base", CONFIG, model.state_dict())
    data = tmp_path / "data.csv"
    data.write_text("a,b\n" + "\n".join(f"{a},{b}" for a, b in cycle(900).T) + "\n")
    common = ["--data", str(data), "--base", str(tmp_path / "base"), "--horizon", "32", "--threads", "1"]
    assert finetune.main([*common, "--out", str(tmp_path / "none"), "--max-steps", "0"]) == 1
    assert "refused" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    assert finetune.main([*common, "--out", str(tmp_path / "tuned"), "--max-steps", "40"]) == 0
    tuned = Toto2Model.from_pretrained(tmp_path / "tuned")
    assert not torch.equal(tuned.patch_proj.linear1.weight, model.patch_proj.linear1.weight)
    about = json.loads((tmp_path / "tuned" / "finetuned.json").read_text())
    assert about["tuned_loss"] < about["base_loss"]


def test_the_command_names_a_table_or_base_it_cannot_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "short.csv"
    data.write_text("a\n" + "1\n2\n" * 50)
    assert finetune.main(["--data", str(data), "--base", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "found 100" in capsys.readouterr().err
