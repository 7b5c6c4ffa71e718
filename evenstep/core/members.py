"""The members of a job: whether they are told apart, and what stays when others come or go."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenstep.core.arrays import Ints, as_ints
from evenstep.core.limits import Limits
from evenstep.core.split import split_proportional
from evenstep.errors import InvalidSetting, MembershipError


def distinct(workers: Sequence[str]) -> tuple[str, ...]:
    """Return the workers, or raise where there are none or one of them is there twice."""
    if not workers:
        raise InvalidSetting("a job needs at least one worker, got none")
    seen: set[str] = set()
    for worker in workers:
        if worker in seen:
            raise MembershipError(f"worker {worker} must be a member only once")
        seen.add(worker)
    return tuple(workers)


def positions(workers: Sequence[str], before: Sequence[str]) -> Ints:
    """Return where each worker was, -1 for a newcomer.

    >>> positions(["b", "c"], before=["a", "b"]).tolist()
    [1, -1]
    """
    old = {worker: i for i, worker in enumerate(before)}
    return as_ints([old.get(worker, -1) for worker in workers])


def scaled(sizes: Ints, keep: Ints, total: int, limits: Limits) -> Ints:
    """Return the sizes of other members, in proportion to what those who stay had.

    `keep` says where each of them was; a newcomer counts as a typical worker.
    """
    typical = max(1.0, float(np.median(sizes)))
    wanted = np.where(keep >= 0, sizes[keep], typical)
    return split_proportional(total, np.maximum(wanted, 1e-3), limits)
