"""Sharding: the arithmetic of a parameter server, without any tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from evenstep.core.short_form import require_whole

T = TypeVar("T")


@dataclass(frozen=True)
class ShardLayout:
    """Which shard holds which tensors of a model: its parameters, then its buffers.

    >>> layout = ShardLayout.of([10, 400, 200, 190], num_buffers=1, num_shards=2)
    >>> layout.split(["a", "b", "c", "d", "mean"])
    [['b'], ['a', 'c', 'd'], ['mean']]
    >>> layout.join([["b"], ["a", "c", "d"], ["mean"]])
    ['a', 'b', 'c', 'd', 'mean']
    """

    places: Sequence[Sequence[int]]
    """Places of each shard's tensors among all; buffers are on a shard of their own, the last."""
    has_buffers: bool

    @classmethod
    def of(cls, sizes: Sequence[int], num_buffers: int, num_shards: int) -> ShardLayout:
        """Deal parameters of these sizes to shards."""
        places = deal_to_shards(sizes, num_shards)
        if num_buffers:
            places.append(list(range(len(sizes), len(sizes) + num_buffers)))
        return cls(places, has_buffers=num_buffers > 0)

    def split(self, tensors: Sequence[T]) -> list[list[T]]:
        """Return what belongs to each shard."""
        return [[tensors[place] for place in places] for places in self.places]

    def join(self, parts: Sequence[Sequence[T]]) -> list[T]:
        """Put together what the shards hold."""
        held = {
            place: tensor
            for places, part in zip(self.places, parts, strict=True)
            for place, tensor in zip(places, part, strict=True)
        }
        return [held[place] for place in range(len(held))]


def deal_to_shards(sizes: Sequence[int], num_shards: int) -> list[list[int]]:
    """Return which tensors each shard holds: largest first, each to the shard with least.

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
