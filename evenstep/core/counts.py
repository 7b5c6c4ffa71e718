"""Dealing by counts: samples that are unequal work, such as sentences of so many tokens.

An iteration processes the samples that plain BSP would; who gets which of them follows their
counts, so that each worker's count comes as near to its share of the plan as samples allow. A slice
is cut into one piece per worker, in which a small change of the plan moves few samples. What does
not fit into a worker's share, the smallest samples of its piece, makes up what others lack.
"""

from __future__ import annotations

import numpy as np

from evenstep.core.arrays import Ints


def deal_by_counts(counts: Ints, sizes: Ints, minimum: int = 1) -> Ints:
    """Return which worker gets each sample of a slice.

    A worker's share of the slice's count is its planned size over all sizes. Who is planned any
    samples gets the minimum, at least one; who is planned none gets none.

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
    homes = _homes(counts, sizes).tolist()
    owners = np.empty(len(counts), dtype=np.int64)
    # Largest first, so that what does not fit in the end is small.
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


def _homes(counts: Ints, sizes: Ints) -> Ints:
    """Lay the samples end to end, cut that by sizes, and return the piece of each one's middle."""
    middles = (2 * np.cumsum(counts) - counts) * int(sizes.sum())
    cuts = 2 * np.cumsum(sizes) * int(counts.sum())
    return np.searchsorted(cuts, middles, side="right")
