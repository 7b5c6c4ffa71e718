"""Conditions: what, besides the batch sizes, decides the times of one iteration."""

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
    """What nobody could have known: factor on the batch processing time."""
    cpu: Floats
    """c as measured at the start of the iteration."""
    memory: Floats
    """m as measured at the start of the iteration."""


class Environment(Protocol):
    """Everything around the workers that changes while they train."""

    @property
    def follows_clock(self) -> bool:
        """Whether conditions depend on the time; otherwise on nothing but the iteration."""
        ...

    def conditions(self, iteration: int, now: float) -> Conditions:
        """Return the conditions of an iteration that starts `now` seconds into the run.

        The same question has always the same answer, so that every policy and scheme can be
        run under the same noise.
        """
        ...
