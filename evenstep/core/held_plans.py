"""Plans that a worker holds, and the newest one that all workers hold.

A worker keeps the newest few plans. Where an exchange carries what the workers hold, every worker
marks its plans, all workers see all marks, and each picks the newest plan whose mark everybody has
shown. That all hold a plan of one number would not be enough: a manager that lost its memory may
have given the number twice. So a mark is made of the number and the sizes. Where there is no common
plan, every worker sees that too, and keeps the plan in use.

A mark has 24 bits, as many as a float32 keeps exactly, however large the number. Five of them are
the number's last, so that plans whose numbers are near cannot be mistaken for each other; the rest
is a hash, which takes two plans of one number for the same once in half a million such cases. That
would not go unnoticed: the digest of the plan used travels with the next report.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenstep.core.plan import Plan
from evenstep.errors import OutOfTurn

KEPT = 8
"""Plans that a worker keeps."""
NO_PLAN = -1.0
"""The mark of a place where there is no plan."""
_NUMBER_BITS, _HASH_BITS = 5, 19


@dataclass(frozen=True, eq=False)
class Held:
    """A plan, and the workers that it is for."""

    plan: Plan
    workers: tuple[str, ...]

    def size_of(self, worker: str) -> int:
        """Return the batch size of a worker; 0 where the plan is not for it."""
        if worker not in self.workers:
            return 0
        return int(self.plan.sizes[self.workers.index(worker)])


class Holding:
    """The newest plans that a worker has got."""

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    @property
    def newest(self) -> Held | None:
        held = self._held
        return held[max(held)] if held else None

    @property
    def all(self) -> tuple[Held, ...]:
        """What is held, the newest first."""
        held = self._held
        return tuple(held[number] for number in sorted(held, reverse=True))

    def keep(self, held: Held) -> None:
        """Keep a plan, and forget the oldest."""
        both = {**self._held, held.plan.number: held}
        # In one go: another thread may be looking.
        self._held = {number: both[number] for number in sorted(both)[-KEPT:]}

    def numbered(self, number: int) -> Held:
        """Return the plan with this number."""
        held = self._held
        if number not in held:
            numbers = ", ".join(map(str, sorted(held))) or "none"
            raise OutOfTurn(f"a plan must be one of those held, {numbers}, got {number}")
        return held[number]


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
