"""Traces: the recorded CPU and memory that other jobs left on each machine, as levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evenstep.core import Bools, Floats, Ints, as_floats
from evenstep.errors import InvalidSetting
from evenstep.simulator.clusters.conditions import NO_SWAP, Swap
from evenstep.simulator.clusters.tables import require_rows

UNITS = ("iteration", "second")


@dataclass(frozen=True, eq=False)
class Trace:
    """Available CPU and free memory of one machine over time.

    The computation time grows as 1 / cpu, and with a lack of memory as `swap` defines.
    """

    at: Floats
    """When each level begins, in units; the first one is 0."""
    cpu: Floats
    """c of each level, a fraction above 0."""
    memory: Floats
    """m of each level, a fraction."""
    unit: str = "iteration"
    """`iteration` or `second`."""
    repeat: float | None = None
    """Units after which the trace repeats; None: its last level stays."""
    swap: Swap = NO_SWAP

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise InvalidSetting(f"unit must be one of {', '.join(UNITS)}, got {self.unit!r}")
        if not self.at.shape == self.cpu.shape == self.memory.shape == (self.at.size,):
            raise InvalidSetting(
                "a trace must give one cpu and one memory per level, "
                f"got shapes {self.at.shape}, {self.cpu.shape} and {self.memory.shape}"
            )
        self._check_rows()
        if self.repeat is not None and not self.at[-1] < self.repeat < np.inf:
            raise InvalidSetting(
                f"repeat must be after the last level begins ({self.at[-1]:g}), got {self.repeat}"
            )

    def _check_rows(self) -> None:
        at, cpu, memory = self.at, self.cpu, self.memory
        if at.size == 0:
            raise InvalidSetting("a trace must have at least one level, got none")
        later = np.arange(at.size) > 0
        require_rows(np.isfinite(at), f"{self.unit} must be finite", at)
        require_rows(later | (at == 0), f"{self.unit} must be 0 in the first row", at)
        require_rows(np.diff(at, prepend=-1) > 0, f"{self.unit} must rise from row to row", at)
        require_rows((cpu > 0) & (cpu <= 1), "cpu must be a fraction above 0, up to 1", cpu)
        require_rows((memory >= 0) & (memory <= 1), "memory must be a fraction 0..1", memory)


UNDISTURBED = Trace(at=np.zeros(1), cpu=np.ones(1), memory=np.ones(1))


@dataclass(frozen=True, eq=False)
class Traces:
    """The traces of all workers, concatenated: one row per level."""

    at: Floats
    cpu: Floats
    memory: Floats
    slowdown: Floats
    """Factor on the computation time at each level."""
    first: Ints
    """The row of each worker's first level."""
    last: Ints
    """The row of each worker's last level."""
    in_seconds: Bools
    """Whether the trace of each worker runs over seconds; otherwise over iterations."""
    repeat: Floats
    """Units after which each worker's trace repeats; infinite where it does not."""

    @classmethod
    def of(cls, workers: Sequence[Trace]) -> Traces:
        """Collect one trace per worker in arrays; a trace that workers share is stored once.

        >>> busy = Trace(np.array([0, 10]), np.array([1.0, 0.5]), np.array([1.0, 0.4]), repeat=20)
        >>> traces = Traces.of([busy, UNDISTURBED])
        >>> [traces.cpu[traces.rows(iteration, now=0.0)].tolist() for iteration in (9, 10, 20)]
        [[1.0, 1.0], [0.5, 1.0], [1.0, 1.0]]
        """
        stored = {id(trace): trace for trace in workers}
        lengths = [len(trace.at) for trace in stored.values()]
        ends = dict(zip(stored, np.cumsum(lengths), strict=True))
        last = np.array([ends[id(trace)] - 1 for trace in workers])
        return cls(
            at=np.concatenate([trace.at for trace in stored.values()]),
            cpu=np.concatenate([trace.cpu for trace in stored.values()]),
            memory=np.concatenate([trace.memory for trace in stored.values()]),
            slowdown=np.concatenate([t.swap.slowdown(t.memory) / t.cpu for t in stored.values()]),
            first=last - [len(trace.at) - 1 for trace in workers],
            last=last,
            in_seconds=np.array([trace.unit == "second" for trace in workers]),
            repeat=as_floats([trace.repeat or np.inf for trace in workers]),
        )

    def rows(self, iteration: int, now: float) -> Ints:
        """Return the row of each worker's level when an iteration starts, by bisection."""
        when = np.where(self.in_seconds, now, iteration) % self.repeat
        row = self.first
        for power in reversed(range(self._longest.bit_length())):
            ahead = np.minimum(row + 2**power, self.last)
            row = np.where(self.at[ahead] <= when, ahead, row)
        return row

    @cached_property
    def _longest(self) -> int:
        """Number of rows after the first in the longest trace."""
        return int(np.max(self.last - self.first))
