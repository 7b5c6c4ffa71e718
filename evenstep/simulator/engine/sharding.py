"""Sharding: the arithmetic of a parameter server, without tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from evenstep.core import require_whole

T = TypeVar("T")


@dataclass(frozen=True)
class ShardLayout:
    """The tensors of a model (parameters, then buffers) that each shard holds.

    >>> layout = ShardLayout.of([10, 400, 200, 190], num_buffers=1, num_shards=2)
    >>> layout.split(["a", "b", "c", "d", "mean"])
    [['b'], ['a', 'c', 'd'], ['mean']]
    >>> layout.join([["b"], ["a", "c", "d"], ["mean"]])
    ['a', 'b', 'c', 'd', 'mean']
    """

    positions: Sequence[Sequence[int]]
    """Positions of each shard's tensors among all; buffers are on the last shard, alone."""
    has_buffers: bool

    @classmethod
    def of(cls, sizes: Sequence[int], num_buffers: int, num_shards: int) -> ShardLayout:
        """Assign parameters of these sizes to shards."""
        positions = deal_to_shards(sizes, num_shards)
        if num_buffers:
            positions.append(list(range(len(sizes), len(sizes) + num_buffers)))
        return cls(positions, has_buffers=num_buffers > 0)

    def split(self, tensors: Sequence[T]) -> list[list[T]]:
        """Return the tensors of each shard."""
        return [[tensors[i] for i in positions] for positions in self.positions]

    def join(self, parts: Sequence[Sequence[T]]) -> list[T]:
        """Return all tensors in order, given those of each shard."""
        held = {
            i: tensor
            for positions, part in zip(self.positions, parts, strict=True)
            for i, tensor in zip(positions, part, strict=True)
        }
        return [held[i] for i in range(len(held))]


def deal_to_shards(sizes: Sequence[int], num_shards: int) -> list[list[int]]:
    """Return the tensors of each shard: largest first, each to the least loaded shard.

    >>> deal_to_shards([10, 400, 200, 190], num_shards=2)
    [[1], [0, 2, 3]]
    """
    require_whole("the number of shards", num_shards)
    shards: list[list[int]] = [[] for _ in range(num_shards)]
    held = [0] * num_shards
    for tensor in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        least = held.index(min(held))
        shards[least].append(tensor)
        held[least] += sizes[tensor]
    return [sorted(shard) for shard in shards]
