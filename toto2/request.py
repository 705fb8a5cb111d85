"""What is asked of an engine and what it answers, in numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]

PATCH = 32  # steps in a patch of every published size
MAX_CONTEXT = 32_768


class UnusableRequest(ValueError):
    """A request that cannot be forecast; `variate` says which of its targets is why, where one is."""

    def __init__(self, message: str, variate: int | None = None) -> None:
        super().__init__(message)
        self.variate = variate


@dataclass(frozen=True)
class ForecastRequest:
    """Series to forecast together.

    target: float64 (variates, context), oldest first, NaN where missing.
    past_covariates: (c, context), series that help and are not answered.
    known_covariates: (k, context + prediction_length), series whose future is known.
    decode_block_size: steps decoded in one pass, a multiple of 32; None is one pass.
    """

    target: Series
    prediction_length: int
    decode_block_size: int | None = 768
    past_covariates: Series | None = None
    known_covariates: Series | None = None

    @property
    def rows(self) -> int:
        """Series that the network reads."""
        parts = (self.target, self.past_covariates, self.known_covariates)
        return sum(len(part) for part in parts if part is not None)

    def used_context(self, max_context: int = MAX_CONTEXT) -> int:
        """Steps that a forecast uses: from the first one observed in any target on, at most `max_context`."""
        observed = np.isfinite(self.target).any(axis=0)
        return min(self.target.shape[1] - int(observed.argmax()), max_context)

    def patches(self, max_context: int = MAX_CONTEXT) -> tuple[int, int]:
        """(context, horizon) in patches: each row's work."""
        return -(-self.used_context(max_context) // PATCH), -(-self.prediction_length // PATCH)

    def tokens(self, max_context: int = MAX_CONTEXT) -> int:
        """Rows × patches of context and horizon."""
        return self.rows * sum(self.patches(max_context))


@dataclass(frozen=True)
class Forecast:
    """quantiles: float64 (9, variates, prediction_length), finite, rising along the first axis.

    context_length: steps of the target that were used; truncated: older ones were left out.
    """

    quantiles: Series
    context_length: int
    truncated: bool
