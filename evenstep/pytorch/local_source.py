"""A worker's own samples, and a description of the samples of all workers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evenstep.core import UNLIMITED, Ints, as_ints
from evenstep.errors import InvalidSetting
from evenstep.partitions.store import Partition
from evenstep.pytorch.fetching import count_samples
from evenstep.training.collective import Collective, gather_values

Source = Any
"""A partition, its folder, or a map-style data set of this worker."""


class Snapshot(NamedTuple):
    """The samples of a worker at one moment."""

    dataset: Any
    size: int
    digest: int
    cap: int
    """The number of samples that fit on its disk."""


@dataclass(frozen=True, eq=False)
class AllSamples:
    """The samples of all workers: their numbers, digests and caps."""

    sizes: Ints
    digests: Ints
    caps: Ints
    problem: str
    """The error of the first worker that cannot read its samples; empty if all can."""

    @property
    def samples(self) -> tuple[int, int]:
        """The number and the digest of all samples, which a migration does not change."""
        return int(self.sizes.sum()), int(self.digests.sum())


class LocalSource:
    """Where a worker's own samples are read from."""

    def __init__(self, source: Source) -> None:
        if isinstance(source, Partition):
            source = source.folder
        self.folder = Path(source).absolute() if isinstance(source, (str, Path)) else None
        """The folder of a partition on disk, whose samples may change; else None."""
        self._dataset = source

    def read(self) -> Snapshot:
        """Return the current samples."""
        if self.folder is None:
            return Snapshot(self._dataset, count_samples(self._dataset), 0, UNLIMITED)
        partition = Partition.open(self.folder)
        room = partition.room // partition.index.layout.row.itemsize
        size = len(partition)
        cap = min(size + room, UNLIMITED)
        return Snapshot(partition, size, digest_of(partition.samples), cap)


def read_all(source: LocalSource, collective: Collective) -> tuple[Snapshot | None, AllSamples]:
    """Read this worker's samples again, and exchange descriptions; all workers must call it.

    Errors are returned, not raised, so that all workers know of them.
    """
    snapshot, problem = None, ""
    try:
        snapshot = source.read()
        if snapshot.size == 0:
            raise InvalidSetting("a partition must have samples, got none")
    except (OSError, ValueError) as error:
        problem = f"worker {collective.worker}: {error}"
    mine = (0, 0, 0, problem) if snapshot is None else (*snapshot[1:], problem)
    sizes, digests, caps, problems = zip(*gather_values(collective, mine), strict=True)
    first = next((problem for problem in problems if problem), "")
    return snapshot, AllSamples(as_ints(sizes), as_ints(digests), as_ints(caps), first)


def digest_of(samples: Ints) -> int:
    """Return a digest of sample numbers in any order; digests of parts add up, modulo 2^64.

    >>> digest_of(np.array([3, 5])) == digest_of(np.array([5, 3])) != digest_of(np.array([4, 4]))
    True
    >>> parts = np.array([digest_of(np.arange(7)), digest_of(np.arange(7, 12))])
    >>> int(parts.sum()) == digest_of(np.arange(12))
    True
    """
    # The mixing function of SplitMix64.
    mixed = samples.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((mixed ^ (mixed >> np.uint64(31))).sum().astype(np.int64))
