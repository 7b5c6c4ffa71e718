"""Parts: the rows of training samples that a worker on Ray holds, and their migration.

A migration has two steps, which the coordinator runs at one iteration boundary, while no worker
computes: givers send copies that receivers stage, and once all have them, all workers change over
to their new samples. The copies go from worker to worker through Ray's object store and stay there:
a restarted worker gets its samples from it. So nothing has changed before the second step, and
nothing can fail after it; hand-overs with records on disk, as between machines that keep their own
partitions (`evenstep.partitions`), are not needed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from evenstep.core import Ints
from evenstep.errors import InvalidSetting
from evenstep.simulator.workloads.workload import Workload


@runtime_checkable
class Divisible(Workload, Protocol):
    """A workload whose training samples can be divided between workers."""

    def rows(self, samples: Ints) -> tuple[npt.NDArray[Any], ...]:
        """Return training samples as arrays with one row per sample."""
        ...

    def with_rows(self, rows: Sequence[npt.NDArray[Any]]) -> Workload:
        """Return the same workload with only these training samples."""
        ...


@dataclass(frozen=True, eq=False)
class Part:
    """Some training samples with their rows.

    >>> part = Part(np.array([2, 5, 7]), (np.array([20, 50, 70]),))
    >>> part.positions(np.array([7, 2]))
    array([2, 0])
    >>> Part.joined([part, Part(np.array([3, 7]), (np.array([30, 70]),))]).rows
    (array([20, 30, 50, 70]),)
    """

    samples: Ints
    """Their numbers in the whole training data, rising."""
    rows: tuple[npt.NDArray[Any], ...]

    @classmethod
    def joined(cls, parts: Sequence[Part]) -> Part:
        """Return the union of the parts."""
        every = np.concatenate([part.samples for part in parts])
        samples, first = np.unique(every, return_index=True)
        columns = zip(*(part.rows for part in parts), strict=True)
        return cls(samples, tuple(np.concatenate(column)[first] for column in columns))

    def select(self, samples: Ints) -> Part:
        """Return the part with only these samples."""
        samples = np.sort(samples)
        at = self.positions(samples)
        return Part(samples, tuple(column[at] for column in self.rows))

    def positions(self, samples: Ints) -> Ints:
        """Return the positions of samples; raise InvalidSetting for one that is not in the part."""
        at = np.searchsorted(self.samples, samples)
        found = self.samples[np.minimum(at, len(self.samples) - 1)] == samples
        if not found.all():
            missing = int(samples[np.argmin(found)])
            raise InvalidSetting(f"a sample must be one of the worker's own, got {missing}")
        return at.astype(np.int64)


class HeldSamples:
    """The samples that one worker holds, in its process."""

    def __init__(self, workload: Divisible, samples: Ints, parts: Sequence[Part]) -> None:
        """`workload` has no training samples; the rows of `samples` are in `parts`."""
        self._workload = workload
        self._held = Part.joined(parts).select(samples)
        self._staged: tuple[int, list[Part]] = (0, [])
        """The number of a migration, and the parts received for it."""

    @property
    def workload(self) -> Workload:
        """The workload with the held samples, identified by their positions in the part."""
        return self._workload.with_rows(self._held.rows)

    def positions(self, samples: Ints) -> Ints:
        return self._held.positions(samples)

    def give(self, samples: Ints) -> Part:
        """Return a copy of samples for another worker; they stay here until the change-over."""
        return self._held.select(samples)

    def stage(self, migration: int, part: Part) -> None:
        """Keep a received part until its migration takes effect or another one starts."""
        number, parts = self._staged
        self._staged = (migration, [*parts, part] if number == migration else [part])

    def change_over(self, migration: int, samples: Ints) -> None:
        """Hold these samples from now on."""
        number, parts = self._staged
        received = parts if number == migration else []
        self._held = Part.joined([self._held, *received]).select(samples)
        self._staged = (0, [])
