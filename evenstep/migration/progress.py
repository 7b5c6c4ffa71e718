"""How far a migration has come, from what its agents say of their partitions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from evenstep.partition.hand_over import num_chunks
from evenstep.partition.task import Task


@dataclass(frozen=True)
class Progress:
    """How far a migration has come."""

    over: int
    """Hand-overs that are over."""
    hand_overs: int
    staged: int
    """Chunks of the others that are on the disks of their receivers."""
    chunks: int
    """Chunks of all of them."""


def progress_of(tasks: Collection[Task], partitions: Collection[Any]) -> Progress:
    """Return how far tasks are; partitions are those of `agent.thrift`."""
    staged = {
        one.hand_over: one.staged
        for partition in partitions
        for one in partition.hand_overs
        if one.receiver == partition.name
    }
    return Progress(
        sum(one.final for one in tasks),
        len(tasks),
        sum(staged.get(one.hand_over, 0) for one in tasks),
        sum(num_chunks(len(one.samples), one.chunk_size) for one in tasks),
    )


def signature_of(partition: Any) -> tuple[Any, ...]:
    """Return what is another whenever a partition or one of its hand-overs has changed."""
    hand_overs = [(one.hand_over, one.phase, one.staged) for one in partition.hand_overs]
    return partition.version, hand_overs
