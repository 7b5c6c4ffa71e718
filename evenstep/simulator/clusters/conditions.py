"""Conditions: everything except batch sizes that determines the times of one iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from evenstep.core import Floats


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
