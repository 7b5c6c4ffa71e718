"""Conditions: everything except batch sizes that determines the times of one iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from evenstep.core import Floats
from evenstep.errors import InvalidSetting


@dataclass(frozen=True, eq=False)
class Conditions:
    """The conditions of one iteration, one entry per worker.

    The batch processing time is ``(communication + slowdown * curve(x)) * noise``.
    """

    slowdown: Floats
    """Factor on the computation time: 1 on an undisturbed worker."""
    communication: Floats
    """t^m, in seconds."""
    noise: Floats
    """Unpredictable factor on the batch processing time."""
    cpu: Floats
    """c as measured at the start of the iteration."""
    memory: Floats
    """m as measured at the start of the iteration."""


class Environment(Protocol):
    """Everything outside the workers that changes during training."""

    @property
    def follows_clock(self) -> bool:
        """Whether conditions depend on the time; otherwise they depend on the iteration only."""
        ...

    def conditions(self, iteration: int, now: float) -> Conditions:
        """Return the conditions of an iteration that starts `now` seconds into the run.

        Equal arguments give equal results, so that all policies and schemes run under the same
        noise.
        """
        ...


@dataclass(frozen=True)
class Swap:
    """The computation time grows in proportion to the missing share of the needed memory.

    >>> Swap(needed=0.3, strength=2.0).slowdown(np.array([0.5, 0.3, 0.15, 0.0]))
    array([1., 1., 2., 3.])
    """

    needed: float = 0.3
    """Share of the memory below which the worker swaps."""
    strength: float = 0.0
    """Additional computation times of a worker without free memory; 0: memory has no effect."""

    def __post_init__(self) -> None:
        if not 0 < self.needed <= 1:
            raise InvalidSetting(f"needed must be a fraction above 0, up to 1, got {self.needed}")
        if not 0 <= self.strength < np.inf:
            raise InvalidSetting(f"strength must be finite and >= 0, got {self.strength}")

    def slowdown(self, memory: Floats) -> Floats:
        """Return the factors on the computation time for these shares of free memory."""
        missing = np.maximum(0.0, self.needed - memory) / self.needed
        return 1 + self.strength * missing


NO_SWAP = Swap()
