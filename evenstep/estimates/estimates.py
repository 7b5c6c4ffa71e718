"""Estimates: the figures of a run that every view shows, each with its definition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from evenstep.core import Floats

Window = Literal["settled", "all"]
"""The iterations that figures are about: the second half since the workers or the total last
changed, or all iterations since then."""

COVERED = 0.9
"""The probability that a range is meant to contain the true value."""

CLEAR = 1.05
"""From this ratio on, a difference is worth words: a straggler, or a gain."""


@dataclass(frozen=True)
class Estimate:
    """A value with a range that contains the true one with a probability of 90 %."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, draws: Floats, value: float | None = None) -> Estimate:
        """Make the estimate from draws: their median, unless the value is known better.

        >>> Estimate.of(np.arange(101.0), value=3.0)
        Estimate(value=3.0, low=3.0, high=95.0)
        """
        low, high = np.quantile(draws, ((1 - COVERED) / 2, (1 + COVERED) / 2))
        value = float(np.median(draws)) if value is None else value
        return cls(value, min(float(low), value), max(float(high), value))

    @classmethod
    def exactly(cls, value: float) -> Estimate:
        """Make the estimate of a value that is known."""
        return cls(value, value, value)

    def __str__(self) -> str:
        """Return the value and its range, three digits each.

        >>> str(Estimate(2.0044, 1.9, 2.1))
        '2 (1.9 to 2.1)'
        """
        if self.low == self.high:
            return f"{self.value:.3g}"
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g})"

    def __mul__(self, factor: float) -> Estimate:
        return Estimate(factor * self.value, factor * self.low, factor * self.high)

    def inverse(self, numerator: float = 1.0) -> Estimate:
        """Return the estimate of a number divided by this one."""
        return Estimate(numerator / self.value, numerator / self.high, numerator / self.low)


@dataclass(frozen=True)
class Straggler:
    """The worker that takes longest with the sizes of plain BSP, on average and without spikes."""

    worker: str
    slowdown: float
    """Its time over the median worker's, with the sizes of plain BSP."""

    @property
    def is_clear(self) -> bool:
        """Whether it is slow enough to be called a straggler."""
        return self.slowdown >= CLEAR


@dataclass(frozen=True)
class Estimates:
    """The figures of some iterations of a run; times are in seconds, shares from 0 to 1."""

    window: Window
    first: int
    """The first of the iterations."""
    last: int
    num_iterations: int
    """How many of them have known times."""
    iteration_time: float
    """Measured: the mean time until the last worker finished its batch."""
    waiting_share: float
    """Measured: the part of the workers' time that was spent waiting for the last one."""
    plain: Estimate
    """The mean iteration time with the sizes of plain BSP, in the same conditions: every time that
    was measured, with its noise and spikes, moved to the even size."""
    optimum: Estimate
    """The mean iteration time with the best sizes for the lasting speeds of the workers, in the
    same conditions. The run itself shows what is possible, so that it is never above its time."""
    gain: Estimate
    """The iteration time of plain BSP over that of the run."""
    straggler: Straggler | None
    """None with a single worker."""
    workers: Sequence[str]
    plain_sizes: Sequence[int]
    """The sizes of plain BSP; none where the total cannot be split."""
    plain_times: Sequence[float]
    """The mean time of each worker with the sizes of plain BSP, without spikes; NaN where
    unknown."""
    overheads: Sequence[float]
    """The share of that time that does not depend on the batch size, as far as it is known."""
    identified: Sequence[bool]
    """Whether the worker's changes of size tell its overhead."""

    @property
    def possible_gain(self) -> Estimate:
        """The iteration time of the run over that of the optimum."""
        return self.optimum.inverse(self.iteration_time)

    @property
    def is_even(self) -> bool:
        """Whether the sizes were those of plain BSP throughout."""
        return self.gain == Estimate.exactly(1.0)

    @property
    def could_save(self) -> Estimate:
        """The share of the run's iteration time that the best sizes would save."""
        possible = self.possible_gain
        return Estimate(1 - 1 / possible.value, 1 - 1 / possible.low, 1 - 1 / possible.high)

    @property
    def above_optimum(self) -> float:
        """How much longer than the optimum an iteration took: 0.03 is 3 %."""
        return self.iteration_time / self.optimum.value - 1

    @property
    def about(self) -> str:
        """The iterations in words."""
        half = ", the second half" if self.window == "settled" else ""
        return f"iterations {self.first} to {self.last}{half}"

    def as_json(self) -> dict[str, Any]:
        """Return everything in JSON's types; unknown values are None."""
        data = {**asdict(self), "about": self.about, "above_optimum": self.above_optimum}
        known: dict[str, Any] = without_nan(data)
        return known


def without_nan(value: Any) -> Any:
    """Return a value with None in place of every number that JSON does not have.

    >>> without_nan({"a": [1.5, math.nan]})
    {'a': [1.5, None]}
    """
    if isinstance(value, dict):
        return {name: without_nan(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
