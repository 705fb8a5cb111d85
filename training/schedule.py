"""Warm-up, stable, decay: the learning rate as a function of what has been done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Shares of a run, in points of series seen. Raises ValueError where they are out of order."""

    points: int
    warmup: int
    decay_from: int

    def __post_init__(self) -> None:
        if not 0 <= self.warmup <= self.decay_from < self.points:
            raise ValueError(
                f"expected 0 <= warmup <= decay_from < points, found {self.warmup}, {self.decay_from}, {self.points}"
            )

    def factor(self, seen: float, clock: float = 0.0) -> float:
        """Multiple of the peak learning rate, 0 at the end of the run.

        seen: points so far. clock: share of the time allowed that has passed, 0 to 1; a run that is slower than
        planned decays by the clock, as far as that is ahead.
        """
        if seen < self.warmup:
            return seen / self.warmup
        place = max(seen, clock * self.points)
        return min(1.0, max(0.0, (self.points - place) / (self.points - self.decay_from)))
