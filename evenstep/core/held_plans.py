"""Plans that a worker holds, and the newest one that all workers hold.

A worker keeps the newest few plans. Where an exchange carries what the workers hold, every worker
marks its plans, all workers see all marks, and each picks the newest plan whose mark all have
shown. Comparing plan numbers would not be enough: a manager that lost its memory may have given a
number twice. So a mark is made of the number and the sizes. Where there is no common plan, every
worker sees that too, and keeps the plan in use.

A mark has 24 bits, as many as a float32 keeps exactly, however large the number. Five of them are
the last bits of the number, so that plans with near numbers cannot be mistaken for each other; the
rest is a hash, which takes two plans of one number for the same once in half a million such cases.
Even that is detected: the digest of the plan used travels with the next report.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core.plan import Plan
from evenstep.errors import OutOfTurn

KEPT = 8
"""Plans that a worker keeps."""
NO_PLAN = -1.0
"""The mark in a column without a plan."""
_NUMBER_BITS, _HASH_BITS = 5, 19


@dataclass(frozen=True, eq=False)
class Held:
    """A plan and its workers."""

    plan: Plan
    workers: tuple[str, ...]

    def size_of(self, worker: str) -> int:
        """Return the batch size of a worker; 0 if it is not in the plan."""
        if worker not in self.workers:
            return 0
        return int(self.plan.sizes[self.workers.index(worker)])


class Holding:
    """The newest plans that a worker has received."""

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
        """All plans held, the newest first."""
        held = self._held
        return tuple(held[number] for number in sorted(held, reverse=True))

    def keep(self, held: Held) -> None:
        """Keep a plan, and forget the oldest."""
        both = {**self._held, held.plan.number: held}
        # One assignment: another thread may be reading.
        self._held = {number: both[number] for number in sorted(both)[-KEPT:]}

    def numbered(self, number: int) -> Held:
        """Return the plan with this number."""
        held = self._held
        if number not in held:
            numbers = ", ".join(map(str, sorted(held))) or "none"
            raise OutOfTurn(f"a plan must be one of those held, {numbers}, got {number}")
        return held[number]


def mark_of(plan: Plan, workers: Sequence[str] = ()) -> int:
    """Return the mark of a plan: the end of its number, and a hash of its number and sizes.

    The names of its workers are hashed too where membership can change.

    >>> plan = Plan(number=2**40 + 3, iteration=9, sizes=np.array([8, 24]))
    >>> mark_of(plan) >> 19, mark_of(plan) < 2**24
    (3, True)
    """
    number = np.array([plan.number], dtype="<i8").tobytes()
    crc = zlib.crc32(plan.sizes.astype("<i8").tobytes(), zlib.crc32(number))
    crc = zlib.crc32("\n".join(workers).encode(), crc)
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


class CommonPlan:
    """The plan that this worker uses in common with all others, decided by the marks of all.

    In every iteration each worker calls `show`, all workers exchange what that returned, and each
    calls `choose` with the rows of all. They all choose the newest plan that all have shown. Where
    there is none they keep the plan in use, which the rows show too. A worker that holds no plan,
    or was away and uses another plan than most, does not delay the others, and gets none.

    >>> old, new = (Held(Plan(n, 0, np.array([4, 4])), ("a", "b")) for n in (6, 7))
    >>> a, b = CommonPlan(), CommonPlan()
    >>> rows = np.stack([a.show([new, old]), b.show([old])])
    >>> a.choose(rows).plan.number, b.choose(rows).plan.number
    (6, 6)
    """

    width = 1 + KEPT
    """How many numbers `show` returns."""

    def __init__(self) -> None:
        self._in_use: Held | None = None
        self._shown: tuple[Held, ...] = ()

    def show(self, held: Sequence[Held]) -> NDArray[np.float32]:
        """Return the mark of the plan in use, then those of the plans held, the newest first."""
        # The plans shown are kept until `choose`, however many plans arrive meanwhile.
        self._shown = tuple(held[:KEPT])
        marks = np.full(self.width, NO_PLAN, dtype=np.float32)
        if self._in_use is not None:
            marks[0] = _mark_of(self._in_use)
        marks[1 : 1 + len(self._shown)] = [_mark_of(one) for one in self._shown]
        return marks

    def choose(self, rows: NDArray[Any]) -> Held | None:
        """Return the plan to use, by the marks of all workers, one row each; None: sit this out."""
        marks = np.asarray(rows, dtype=np.float32).reshape(-1, self.width)
        marks = marks[np.any(marks != NO_PLAN, axis=1)]
        shown = self._shown if self._in_use is None else (*self._shown, self._in_use)
        # All workers try plans in the same order, even if a number was given twice.
        for held in sorted(shown, key=lambda one: (-one.plan.number, _mark_of(one))):
            if np.all(np.any(marks == np.float32(_mark_of(held)), axis=1)):
                self._in_use = held
                return held
        return self._in_use if self._is_in_use_by_most(marks[:, 0]) else None

    def _is_in_use_by_most(self, in_use: NDArray[np.float32]) -> bool:
        """Whether most workers use this worker's plan: one that was away may use another."""
        known, counts = np.unique(in_use[in_use != NO_PLAN], return_counts=True)
        if self._in_use is None or not len(known):
            return False
        return bool(known[np.argmax(counts)] == np.float32(_mark_of(self._in_use)))


def _mark_of(held: Held) -> int:
    return mark_of(held.plan, held.workers)
