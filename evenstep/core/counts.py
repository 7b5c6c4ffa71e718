"""Dealing by counts: samples that are unequal work, such as sentences of so many tokens.

An iteration processes the samples that plain BSP would; who gets which of them follows their
counts, so that each worker's count comes as near to its share of the plan as samples allow. Most
samples are dealt in one piece per worker, in which a small change of the plan moves few of them.
The smallest ones, and those that lie across a cut, are the small change that makes up the rest.
"""

from __future__ import annotations

import heapq

import numpy as np

from evenstep.core.arrays import Ints

_CHANGE = 4
"""So many samples per worker are small change, or a quarter of all where they are few."""


def deal_by_counts(counts: Ints, sizes: Ints, minimum: int = 1) -> Ints:
    """Return which worker gets each sample of a slice.

    A worker's share of the slice's count is its planned size over all sizes. Who is planned any
    samples gets the minimum, at least one; who is planned none gets none.

    >>> deal_by_counts(np.array([8, 1, 1, 2, 3, 1]), np.array([3, 3]))
    array([0, 1, 1, 1, 1, 1])
    >>> deal_by_counts(np.array([5, 5, 5, 5]), np.array([1, 3]))
    array([1, 0, 1, 1])
    """
    least = np.minimum(sizes, max(minimum, 1))
    change = _small_change(counts, least)
    rest = np.setdiff1d(np.arange(len(counts)), change)
    owners = np.full(len(counts), -1)
    owners[rest] = _pieces(counts[rest], sizes)
    pool = np.flatnonzero(owners < 0)
    # Largest first, so that the last ones to be given are small.
    pool = pool[np.argsort(-counts[pool], kind="stable")]
    _give(pool.tolist(), owners, counts, sizes, least)
    return owners


def _small_change(counts: Ints, least: Ints) -> Ints:
    """Return the smallest samples: enough for everybody's minimum, and then some."""
    needed = int(least.sum())
    more = min((len(counts) - needed) // 4, _CHANGE * int((least > 0).sum()))
    return np.argsort(counts, kind="stable")[: needed + more]


def _pieces(counts: Ints, sizes: Ints) -> Ints:
    """Lay samples end to end and cut by sizes; -1 where a sample lies across a cut.

    In whole numbers, as all workers must come to the same result.
    """
    ends = np.cumsum(counts) * int(sizes.sum())
    starts = ends - counts * int(sizes.sum())
    cuts = np.cumsum(sizes) * int(counts.sum())
    first = np.searchsorted(cuts, starts, side="right")
    last = np.searchsorted(cuts, ends, side="left")
    return np.where(first == last, first, -1)


def _give(pool: list[int], owners: Ints, counts: Ints, sizes: Ints, least: Ints) -> None:
    """Give the samples of a pool, one by one, to who lacks most of its share."""
    scale, dealt = int(sizes.sum()), owners >= 0
    held = np.bincount(owners[dealt], minlength=len(sizes))
    missing = np.maximum(least - held, 0)
    # Exact: sums of whole numbers far below 2^53.
    shares = np.bincount(owners[dealt], weights=counts[dealt], minlength=len(sizes))
    lacking = sizes * int(counts.sum()) - shares.astype(np.int64) * scale
    heap = [(-lack, worker) for worker, lack in enumerate(lacking.tolist()) if sizes[worker] > 0]
    heapq.heapify(heap)
    for i, sample in enumerate(pool):
        if len(pool) - i == missing.sum():
            owners[pool[i:]] = np.repeat(np.arange(len(sizes)), missing)
            return
        lack, worker = heap[0]
        owners[sample] = worker
        missing[worker] = max(missing[worker] - 1, 0)
        heapq.heapreplace(heap, (lack + int(counts[sample]) * scale, worker))
