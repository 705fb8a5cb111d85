"""The training loop: loss, schedule, exact resumption, learning, and unit scale at initialisation."""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from toto2 import Toto2Model
from toto2.checkpoint import save
from toto2.configuration import Toto2ModelConfig
from training import train
from training import trainer as trainer_module
from training.batches import masked_batch, training_batch
from training.generator import SeriesGenerator
from training.loss import batch_loss, pinball, quantiles_of, step_tensors
from training.schedule import Schedule
from training.state import Progress, append_log, load_state, read_log
from training.trainer import Settings, Trainer, batch_shape, held_out_loss

TINY = Settings(d_model=32, num_heads=2, num_layers=2, d_ff=64, patches_per_batch=512)
POINTS = TINY.patches_per_batch * 32


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Little to evaluate; and puts back the signal handlers that a training run takes over."""
    monkeypatch.setattr(trainer_module, "HELD_OUT_BATCHES", 1)
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def run(directory: Path, steps: int, of: int, settings: Settings = TINY) -> Trainer:
    """Train up to `steps` steps of a schedule made for `of`."""
    trainer = Trainer(settings, directory, compiled=False)
    schedule = Schedule(of * POINTS, POINTS, of * POINTS // 2)
    stepped = trainer.optimisers.step

    def stop_after(factor: float) -> float:
        norm = stepped(factor)
        if trainer.progress.step + 1 == steps:
            signal.raise_signal(signal.SIGTERM)
        return norm

    trainer.optimisers.step = stop_after  # type: ignore[method-assign]
    trainer.train(schedule, None, 2 * POINTS, lambda line: None)
    return trainer


def test_pinball_of_a_perfect_forecast_is_zero_and_grows_with_the_error() -> None:
    target = torch.tensor([1.0, 2.0])
    exact = target[:, None].expand(2, 9)
    assert pinball(exact, target, torch.ones(2)) == 0
    assert pinball(exact + 1, target, torch.ones(2)) == pytest.approx(0.5)
    levels = torch.arange(1, 10) / 10
    tails = torch.where(levels > 0.5, 1.0, 0.0)
    assert pinball(exact + tails, target, torch.ones(2)) == pytest.approx(float(((1 - levels) * tails).mean()))


def test_pinball_counts_only_what_weighs() -> None:
    quantiles = torch.tensor([[0.0] * 9, [100.0] * 9])
    assert pinball(quantiles, torch.zeros(2), torch.tensor([1.0, 0.0])) == 0
    assert pinball(quantiles, torch.zeros(2), torch.zeros(2)) == 0


def test_the_schedule_warms_up_holds_and_decays_to_zero() -> None:
    schedule = Schedule(points=1000, warmup=100, decay_from=600)
    assert schedule.factor(0) == 0
    assert schedule.factor(50) == pytest.approx(0.5)
    assert schedule.factor(100) == schedule.factor(600) == 1
    assert schedule.factor(800) == pytest.approx(0.5)
    assert schedule.factor(1000) == schedule.factor(2000) == 0


def test_the_clock_decays_a_run_that_is_slower_than_planned() -> None:
    schedule = Schedule(points=1000, warmup=100, decay_from=600)
    assert schedule.factor(200, clock=0.8) == pytest.approx(0.5)
    assert schedule.factor(900, clock=0.1) == pytest.approx(0.25)


def test_a_schedule_out_of_order_is_refused() -> None:
    with pytest.raises(ValueError, match="found 10, 5, 100"):
        Schedule(points=100, warmup=10, decay_from=5)


def test_a_stopped_run_goes_on_exactly_where_it_was(tmp_path: Path) -> None:
    straight = run(tmp_path / "straight", steps=6, of=8)
    run(tmp_path / "parts", steps=2, of=8)
    resumed = run(tmp_path / "parts", steps=6, of=8)
    assert resumed.progress.step == straight.progress.step == 6
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_the_seed_decides_the_weights(tmp_path: Path) -> None:
    first, again = (run(tmp_path / name, steps=2, of=8) for name in ("a", "b"))
    other = run(tmp_path / "c", steps=2, of=8, settings=Settings(**{**vars(TINY), "seed": 1}))
    assert torch.equal(first.model.patch_proj.linear1.weight, again.model.patch_proj.linear1.weight)
    assert not torch.equal(first.model.patch_proj.linear1.weight, other.model.patch_proj.linear1.weight)


def test_a_state_of_other_settings_is_refused(tmp_path: Path) -> None:
    run(tmp_path, steps=2, of=8)
    with pytest.raises(ValueError, match="name another directory"):
        Trainer(Settings(**{**vars(TINY), "seed": 1}), tmp_path, compiled=False)


def test_a_later_stage_may_have_other_learning_rates(tmp_path: Path) -> None:
    run(tmp_path, steps=2, of=8)
    stage = run(tmp_path, steps=3, of=8, settings=Settings(**{**vars(TINY), "adam_lr": 0.5}))
    assert stage.progress.step == 3
    rates = [group["lr"] for group in stage.optimisers.adamw.param_groups]
    assert max(rates) == pytest.approx(0.5)


def test_a_new_stage_begins_with_a_checkpoint_and_goes_on_from_its_own_state(tmp_path: Path) -> None:
    first = run(tmp_path / "first", steps=2, of=8)
    save(tmp_path / "base", first.model.config, first.model.state_dict())
    stage = Trainer(TINY, tmp_path / "second", compiled=False, base=tmp_path / "base")
    assert stage.progress.step == 0
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, stage.model.state_dict()[name]), name
    resumed = Trainer(TINY, tmp_path / "first", compiled=False, base=tmp_path / "nowhere")
    assert resumed.progress.step == 2


def test_a_base_of_another_shape_is_refused(tmp_path: Path) -> None:
    wide = Trainer(dataclasses.replace(TINY, d_model=64), tmp_path / "wide", compiled=False).model
    save(tmp_path / "base", wide.config, wide.state_dict())
    with pytest.raises(ValueError, match="another shape"):
        Trainer(TINY, tmp_path / "stage", compiled=False, base=tmp_path / "base")


@pytest.mark.slow
def test_training_lowers_the_held_out_loss(tmp_path: Path) -> None:
    torch.manual_seed(0)
    before = held_out_loss(Toto2Model(TINY.config()))
    trainer = run(tmp_path, steps=40, of=40)
    assert held_out_loss(trainer.model) < 0.92 * before
    entries = read_log(tmp_path / "log.jsonl")
    assert [entry["step"] for entry in entries] == list(range(2, 41, 2))
    assert entries[-1]["held_out_loss"] < entries[0]["held_out_loss"]
    assert all(entry["points_per_second"] > 0 for entry in entries)


def test_a_log_leaves_out_what_a_restart_did_again(tmp_path: Path) -> None:
    for points in (1, 2, 3, 2, 3, 4):
        append_log(tmp_path, {"points": points, "train_loss": 1.0})
    assert [entry["points"] for entry in read_log(tmp_path / "log.jsonl")] == [1, 2, 3, 4]


def test_lengths_of_batches_hold_the_same_points() -> None:
    shapes = {batch_shape(Settings(), index) for index in range(60)}
    assert {patches for _, patches in shapes} == {32, 64, 128}
    assert {rows * patches for rows, patches in shapes} == {4096}


def tiny_arguments(directory: Path) -> list[str]:
    state, out = str(directory / "state"), str(directory / "model")
    return ["--state", state, "--out", out, "--eager", "--threads", "1", "--d-model", "16", "--num-heads", "1",
            "--num-layers", "2", "--d-ff", "16"]  # fmt: skip


@pytest.mark.slow
def test_the_command_trains_exports_and_evaluates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*tiny_arguments(tmp_path), "--points", "262144", "--log-every", "131072"]
    assert train.main(arguments) == 0
    model = Toto2Model.from_pretrained(tmp_path / "model")
    state = load_state(tmp_path / "state")
    assert state is not None
    assert torch.equal(model.patch_proj.linear1.weight, state["model"]["patch_proj.linear1.weight"])
    assert Progress(**state["progress"]).points == 262144
    entry = json.loads((tmp_path / "state" / "log.jsonl").read_text().splitlines()[-1])
    capsys.readouterr()
    assert train.main(["--evaluate", "--out", str(tmp_path / "model")]) == 0
    assert f"{entry['held_out_loss']:.5f}" in capsys.readouterr().out


def unit_scale_model(width: int) -> tuple[Toto2Model, dict[str, float]]:
    """A fresh model of this width after one backward pass, and the deviation of what each layer puts out."""
    torch.manual_seed(0)
    config = Toto2ModelConfig(d_model=width, num_heads=width // 32, num_layers=4)
    model = Toto2Model(config)
    deviations: dict[str, float] = {}

    def record(name: str) -> object:
        def hook(module: torch.nn.Module, inputs: object, output: Tensor) -> None:
            deviations[name] = float(output.detach().std())

        return hook

    for index, layer in enumerate(model.transformer.layers):
        layer.register_forward_hook(record(f"layer {index}"))  # type: ignore[arg-type]
    model.patch_proj.register_forward_hook(record("embedding"))  # type: ignore[arg-type]
    step = step_tensors(training_batch(SeriesGenerator(0), 0, 16, 16), config)
    quantiles = quantiles_of(model, step, bfloat16=False)
    torch.manual_seed(1)
    # A gradient of unit scale at the output, as u-μP assumes; the loss's mean would only make all of it smaller.
    quantiles.backward(torch.randn_like(quantiles))
    return model, deviations


@pytest.mark.slow
@pytest.mark.parametrize("width", [64, 128, 192])
def test_activations_and_gradients_are_near_unit_scale_at_initialisation(width: int) -> None:
    model, deviations = unit_scale_model(width)
    assert all(0.5 < deviation < 2 for deviation in deviations.values()), deviations
    gradients = {
        name: float(value.grad.std()) for name, value in model.named_parameters()
        if value.grad is not None and value.ndim == 2
    }  # fmt: skip
    outside = {name: found for name, found in gradients.items() if not 0.05 < found < 5}
    assert not outside, outside


@pytest.mark.slow
def test_scales_at_initialisation_do_not_depend_on_width() -> None:
    found = []
    for width in (64, 192):
        model, deviations = unit_scale_model(width)
        scales = [float(value.grad.std()) for value in model.parameters() if value.grad is not None and value.ndim == 2]
        found.append(np.array([*deviations.values(), *scales]))
    ratios = found[1] / found[0]
    assert (ratios > 0.4).all(), ratios
    assert (ratios < 2.5).all(), ratios


@pytest.mark.parametrize("patches", [32, 64])
def test_a_position_sees_nothing_of_later_patches_or_of_other_parties(patches: int) -> None:
    torch.manual_seed(0)
    model = Toto2Model(TINY.config())
    batch = training_batch(SeriesGenerator(0), 0, 16, patches)
    batch.partition[:] = np.tile([0, 0, 1, 1], 4)
    step = step_tensors(batch, model.config)
    with torch.no_grad():
        before = quantiles_of(model, step, bfloat16=False)
        step.inputs[:, 20:] = torch.randn_like(step.inputs[:, 20:])
        step.inputs[::4] = torch.randn_like(step.inputs[::4])
        after = quantiles_of(model, step, bfloat16=False)
    other_party = torch.arange(16) % 4 >= 2
    assert torch.equal(before[other_party, :20], after[other_party, :20])
    assert not torch.equal(before[other_party, 20:], after[other_party, 20:])
    same_party = torch.arange(16) % 4 == 1
    assert not torch.equal(before[same_party, :20], after[same_party, :20])


def test_training_and_forecasting_answer_alike() -> None:
    """The loss's masks are those of decoding: the last position answers what `forecast` answers."""
    torch.manual_seed(0)
    model = Toto2Model(TINY.config())
    values = np.cumsum(np.random.default_rng(0).normal(size=(4, 9 * 32)), axis=1).astype(np.float32)
    batch = masked_batch(values, np.ones_like(values, bool), np.zeros((4, 8), bool), np.zeros(4, np.int64))
    with torch.no_grad():
        quantiles = quantiles_of(model, step_tensors(batch, model.config), bfloat16=False)[:, -1]
    context = torch.from_numpy(values[:, :256])[None]
    inputs = {
        "target": context,
        "target_mask": torch.ones_like(context, dtype=torch.bool),
        "series_ids": torch.zeros(1, 4, dtype=torch.long),
    }
    forecast = model.forecast(inputs, 32)[:, 0]  # (9, 4, 32)
    seen = values[:, :256].astype(np.float64)
    loc, scale = (torch.from_numpy(part)[:, None, None] for part in (seen.mean(1), seen.std(1, ddof=1)))
    expected = (torch.sinh(quantiles.double()) * scale + loc).sort(dim=-1).values.permute(2, 0, 1)
    torch.testing.assert_close(forecast.double(), expected, rtol=1e-4, atol=1e-4)


def test_masked_values_do_not_reach_the_loss() -> None:
    torch.manual_seed(0)
    model = Toto2Model(TINY.config())
    batch = training_batch(SeriesGenerator(0), 0, 8, 32)
    step = step_tensors(batch, model.config)
    loss = batch_loss(model, step, bfloat16=False)
    assert torch.isfinite(loss)
    # The last position's target is seen by no position: the answers are the same whatever it is.
    with torch.no_grad():
        before = quantiles_of(model, step, bfloat16=False)
        step.targets[:, -1] = 5.0
        assert torch.equal(before, quantiles_of(model, step, bfloat16=False))


def test_a_position_answers_from_the_patches_up_to_it_alone() -> None:
    model = Toto2Model(TINY.config())
    step = step_tensors(training_batch(SeriesGenerator(0), 0, 8, 16), model.config)
    later = step.inputs.clone()
    later[:, 9:] = torch.randn_like(later[:, 9:])
    with torch.no_grad():
        before = quantiles_of(model, step, bfloat16=False)
        after = quantiles_of(model, dataclasses.replace(step, inputs=later), bfloat16=False)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.equal(before[:, 9:], after[:, 9:])


def test_variates_of_other_parties_do_not_see_each_other() -> None:
    model = Toto2Model(TINY.config())
    step = step_tensors(training_batch(SeriesGenerator(0), 0, 8, 4), model.config)
    changed = step.inputs.clone()
    changed[4:] = torch.randn_like(changed[4:])
    with torch.no_grad():
        before = quantiles_of(model, step, bfloat16=False)
        after = quantiles_of(model, dataclasses.replace(step, inputs=changed), bfloat16=False)
    assert torch.equal(before[:4], after[:4])
    assert not torch.equal(before[4:], after[4:])
