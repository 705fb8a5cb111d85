"""Fine-tuning a checkpoint on one table of series: windows, hold-out, early stopping, the verdict."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from toto2 import Toto2Model
from training.batches import PATCH, Batch, masked_batch, span_masks, training_batch
from training.generator import VARIATES, SeriesGenerator
from training.loss import batch_loss, step_tensors
from training.optimisation import Optimisers

CONTEXT = 32  # patches
WINDOWS = 16  # of all variates, in a training step
MIN_TRAINING_STEPS = 8 * PATCH
# A twentieth of the rates that a checkpoint is trained with: the weights are to move, not to start afresh.
MUON_LR, ADAM_LR = 6e-3, 7.5e-3
WARMUP = 20
CHECK_EVERY, PATIENCE = 20, 6
MIN_GAIN = 0.005  # of the base's loss; less is no reason to keep a second model

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Parts:
    """A table (variates, steps) cut in time: [0, train) to learn from, [train, stop) to stop by, the rest to judge."""

    values: Values
    train: int
    stop: int


@dataclass(frozen=True)
class Verdict:
    """Pinball losses in asinh space on the steps that neither training nor stopping saw."""

    base_loss: float
    tuned_loss: float
    steps: int

    @property
    def better(self) -> bool:
        """Whether the tuned model is worth keeping."""
        return self.tuned_loss < (1 - MIN_GAIN) * self.base_loss


def split(values: Values, horizon: int) -> Parts:
    """Keep back the last two tenths, or two horizons where that is more. Raises ValueError for a table too short."""
    steps = values.shape[1]
    held = max(horizon, steps // 10)
    if steps - 2 * held < MIN_TRAINING_STEPS:
        raise ValueError(
            f"expected at least {MIN_TRAINING_STEPS + 2 * held} steps ({MIN_TRAINING_STEPS} to learn from and twice "
            f"{held} kept back), found {steps}"
        )
    return Parts(values, steps - 2 * held, steps - held)


def tune(
    model: Toto2Model, parts: Parts, horizon: int, max_steps: int, seed: int, show: Callable[[str], None]
) -> Verdict:
    """Train `model` in place on the first part, keep the weights best on the second, judge by the third."""
    rng, generator = np.random.default_rng(seed), SeriesGenerator(seed)
    base = copy.deepcopy(model)
    optimisers = Optimisers(model, MUON_LR, ADAM_LR, weight_decay=0.0)
    best, best_step = horizon_loss(model, parts, parts.train, parts.stop, horizon), 0
    kept = copy.deepcopy(model.state_dict())
    show(f"step    0  hold-out loss {best:.4f}")
    for step in range(1, max_steps + 1):
        # Every second step is synthetic, so that what the base knows is not lost.
        batch = _window_batch(parts, rng) if step % 2 else training_batch(generator, step, 32, CONTEXT)
        batch_loss(model, step_tensors(batch, model.config), bfloat16=False).backward()
        optimisers.step(min(1.0, step / WARMUP) * (1 - (step - 1) / max_steps))
        if step % CHECK_EVERY and step != max_steps:
            continue
        found = horizon_loss(model, parts, parts.train, parts.stop, horizon)
        show(f"step {step:4}  hold-out loss {found:.4f}")
        if found < best:
            best, best_step, kept = found, step, copy.deepcopy(model.state_dict())
        elif step - best_step >= PATIENCE * CHECK_EVERY:
            break
    model.load_state_dict(kept)
    end = parts.values.shape[1]
    losses = [horizon_loss(each, parts, parts.stop, end, horizon) for each in (base, model)]
    return Verdict(losses[0], losses[1], best_step)


def horizon_loss(model: Toto2Model, parts: Parts, start: int, stop: int, horizon: int) -> float:
    """Mean pinball loss of forecasts of `horizon` steps whose actual values lie in [start, stop)."""
    patches = -(-horizon // PATCH)
    ends = range(start + horizon, stop + 1, max(PATCH, (stop - start) // 12))
    windows = [_window(parts.values[:, :end], patches * PATCH - horizon, CONTEXT + patches) for end in ends]
    rows = _blocks(windows)
    masked = np.zeros((len(rows), CONTEXT + patches - 1), dtype=bool)
    masked[:, CONTEXT:] = True
    batch = _batch(rows, masked)
    batch.weights[:, : CONTEXT - 1] = 0
    with torch.no_grad():
        return float(batch_loss(model, step_tensors(batch, model.config), bfloat16=False))


def _window(values: Values, after: int, patches: int) -> Values:
    """The last `patches` patches of values (variates, steps), less `after` steps that are missing at the end."""
    length = patches * PATCH - after
    taken = values[:, -length:]
    return np.pad(taken, ((0, 0), (length - taken.shape[1], after)), constant_values=np.nan)


def _window_batch(parts: Parts, rng: np.random.Generator) -> Batch:
    ends = rng.integers(min(MIN_TRAINING_STEPS, parts.train), parts.train + 1, WINDOWS)
    rows = _blocks([_window(parts.values[:, :end], 0, CONTEXT + 1) for end in ends])
    return _batch(rows, span_masks(rng, len(rows), CONTEXT))


def _blocks(windows: list[Values]) -> Values:
    """Windows (variates, steps) as rows, each window filled up to whole blocks with rows of nothing."""
    short = -len(windows[0]) % VARIATES
    return np.concatenate([np.pad(window, ((0, short), (0, 0)), constant_values=np.nan) for window in windows])


def _batch(rows: Values, masked: NDArray[np.bool_]) -> Batch:
    observed = np.isfinite(rows)
    # Shifted and scaled in float64 before anything becomes float32; the causal scaler does the rest.
    count = np.maximum(observed.sum(axis=1, keepdims=True), 1)
    filled = np.where(observed, rows, 0)
    mean = filled.sum(axis=1, keepdims=True) / count
    spread = np.sqrt((np.square(filled - mean) * observed).sum(axis=1, keepdims=True) / count)
    scaled = np.where(observed, (filled - mean) / np.where(spread > 0, spread, 1), 0).astype(np.float32)
    return masked_batch(scaled, observed, masked, np.zeros(len(rows), np.int64))
