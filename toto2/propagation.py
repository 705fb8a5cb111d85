"""What later blocks inherit of the uncertainty of earlier ones.

A block takes the medians decoded before it as observed. Given them its band is right, but they were uncertain
themselves, and a band that forgets that is far too narrow. By the law of total variance W² = w² + e², where w is the
spread of a block's first patch given the medians, W that of the same patch as the pass before saw it, without them,
and e what they hide. Each block adds its e to those of the blocks before, and to all of its own spreads, as errors
that are independent and last: (spread² + Σ e²)^1/2. So a random walk's band grows on; where W = w, as for noise,
nothing changes. Medians stay as they are.

e is taken as W − w²/W, since the root of W² − w² would magnify rounding where w ≈ W. It is less than the root by a
factor of (1 − w²/W²)^1/2: little where a block was long. A random walk decoded patch by patch gets 0.81 of its band.
"""

from __future__ import annotations

import numpy as np

from toto2.network import MEDIAN, QUANTILE_LEVELS
from toto2.rows import Integers
from toto2.scaler import Floats

SIDE = np.sign(np.array(QUANTILE_LEVELS) - 0.5)


class Propagation:
    """The state of one call over R rows; spreads are distances from the median, one a quantile level, (R, 9).

    block: int64 (R,), patches that a row decodes in one pass; rows that decode longest come first.
    """

    def __init__(self, block: Integers) -> None:
        self.block = block
        self.ahead = np.zeros((len(block), len(QUANTILE_LEVELS)))
        self.inherited = np.zeros_like(self.ahead)

    def widen(self, quantiles: Floats, further: int, first: bool) -> Floats:
        """A pass's sorted quantiles (n, patches, p, 9) with what they inherit; the first pass inherits nothing.

        The first `further` rows go on, and have a patch more than their block: the next one's first.
        """
        ahead = _spread(quantiles[np.arange(further), self.block[:further]])
        if not first:
            self._inherit(_spread(quantiles[:, 0]))
            median = quantiles[..., MEDIAN : MEDIAN + 1]
            inherited = self.inherited[: len(quantiles), None, None]
            quantiles = median + SIDE * np.hypot(quantiles - median, inherited)
        self.ahead[:further] = ahead
        return quantiles

    def _inherit(self, given: Floats) -> None:
        """Add what the last block's medians hide."""
        ahead, inherited = self.ahead[: len(given)], self.inherited[: len(given)]
        known = np.divide(given, ahead, out=np.ones_like(ahead), where=given < ahead)
        both = np.hypot(inherited, ahead * (1 - known**2))
        both[:, MEDIAN:] = np.maximum.accumulate(both[:, MEDIAN:], axis=1)  # outer quantiles stay outside
        both[:, MEDIAN::-1] = np.maximum.accumulate(both[:, MEDIAN::-1], axis=1)
        inherited[:] = both


def _spread(patch: Floats) -> Floats:
    """Root mean square distance from the median over a patch (n, p, 9), (n, 9)."""
    distance = patch - patch[..., MEDIAN : MEDIAN + 1]
    spread: Floats = np.sqrt(np.square(distance).mean(axis=1))
    return spread
