"""An environment defined in advance: contention traces, noise, and changes at iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenstep.core import Floats, Ints, require
from evenstep.errors import InvalidSetting
from evenstep.simulator.clusters.conditions import Conditions
from evenstep.simulator.clusters.noise import Noise
from evenstep.simulator.clusters.traces import Traces


@dataclass(frozen=True, eq=False)
class Change:
    """A change of communication time or speed of some workers at an iteration."""

    iteration: int
    workers: Ints
    """Positions of the workers that change."""
    communication: float | None = None
    """New t^m, in seconds; None keeps it."""
    slowdown: float | None = None
    """New factor on the computation time; None keeps it."""

    def __post_init__(self) -> None:
        if self.iteration < 0:
            raise InvalidSetting(f"iteration must be >= 0, got {self.iteration}")
        if self.communication is None and self.slowdown is None:
            raise InvalidSetting("a change must give communication, slowdown or both, got neither")
        if self.communication is not None and not 0 <= self.communication < np.inf:
            raise InvalidSetting(f"communication must be finite and >= 0, got {self.communication}")
        if self.slowdown is not None and not 0 < self.slowdown < np.inf:
            raise InvalidSetting(f"slowdown must be finite and > 0, got {self.slowdown}")


@dataclass(frozen=True, eq=False)
class Scheduled:
    """Communication times, noise, contention traces and scheduled changes."""

    communication: Floats
    """t^m of each worker until a change, in seconds."""
    noise: Noise
    changes: Sequence[Change] = ()
    """The later of two changes to a worker wins; at the same iteration, the second."""
    traces: Traces | None = None
    """None: no other jobs use the machines."""

    def __post_init__(self) -> None:
        ok = (self.communication >= 0) & np.isfinite(self.communication)
        require(ok, "communication must be finite and >= 0", self.communication)
        in_order = sorted(self.changes, key=lambda change: change.iteration)
        object.__setattr__(self, "changes", in_order)

    @property
    def follows_clock(self) -> bool:
        return self.traces is not None and bool(self.traces.in_seconds.any())

    def conditions(self, iteration: int, now: float) -> Conditions:
        communication = self.communication.copy()
        slowdown, cpu, memory = np.ones((3, len(communication)))
        for change in self.changes:
            if change.iteration > iteration:
                break
            if change.communication is not None:
                communication[change.workers] = change.communication
            if change.slowdown is not None:
                slowdown[change.workers] = change.slowdown
        if self.traces is not None:
            row = self.traces.rows(iteration, now)
            cpu, memory = self.traces.cpu[row], self.traces.memory[row]
            slowdown *= self.traces.slowdown[row]
        return Conditions(slowdown, communication, self.noise.factors(iteration), cpu, memory)
