"""The common plan: the newest one that all workers hold, where an exchange carries what they hold.

Every worker marks the plans that it holds, all workers see all marks, and each picks the newest
plan whose mark everybody has shown. That all hold a plan of one number would not be enough: a
manager that lost its memory may have given the number twice. So a mark is made of the number and
the sizes. Where there is no common plan, everybody sees that too, and goes on with the plan in use.

A mark has 24 bits, as many as a float32 keeps exactly, however large the number. Five of them are
the number's last, so that plans whose numbers are near cannot be mistaken for each other; the rest
is a hash, which takes two plans of one number for the same once in half a million such cases. That
would not go unnoticed: the digest of the plan used travels with the next report.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from evenstep.coordination.holding import KEPT
from evenstep.core.plan import Plan

NO_PLAN = -1.0
"""The mark of a place where there is no plan."""
_NUMBER_BITS, _HASH_BITS = 5, 19


def mark_of(plan: Plan) -> int:
    """Return what a plan is told by: the end of its number, and a hash of all that it says.

    >>> plan = Plan(number=2**40 + 3, iteration=9, sizes=np.array([8, 24]))
    >>> mark_of(plan) >> 19, mark_of(plan) < 2**24
    (3, True)
    """
    number = np.array([plan.number], dtype="<i8").tobytes()
    crc = zlib.crc32(plan.sizes.astype("<i8").tobytes(), zlib.crc32(number))
    end, remainder = plan.number & (1 << _NUMBER_BITS) - 1, crc & (1 << _HASH_BITS) - 1
    return end << _HASH_BITS | remainder


def marks_of(plans: Sequence[Plan]) -> NDArray[np.float32]:
    """Return the marks of the plans that a worker holds, the newest first, for a row."""
    marks = np.full(KEPT, NO_PLAN, dtype=np.float32)
    newest = plans[:KEPT]
    marks[: len(newest)] = [mark_of(plan) for plan in newest]
    return marks


def newest_common(plans: Sequence[Plan], marks: NDArray[np.float32]) -> Plan | None:
    """Return the newest of this worker's plans that all have, by the marks of all workers.

    >>> old, new = (Plan(number, 0, np.array([4, 4])) for number in (6, 7))
    >>> newest_common([new, old], np.stack([marks_of([new, old]), marks_of([old])])).number
    6
    >>> newest_common([new], np.stack([marks_of([new]), marks_of([old])]))
    """
    for plan in plans:
        if np.all(np.any(marks == np.float32(mark_of(plan)), axis=1)):
            return plan
    return None
