"""Sharding: the arithmetic of a parameter server, without any tensor."""

from __future__ import annotations

from collections.abc import Sequence

from evenstep.core.settings import require_whole


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


def gradient_weight(batch_size: int, total: int, num_workers: int, weighted: bool = True) -> float:
    """Return n x_i / X, by which a worker multiplies its gradient (section 3.4 of the paper).

    Unweighted it is 1: a plain mean, in which a sample of a small batch counts for more.

    >>> gradient_weight(24, total=64, num_workers=2)
    0.75
    """
    return num_workers * batch_size / total if weighted else 1.0
