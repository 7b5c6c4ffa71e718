"""The log of what failed in a run."""

from __future__ import annotations

from evenstep.engines.iteration import Fault
from evenstep.engines.on_ray.clock import Clock


class Faults:
    """Keeps what failed, and when."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.noted: list[Fault] = []

    def note(self, who: str, iteration: int, what: str) -> None:
        self.noted.append(Fault(self._clock.now, who, iteration, what))
