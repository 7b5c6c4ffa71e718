"""A worker's own samples, and what all workers know of each other's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evenstep.core import UNLIMITED, Ints, as_ints
from evenstep.errors import InvalidSetting
from evenstep.partitions.store import Partition
from evenstep.pytorch.order import count_samples
from evenstep.training.collective import Collective, gather_values

Source = Any
"""A partition, the folder of one, or a map-style data set that is this worker's own."""


class Snapshot(NamedTuple):
    """A worker's samples as of one moment, to read from."""

    dataset: Any
    size: int
    digest: int
    cap: int
    """Samples that fit on its disk."""


@dataclass(frozen=True, eq=False)
class Everybody:
    """What all workers say of their samples."""

    sizes: Ints
    digests: Ints
    caps: Ints
    problem: str
    """What the first worker that cannot read its samples says; nothing where all can."""

    @property
    def samples(self) -> tuple[int, int]:
        """What stays as it is, whoever has which sample: their number, and their digest."""
        return int(self.sizes.sum()), int(self.digests.sum())


class LocalSource:
    """Where a worker's own samples are read from."""

    def __init__(self, source: Source) -> None:
        if isinstance(source, Partition):
            source = source.folder
        self.folder = Path(source).absolute() if isinstance(source, (str, Path)) else None
        """Of the partition on disk, if it is one: what is in it may change."""
        self._dataset = source

    def read(self) -> Snapshot:
        """Return what is there now."""
        if self.folder is None:
            return Snapshot(self._dataset, count_samples(self._dataset), 0, UNLIMITED)
        partition = Partition.open(self.folder)
        room = partition.room // partition.index.layout.row.itemsize
        size = len(partition)
        cap = min(size + room, UNLIMITED)
        return Snapshot(partition, size, digest_of(partition.samples), cap)


def read_and_tell(source: LocalSource, collective: Collective) -> tuple[Snapshot | None, Everybody]:
    """Read a worker's samples anew, and tell each other of them; all workers must call it.

    Nothing is raised that the others would not know of.
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
    return snapshot, Everybody(as_ints(sizes), as_ints(digests), as_ints(caps), first)


def digest_of(samples: Ints) -> int:
    """Return a digest of sample numbers, in whatever order; digests of parts add up, modulo 2^64.

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
