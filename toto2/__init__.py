"""The Toto 2.0 time-series foundation model, compatible with the published checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toto2.configuration import Toto2ModelConfig
    from toto2.model import Toto2Model
    from toto2.network import QUANTILE_LEVELS

__all__ = ["QUANTILE_LEVELS", "Toto2Model", "Toto2ModelConfig"]


def __getattr__(name: str) -> Any:  # torch is imported only where the model is asked for
    if name == "Toto2ModelConfig":
        from toto2.configuration import Toto2ModelConfig

        return Toto2ModelConfig
    if name in __all__:
        from toto2 import model

        return getattr(model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
