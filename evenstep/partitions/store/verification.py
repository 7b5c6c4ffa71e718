"""Verification: the files and rows of partitions are intact, and no sample is lost or doubled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from evenstep.core import Ints
from evenstep.errors import PartitionError
from evenstep.partitions.store.blocks import block_path
from evenstep.partitions.store.index import DataSet, Index
from evenstep.partitions.store.partition import Partition
from evenstep.partitions.store.rows import intact

_SHOWN = 5
"""How many samples a complaint names."""


@dataclass(frozen=True)
class Verification:
    """The findings of `verify`."""

    problems: tuple[str, ...]
    """One line for each problem."""
    num_samples: int
    """Samples in the partitions that could be opened."""
    complete: bool
    """Whether all partitions of the data set were there, so that a lost sample would show."""
    open_hand_overs: tuple[str, ...]
    """Hand-overs that were begun and are not over: nothing is wrong with that."""
    num_missing: int = 0
    """Samples of the data set that are in none of these partitions."""


def verify(folders: Sequence[str | Path]) -> Verification:
    """Check partitions, each by itself and all together."""
    problems: list[str] = []
    indices: list[Index] = []
    for folder in folders:
        index, found = _examine(Path(folder))
        problems += found
        indices += [] if index is None else [index]
    datasets = {index.dataset for index in indices}
    if len(datasets) > 1:
        problems.append(f"partitions must be of one data set, got {len(datasets)} different ones")
    complete, missing = False, 0
    if len(datasets) == 1:
        dataset = next(iter(datasets))
        counts = _counts(indices, dataset)
        missing = int((counts == 0).sum())
        # Where a worker has left, the others have all samples.
        complete = len(indices) >= dataset.num_partitions or missing == 0
        problems += _together(indices, counts, complete)
    still_open = frozenset[str]().union(*(index.open_hand_overs for index in indices))
    num_samples = sum(len(index.samples) for index in indices)
    return Verification(tuple(problems), num_samples, complete, tuple(sorted(still_open)), missing)


def owned(index: Index, others: Sequence[Index]) -> Ints:
    """Return the samples of a partition: listed in its index, or staged there and `given`."""
    given = {
        (other.name, record.hand_over)
        for other in others
        for record in other.giver_records.values()
        if record.phase == "given"
    }
    staged = [
        np.array(record.samples, dtype=np.int64)
        for record in index.receiver_records.values()
        if record.phase == "staged" and (record.giver, record.hand_over) in given
    ]
    return np.concatenate([index.samples, *staged])


def _examine(folder: Path) -> tuple[Index | None, list[str]]:
    """Return the index of a partition, where it can be opened, and its problems."""
    try:
        partition = Partition.open(folder)
    except PartitionError as error:
        return None, [str(error)]
    return partition.index, _damaged(partition)


def _damaged(partition: Partition) -> list[str]:
    """Return the problems of the listed rows."""
    index = partition.index
    problems = []
    for number, (name, _) in enumerate(index.blocks):
        here = index.block == number
        rows = partition.gather(np.flatnonzero(here))
        wrong = index.samples[here][~(intact(rows) & (rows["sample"] == index.samples[here]))]
        if len(wrong):
            path = block_path(partition.folder, name)
            problems.append(f"{path}: {_some(wrong)} must fit the checksum")
    return problems


def _counts(indices: Sequence[Index], dataset: DataSet) -> Ints:
    """Return in how many partitions each sample of a data set is."""
    every = np.concatenate([owned(index, indices) for index in indices])
    return np.bincount(every, minlength=dataset.num_samples)


def _together(indices: Sequence[Index], counts: Ints, complete: bool) -> list[str]:
    problems = []
    names = [index.name for index in indices]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        problems.append(f"each partition must be given once, got {', '.join(twice)} again")
    for sample in np.flatnonzero(counts > 1)[:_SHOWN]:
        where = [i.name for i in indices if sample in owned(i, indices)]
        problems.append(f"sample {sample} must be in one partition, got {', '.join(where)}")
    if (counts > 1).sum() > _SHOWN:
        problems.append(f"{(counts > 1).sum()} samples are in several partitions")
    if complete and (counts == 0).any():
        problems.append(f"{_some(np.flatnonzero(counts == 0))} must be in a partition, got none")
    return problems


def _some(samples: Ints) -> str:
    """Name a few samples.

    >>> _some(np.arange(2)), _some(np.arange(100))
    ('samples 0, 1', '100 samples (0, 1, 2, 3, 4, ...)')
    """
    shown = ", ".join(map(str, samples[:_SHOWN].tolist()))
    if len(samples) > _SHOWN:
        return f"{len(samples)} samples ({shown}, ...)"
    return f"sample{'s' if len(samples) > 1 else ''} {shown}"
