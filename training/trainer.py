"""The training loop."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toto2 import Toto2Model
from toto2.configuration import Toto2ModelConfig
from training.batches import PATCH, Batch, training_batch
from training.generator import SeriesGenerator
from training.loss import Step, batch_loss, step_tensors
from training.optimisation import Optimisers
from training.schedule import Schedule
from training.state import Progress, append_log, load_state, save_state

# Patches a series, and the share of steps that have so many. Long ones show a weekly cycle of half hours often enough.
LENGTHS, LENGTH_SHARES = (32, 64, 128), (0.40, 0.35, 0.25)
HELD_OUT_SEED = 1_000_003
HELD_OUT_BATCHES = 8


Show = Callable[[str], None]  # takes a line for a person


@dataclass(frozen=True)
class Settings:
    """Everything that decides the weights, besides the code."""

    seed: int = 0
    d_model: int = 128
    num_heads: int = 4
    num_layers: int = 6
    d_ff: int = 344
    patches_per_batch: int = 4096
    muon_lr: float = 0.12
    adam_lr: float = 0.15
    weight_decay: float = 0.003

    def config(self) -> Toto2ModelConfig:
        """The family's flags at this width."""
        return Toto2ModelConfig(
            d_model=self.d_model,
            num_heads=self.num_heads,
            num_layers=self.num_layers,
            d_ff=self.d_ff,
            attn_bias=True,
            norm_eps=1e-4,
        )


def has_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16; where it does not, a product in it takes tens of times as long."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def batch_shape(settings: Settings, index: int) -> tuple[int, int]:
    """(rows, patches) of batch number `index`."""
    rng = np.random.Generator(np.random.SFC64([settings.seed, 3, index]))
    patches = int(rng.choice(LENGTHS, p=LENGTH_SHARES))
    return settings.patches_per_batch // patches, patches


def held_out_loss(model: Toto2Model) -> float:
    """Mean loss over batches of a stream that is never trained on, float32, the same ones each time."""
    generator, losses = SeriesGenerator(HELD_OUT_SEED), []
    settings = Settings(seed=HELD_OUT_SEED)
    with torch.no_grad():
        for index in range(HELD_OUT_BATCHES):
            step = step_tensors(training_batch(generator, index, *batch_shape(settings, index)), model.config)
            losses.append(float(batch_loss(model, step, bfloat16=False)))
    return float(np.mean(losses))


class Trainer:
    """A run: model, optimisers, the stream of batches, and where its state is kept."""

    def __init__(self, settings: Settings, state_dir: Path, compiled: bool, base: Path | None = None) -> None:
        """Goes on from the state in `state_dir` where there is one, else from the checkpoint `base`, else from nothing.

        A later stage may have other learning rates and decay; any other setting must be the same (ValueError), and a
        base of the same shape.
        """
        self.settings, self.state_dir = settings, state_dir
        torch.manual_seed(settings.seed)
        self.model = Toto2Model(settings.config())
        self.bfloat16 = compiled and has_bfloat16()
        rates = settings.muon_lr, settings.adam_lr, settings.weight_decay
        self.optimisers = Optimisers(self.model, *rates, bfloat16=self.bfloat16)
        self.progress = Progress()
        self.loss: Callable[[Toto2Model, Step, bool], Tensor] = (
            torch.compile(batch_loss, dynamic=False) if compiled else batch_loss
        )
        self._generator = SeriesGenerator(settings.seed)
        state = load_state(state_dir)
        if state is not None:
            self._resume(state)
        elif base is not None:
            self._begin_with(Toto2Model.from_pretrained(base), base)

    def _begin_with(self, found: Toto2Model, base: Path) -> None:
        if found.config != self.model.config:
            raise ValueError(f"{base} has another shape than this run: {found.config}, expected {self.model.config}")
        self.model.load_state_dict(found.state_dict())
        append_log(self.state_dir, self._entry({"base": str(base)}))

    def _resume(self, state: dict[str, Any]) -> None:
        rates = {name: getattr(self.settings, name) for name in ("muon_lr", "adam_lr", "weight_decay")}
        if state["settings"] | rates != asdict(self.settings):
            raise ValueError(
                f"{self.state_dir} holds a run with settings {state['settings']}, found {asdict(self.settings)}; "
                "name another directory"
            )
        self.model.load_state_dict(state["model"])
        self.optimisers.load_state_dict(state["optimisers"])
        self.progress = Progress(**state["progress"])

    def _batch(self, index: int) -> Batch:
        return training_batch(self._generator, index, *batch_shape(self.settings, index))

    def train(self, schedule: Schedule, max_seconds: float | None, log_every: int, show: Show) -> bool:
        """Train to the schedule's end, or until `max_seconds` of training in all; True where the end was reached.

        Logs every `log_every` points and saves the state with each entry. SIGTERM and SIGINT save and stop.
        """
        stop = _StopRequest()
        losses: list[float] = []
        norms: list[float] = []
        started, since, logged = time.monotonic() - self.progress.seconds, time.monotonic(), self.progress.points
        with ThreadPoolExecutor(1) as ahead:
            upcoming: Future[Batch] = ahead.submit(self._batch, self.progress.step)
            while not (done := self._done(schedule, max_seconds)) and not stop.asked:
                batch = upcoming.result()
                upcoming = ahead.submit(self._batch, self.progress.step + 1)
                loss = self.loss(self.model, step_tensors(batch, self.model.config), self.bfloat16)
                loss.backward()
                clock = 0.0 if max_seconds is None else self.progress.seconds / max_seconds
                factor = schedule.factor(self.progress.points, clock)
                norms.append(self.optimisers.step(factor))
                losses.append(float(loss.detach()))
                self.progress.step += 1
                self.progress.points += self.settings.patches_per_batch * PATCH
                self.progress.seconds = time.monotonic() - started
                if self.progress.points - logged >= log_every or self._done(schedule, max_seconds):
                    rate = (self.progress.points - logged) / (time.monotonic() - since)
                    self._log(losses, norms, rate, factor, schedule.points, show)
                    losses, norms, since, logged = [], [], time.monotonic(), self.progress.points
            upcoming.cancel()
        save_state(self.state_dir, self.progress, asdict(self.settings), self.model, self.optimisers)
        return done

    def _done(self, schedule: Schedule, max_seconds: float | None) -> bool:
        late = max_seconds is not None and self.progress.seconds >= max_seconds
        return late or self.progress.points >= schedule.points

    def _log(
        self, losses: list[float], norms: list[float], rate: float, factor: float, points: int, show: Show
    ) -> None:
        entry = self._entry(
            {
                "points_per_second": round(rate),
                "train_loss": round(float(np.mean(losses)), 5),
                "gradient_norm": round(float(np.median(norms)), 4),
                "factor": round(factor, 4),
            }
        )
        append_log(self.state_dir, entry)
        save_state(self.state_dir, self.progress, asdict(self.settings), self.model, self.optimisers)
        share = self.progress.points / points
        show(
            f"{share:6.1%}  {entry['seconds']:7.0f} s  {rate / 1e3:4.0f}k points/s  train {entry['train_loss']:.4f}  "
            f"held out {entry['held_out_loss']:.4f}  rate x{factor:.2f}"
        )

    def _entry(self, more: dict[str, Any]) -> dict[str, Any]:
        progress = {
            "step": self.progress.step,
            "points": self.progress.points,
            "seconds": round(self.progress.seconds, 1),
            "held_out_loss": round(held_out_loss(self.model), 5),
        }
        return progress | more


class _StopRequest:
    """Set by SIGTERM and SIGINT, so that a run ends between two steps."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
