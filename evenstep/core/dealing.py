"""Dealing: which samples of an epoch each worker gets.

The samples of iteration k are the k-th slice of one order of the whole data set, the same for every
plan: balancing only deals that slice out differently. Each worker has a home block, its even
share of the slice; a small batch is a prefix of it, a large one is all of it and then samples that
others leave. So a small change of sizes moves few samples between workers, and samples that a
loader fetched ahead stay useful.

Samples can also be dealt by their counts (of tokens, say), so that each worker's count comes as
near to its share of the plan as the samples allow; an iteration still processes the samples that
plain BSP would. A slice is cut into one piece per worker, so that a small change of the plan moves
few samples. The samples that do not fit into a worker's share, the smallest of its piece, go to
workers that lack some.
"""

from __future__ import annotations

import numpy as np

from evenstep.core.arrays import Ints
from evenstep.core.limits import UNLIMITED, Limits
from evenstep.core.split import split_proportional
from evenstep.errors import InvalidSetting


def numpy_order(num_samples: int, seed: int, epoch: int) -> Ints:
    """Return a permutation by numpy's generator, which depends on nothing but seed and epoch.

    Simulations, local partitions, and trainings that go on from checkpoints of earlier versions
    have this order; other trainings have the stock order.

    >>> numpy_order(5, seed=0, epoch=1).tolist()
    [1, 4, 3, 0, 2]
    """
    order: Ints = np.random.default_rng((seed, epoch)).permutation(num_samples)
    return order


def num_iterations(num_samples: int, total: int, drop_last: bool = False) -> int:
    """Return how many iterations an epoch has; the last one may be smaller unless dropped.

    >>> num_iterations(10, 4), num_iterations(10, 4, drop_last=True)
    (3, 2)
    """
    return num_samples // total if drop_last else -(-num_samples // total)


def sizes_within(sizes: Ints, count: int, minimum: int = 1) -> Ints:
    """Return the sizes for a slice of `count` samples: those of the plan, or scaled down to fit.

    Where the samples do not suffice for the minimum of all workers, those with the largest sizes
    share them and the others get none.

    >>> sizes_within(np.array([6, 2]), 4)
    array([3, 1])
    >>> sizes_within(np.array([6, 3, 1]), 5, minimum=2)
    array([3, 2, 0])
    """
    total = int(sizes.sum())
    if count == total:
        return sizes
    if count > total:
        raise InvalidSetting(f"a slice must not exceed the total {total}, got {count} samples")
    working = sizes > 0
    num_served = max(1, count // max(minimum, 1))
    if num_served < int(working.sum()):
        largest = np.argsort(-sizes, kind="stable")[:num_served]
        working = np.isin(np.arange(len(sizes)), largest)
    least = min(minimum, count) * working
    limits = Limits(least, np.where(working, count, 0))
    return split_proportional(count, np.maximum(sizes, 1).astype(np.float64), limits)


def sizes_left(sizes: Ints, left: Ints, caps: Ints, least: int = 1) -> Ints:
    """Return the sizes for workers that each take samples of their own: those of the plan, or new.

    `left` are the samples that each worker has left, UNLIMITED where there is no end in sight. The
    workers that have some carry the total, as far as `caps` allow more than planned. A batch, and
    what it leaves of a worker's samples, is none or at least `least`, the smallest batch that can
    be trained on; for that, sizes may add up to somewhat more or less than the total.

    >>> sizes_left(np.array([6, 6]), np.array([2, UNLIMITED]), np.array([9, UNLIMITED]))
    array([ 2, 10])
    >>> sizes_left(np.array([6, 6]), np.array([7, UNLIMITED]), np.array([9, 9]), least=2)
    array([5, 6])
    """
    if np.all((left == UNLIMITED) | (left == sizes) | (left - sizes >= least)):
        return sizes
    serving = (left > 0) & (sizes > 0) if np.any((left > 0) & (sizes > 0)) else left > 0
    most = np.where(serving, np.minimum(left, np.maximum(caps, sizes)), 0)
    total = min(int(sizes.sum()), int(most.sum()))
    num_served = max(1, total // least)
    if num_served < int(serving.sum()):
        largest = np.argsort(-np.where(serving, sizes, -1), kind="stable")[:num_served]
        most = np.where(np.isin(np.arange(len(sizes)), largest), most, 0)
        total = min(total, int(most.sum()))
    weights = np.maximum(sizes, 1).astype(np.float64)
    split = split_proportional(total, weights, Limits(np.minimum(least, most), most))
    lacking = least - (left - split)
    cut = (lacking > 0) & (lacking < least) & (split > 0)
    return np.where(cut, np.where(split - lacking >= least, split - lacking, left), split)


def deal(samples: Ints, sizes: Ints, worker: int) -> Ints:
    """Return the samples of a slice that one worker gets.

    >>> slice_ = np.arange(8)
    >>> deal(slice_, np.array([4, 4]), 0), deal(slice_, np.array([4, 4]), 1)
    (array([0, 1, 2, 3]), array([4, 5, 6, 7]))
    >>> deal(slice_, np.array([2, 6]), 0), deal(slice_, np.array([2, 6]), 1)
    (array([0, 1]), array([4, 5, 6, 7, 2, 3]))
    """
    starts, homes = _homes(len(samples), len(sizes))
    kept = np.minimum(sizes, homes)
    own = samples[starts[worker] : starts[worker] + kept[worker]]
    wanted = sizes - kept
    if wanted[worker] == 0:
        return own
    # The samples that all workers leave, end to end; takers are served in their order.
    offset = int(wanted[:worker].sum())
    left = np.concatenate(
        [samples[s + k : s + h] for s, k, h in zip(starts, kept, homes, strict=True)]
    )
    return np.concatenate([own, left[offset : offset + int(wanted[worker])]])


def home_of(samples: Ints, num_workers: int, worker: int) -> Ints:
    """Return a worker's home block of a slice."""
    starts, homes = _homes(len(samples), num_workers)
    return samples[starts[worker] : starts[worker] + homes[worker]]


def borrow(samples: Ints, num_workers: int, worker: int, min_trainable: int) -> Ints:
    """Return the samples that a worker without any runs at weight 0: as few as it can train on.

    >>> borrow(np.arange(8), num_workers=4, worker=2, min_trainable=1)
    array([4])
    """
    home = home_of(samples, num_workers, worker)
    return (home if len(home) >= min_trainable else samples)[:min_trainable]


def _homes(count: int, num_workers: int) -> tuple[Ints, Ints]:
    """Return where each worker's home block begins and how long it is."""
    homes = np.full(num_workers, count // num_workers)
    homes[: count % num_workers] += 1
    return np.cumsum(homes) - homes, homes


def deal_by_counts(counts: Ints, sizes: Ints, minimum: int = 1) -> Ints:
    """Return which worker gets each sample of a slice.

    A worker's share of the slice's count is its planned size over all sizes. A worker with planned
    samples gets the minimum, at least one; a worker without any gets none.

    >>> deal_by_counts(np.array([8, 1, 1, 2, 3, 1]), np.array([3, 3]))
    array([0, 1, 1, 1, 1, 1])
    >>> deal_by_counts(np.array([5, 5, 5, 5]), np.array([1, 3]))
    array([0, 1, 1, 1])
    """
    # Whole numbers all the way: every worker must come to the same result.
    work = (counts * int(sizes.sum())).tolist()
    lacks = (sizes * int(counts.sum())).tolist()
    missing = np.minimum(sizes, max(minimum, 1)).tolist()
    num_missing = sum(missing)
    homes = _home_pieces(counts, sizes).tolist()
    owners = np.empty(len(counts), dtype=np.int64)
    # Largest first, so that the samples that do not fit in the end are small.
    for i, sample in enumerate(np.argsort(-counts, kind="stable").tolist()):
        worker = homes[sample]
        if len(owners) - i == num_missing:
            worker = max((w for w, short in enumerate(missing) if short), key=lacks.__getitem__)
        elif work[sample] > lacks[worker]:
            worker = lacks.index(max(lacks))
        owners[sample] = worker
        lacks[worker] -= work[sample]
        if missing[worker]:
            missing[worker] -= 1
            num_missing -= 1
    return owners


def _home_pieces(counts: Ints, sizes: Ints) -> Ints:
    """Lay the samples end to end, cut that by sizes, and return the piece of each one's middle."""
    middles = (2 * np.cumsum(counts) - counts) * int(sizes.sum())
    cuts = 2 * np.cumsum(sizes) * int(counts.sum())
    return np.searchsorted(cuts, middles, side="right")
