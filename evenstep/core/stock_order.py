"""The stock order of an epoch: that of torch's DistributedSampler, which scripts had before.

So the loss curve of a script stays what it was, in every framework. The permutation is that of
``torch.randperm(n)`` with a generator seeded with seed + epoch, bit for bit: torch and numpy's
RandomState draw the same numbers. Both shuffles of torch are sequential loops; here each of their
results is found by following a chain of steps back, for all entries at once.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from evenstep.core.arrays import Ints
from evenstep.errors import InvalidSetting

Pad = bool | Literal["truncate"]
"""What happens to an epoch whose samples are no multiple of the number of workers: it is padded
with samples from its beginning, as DistributedSampler does by default (True), left as it is
(False), or truncated, as DistributedSampler does with drop_last=True."""

_MANY = (2**32 - 1) // 20
"""From this length on, torch draws numbers of 64 bits, and shuffles in another way."""
_SEEDS = range(-(2**63), 2**64)
"""The seeds that torch takes; only their lowest 32 bits matter."""


def stock_order(num_samples: int, seed: int, epoch: int) -> Ints:
    """Return the order of an epoch, which depends on nothing but seed + epoch.

    >>> stock_order(5, seed=0, epoch=1).tolist()
    [0, 4, 2, 3, 1]
    """
    if seed + epoch not in _SEEDS:
        raise InvalidSetting(
            f"seed + epoch must be at least -2**63 and less than 2**64, got {seed} + {epoch}"
        )
    if num_samples >= 2**32:
        raise InvalidSetting(
            f"a data set must have less than 2**32 samples to be shuffled, got {num_samples}: "
            "leave them in their order, or pass a sampler"
        )
    random = np.random.RandomState((seed + epoch) % 2**32)
    return _swapped(num_samples, random) if num_samples < _MANY else _placed(num_samples, random)


def check_pad(pad: object) -> None:
    """Raise InvalidSetting unless this is one of the ways to pad an epoch."""
    if not (isinstance(pad, bool) or pad == "truncate"):
        raise InvalidSetting(f"pad must be True, False or 'truncate', got {pad!r}")


def padded_length(num_samples: int, num_workers: int, pad: Pad) -> int:
    """Return the number of samples of an epoch, with repeated ones and without those left out.

    >>> [padded_length(10, 4, pad) for pad in (True, False, "truncate")]
    [12, 10, 8]
    """
    if pad is False:
        return num_samples
    rest = num_samples % num_workers
    if pad == "truncate" or rest == 0:
        return num_samples - rest
    return num_samples - rest + num_workers


def padded(order: Ints, length: int) -> Ints:
    """Return an order of this length: repeated from its beginning, or truncated.

    >>> padded(np.array([2, 0, 1]), 8).tolist()
    [2, 0, 1, 2, 0, 1, 2, 0]
    """
    return order if length == len(order) else np.resize(order, length)


def _swapped(count: int, random: np.random.RandomState) -> Ints:
    """Return what is left of 0, 1, ... after step i = 0, 1, ... swapped entries i and j_i >= i.

    Entry i of the result is what entry j_i held before step i: what the last earlier step to j_i,
    say step p, put there, which is what entry p held before step p. In turn, that is what the last
    step to p put there; without one, entry p still held p.
    """
    steps = np.arange(count, dtype=np.uint32)
    targets = _draws(count, random)
    targets %= np.uint32(count) - steps
    targets += steps
    came_from = np.arange(count)
    moving = np.flatnonzero(targets != steps)
    came_from[targets[moving]] = moving  # Of several steps to an entry, the last one is assigned.
    held = _ends(came_from)
    order = targets.astype(np.int64)
    later, earlier = _repeated(targets)
    order[later] = held[earlier]
    return order


def _placed(count: int, random: np.random.RandomState) -> Ints:
    """Return the entries after step i = 0, 1, ... moved entry j_i <= i to i, and put i into j_i.

    An entry is what the last step to it put there. Without one, it is what step i moved to it from
    entry j_i, which an earlier step had put there, or which had been moved there.
    """
    draws = _draws(2 * count, random).astype(np.uint64).reshape(count, 2)
    steps = np.arange(count, dtype=np.uint64)
    targets = ((draws[:, 0] << np.uint64(32) | draws[:, 1]) % (steps + np.uint64(1))).astype(
        np.uint32
    )
    moved = np.arange(count)
    later, earlier = _repeated(targets)
    moved[later] = earlier
    came_from = targets.astype(np.int64)
    came_from[later] = later
    order = moved[_ends(came_from)]
    order[targets] = np.arange(count)  # Of several steps to an entry, the last one is assigned.
    return order


def _draws(count: int, random: np.random.RandomState) -> NDArray[np.uint32]:
    return random.randint(0, 2**32, size=count, dtype=np.uint32)


def _repeated(targets: NDArray[np.uint32]) -> tuple[Ints, Ints]:
    """Return all steps whose target an earlier step had, and the last such step for each."""
    keys = targets.astype(np.uint64) << np.uint64(32)
    keys |= np.arange(len(targets), dtype=np.uint64)
    keys.sort()
    again = np.flatnonzero(keys[1:] >> np.uint64(32) == keys[:-1] >> np.uint64(32))
    steps = keys.astype(np.uint32).astype(np.int64)
    return steps[again + 1], steps[again]


def _ends(came_from: Ints) -> Ints:
    """Follow every chain of entries to its end, doubling the distance each time."""
    while True:
        further = came_from[came_from]
        if np.array_equal(further, came_from):
            return further
        came_from = further
