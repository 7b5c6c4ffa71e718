"""Fake tasks: the load of other jobs on one machine, and what it leaves to the worker."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.core import Floats
from evenstep.errors import InvalidSetting
from evenstep.simulator.clusters.tables import require_rows
from evenstep.simulator.clusters.traces import Trace

_LEAST_CPU = 0.05
"""The least share that tasks leave: the kernel lets no process starve."""


@dataclass(frozen=True, eq=False)
class FakeTasks:
    """The tasks of one machine, one entry each."""

    start: Floats
    """Seconds."""
    end: Floats
    cpu: Floats
    """Share of the machine's CPUs that the task takes while it runs."""
    memory: Floats
    """Share of the machine's memory."""

    def __post_init__(self) -> None:
        shapes = {values.shape for values in (self.start, self.end, self.cpu, self.memory)}
        if shapes != {(self.start.size,)}:
            raise InvalidSetting(f"columns of tasks must have equal lengths, got shapes {shapes}")
        require_rows(self.start >= 0, "start must be >= 0", self.start)
        require_rows(self.end > self.start, "end must be after start", self.end)
        for name, share in (("cpu", self.cpu), ("memory", self.memory)):
            require_rows((share >= 0) & (share <= 1), f"{name} must be a fraction 0..1", share)

    def trace(self, repeat: float | None = None) -> Trace:
        """Return the CPU and memory that the tasks leave, as a trace over seconds.

        >>> both = FakeTasks(
        ...     start=np.array([0.0, 10.0]), end=np.array([20.0, 30.0]),
        ...     cpu=np.array([0.25, 0.5]), memory=np.array([0.5, 0.25]),
        ... ).trace()
        >>> both.at, both.cpu, both.memory
        (array([ 0., 10., 20., 30.]), array([0.75, 0.25, 0.5 , 1.  ]),
         array([0.5 , 0.25, 0.75, 1.  ]))
        """
        at = np.unique(np.concatenate([[0.0], self.start, self.end]))
        at = at if repeat is None else at[at < repeat]
        runs = (self.start <= at[:, None]) & (at[:, None] < self.end)
        # Rounded, so that a task that has ended leaves no rounding error behind.
        cpu, memory = (np.round(1 - runs @ taken, 12) for taken in (self.cpu, self.memory))
        return Trace(
            at, np.maximum(cpu, _LEAST_CPU), np.maximum(memory, 0.0), "second", repeat=repeat
        )
