"""Faults of a run: a log, and a limit of restarts."""

from __future__ import annotations

from collections import Counter

from evenstep.errors import EngineFailed
from evenstep.simulator.engine.iteration import Fault
from evenstep.simulator.ray_engine.clock import Clock


class Faults:
    """Records faults with their time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.noted: list[Fault] = []

    def note(self, who: str, iteration: int, what: str) -> None:
        self.noted.append(Fault(self._clock.now, who, iteration, what))


class Restarts:
    """Limits the restarts of each actor.

    >>> restarts = Restarts(most=1)
    >>> restarts.add("worker 2", "was killed")
    >>> restarts.add("worker 2", "was killed")
    Traceback (most recent call last):
    evenstep.errors.EngineFailed: worker 2 must not need more restarts than 1, but it was killed
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts = Counter[str]()

    def add(self, who: str, why: str) -> None:
        """Count a restart; raise EngineFailed if it is one too many."""
        if self._counts[who] == self._most:
            raise EngineFailed(f"{who} must not need more restarts than {self._most}, but it {why}")
        self._counts[who] += 1
