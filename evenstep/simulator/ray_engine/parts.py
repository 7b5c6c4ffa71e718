"""Parts: the rows of training samples that a worker on Ray holds itself, and how they move.

A migration has two steps, which the coordinator asks for at one iteration boundary, while nobody
works: the givers hand out copies that the receivers stage, and once all have them, everybody
changes over to what it holds from then on. What is handed out goes from worker to worker through
Ray's object store, and stays there: a worker that is restarted gets what it holds from it. So until
the second step nothing has changed, and after it nothing can fail; hand-overs with records on
disks, as between machines that keep their own (`evenstep.partitions`), are not needed here.
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
    """A workload of which a worker can hold a part of the training samples."""

    def rows(self, samples: Ints) -> tuple[npt.NDArray[Any], ...]:
        """Return training samples as arrays with a row for each."""
        ...

    def with_rows(self, rows: Sequence[npt.NDArray[Any]]) -> Workload:
        """Return the same workload with these samples to train on, and no others."""
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
        """Return all samples that are in some of the parts."""
        every = np.concatenate([part.samples for part in parts])
        samples, first = np.unique(every, return_index=True)
        columns = zip(*(part.rows for part in parts), strict=True)
        return cls(samples, tuple(np.concatenate(column)[first] for column in columns))

    def select(self, samples: Ints) -> Part:
        """Return the part with these samples alone."""
        samples = np.sort(samples)
        at = self.positions(samples)
        return Part(samples, tuple(column[at] for column in self.rows))

    def positions(self, samples: Ints) -> Ints:
        """Return where samples are; InvalidSetting for one that is not here."""
        at = np.searchsorted(self.samples, samples)
        found = self.samples[np.minimum(at, len(self.samples) - 1)] == samples
        if not found.all():
            missing = int(samples[np.argmin(found)])
            raise InvalidSetting(f"a sample must be one of the worker's own, got {missing}")
        return at.astype(np.int64)


class OwnSamples:
    """The samples of one worker, in its own process."""

    def __init__(self, workload: Divisible, samples: Ints, parts: Sequence[Part]) -> None:
        """`workload` has no samples to train on; those that are held are in `parts`."""
        self._workload = workload
        self._held = Part.joined(parts).select(samples)
        self._staged: tuple[int, list[Part]] = (0, [])
        """The number of a migration, and what came by it."""

    @property
    def workload(self) -> Workload:
        """The workload with what is held, whose samples go by their positions."""
        return self._workload.with_rows(self._held.rows)

    def positions(self, samples: Ints) -> Ints:
        return self._held.positions(samples)

    def give(self, samples: Ints) -> Part:
        """Return a copy of samples, to be staged elsewhere; they stay here for the time being."""
        return self._held.select(samples)

    def stage(self, migration: int, part: Part) -> None:
        """Keep what came, until a migration takes effect or there is another one."""
        number, parts = self._staged
        self._staged = (migration, [*parts, part] if number == migration else [part])

    def change_over(self, migration: int, samples: Ints) -> None:
        """Hold these samples from now on."""
        number, parts = self._staged
        came = parts if number == migration else []
        self._held = Part.joined([self._held, *came]).select(samples)
        self._staged = (0, [])
