"""The engine: forecasts of numpy series on one device, and the command line over it (`files.command`).

Nothing here imports torch before a checkpoint is loaded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toto2.request import MAX_CONTEXT, PATCH, Forecast, ForecastRequest, UnusableRequest

if TYPE_CHECKING:
    from toto2.device import Device
    from toto2.model import Toto2Model

__all__ = [
    "MAX_CONTEXT",
    "PATCH",
    "QUANTILE_LEVELS",
    "Engine",
    "EngineInfo",
    "Forecast",
    "ForecastRequest",
    "UnusableRequest",
]

QUANTILE_LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
ROOT = Path(__file__).resolve().parent
PUBLISHED_MODEL, EMBEDDED_MODEL = ROOT / "models" / "Toto-2.0-313m", ROOT / "models" / "toto2-nano"
FALLBACK_MIN_OBSERVATIONS, CAP = 8, 1e4  # statistics from the first so many values; answers within so many scales


@dataclass(frozen=True)
class EngineInfo:
    """What is loaded. sha256 is that of the weights; max_context in steps."""

    name: str
    path: str
    sha256: str
    parameters: int
    device: str
    dtype: str
    load_seconds: float
    max_context: int
    threads: int


def default_model_path() -> Path:
    """The published 313m checkpoint where it has been downloaded, else the embedded one."""
    return PUBLISHED_MODEL if (PUBLISHED_MODEL / "config.json").is_file() else EMBEDDED_MODEL


class Engine:
    """One checkpoint on one device. Only the thread that loaded it may call `forecast`.

    propagate_uncertainty: later blocks inherit the spread of earlier ones (`toto2.propagation`); False is as published.
    """

    def __init__(self, model: Toto2Model, device: Device, info: EngineInfo, propagate_uncertainty: bool = True) -> None:
        self.model, self.device, self.info = model, device, info
        self.propagate_uncertainty = propagate_uncertainty

    @classmethod
    def load(
        cls,
        model_path: str | Path | None = None,
        device: str = "auto",
        dtype: str = "float32",
        max_context: int = MAX_CONTEXT,
        threads: int | None = None,
        attention: str = "auto",
        propagate_uncertainty: bool = True,
    ) -> Engine:
        """Load and fold a checkpoint.

        Raises `toto2.checkpoint.CheckpointError` or `toto2.device.DeviceAbsent`, each in one line.
        """
        import torch

        from toto2.checkpoint import weights_sha256
        from toto2.device import find_device
        from toto2.folding import fold
        from toto2.model import Toto2Model

        start = time.perf_counter()
        path = Path(model_path) if model_path is not None else default_model_path()
        found = find_device(device)
        found.activate()
        threads = threads or found.threads
        torch.set_num_threads(threads)
        model = Toto2Model.from_pretrained(path)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        with found.errors():
            fold(model, found.placement(dtype, attention))
            found.synchronise()
        info = EngineInfo(
            name=path.resolve().name,
            path=str(path),
            sha256=weights_sha256(path),
            parameters=parameters,
            device=found.name,
            dtype=dtype,
            load_seconds=time.perf_counter() - start,
            max_context=max_context,
            threads=threads,
        )
        return cls(model, found, info, propagate_uncertainty)

    def forecast(self, requests: Sequence[ForecastRequest]) -> list[Forecast]:
        """One batch of any shapes; each answer is what the request alone would get, but for rounding.

        Raises `UnusableRequest`, `toto2.device.OutOfDeviceMemory` (a smaller batch may fit) or
        `toto2.device.DeviceFailure` (nothing can be relied on any more).
        """
        import torch

        from toto2.batch import Batch
        from toto2.decoding import DecodingOptions, decode

        batch = Batch.of(requests, self.info.max_context)
        options = DecodingOptions(FALLBACK_MIN_OBSERVATIONS, CAP, propagate=self.propagate_uncertainty)
        with torch.inference_mode(), self.device.errors():
            quantiles = decode(self.model, batch.rows, options, self.model.placement)
        self.device.check()
        return batch.forecasts(quantiles)

    def memory(self) -> tuple[int, int] | None:
        """(used, total) bytes of the device; None on the CPU."""
        return self.device.memory()


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    from files.command import app

    app(arguments)


if __name__ == "__main__":
    main()
