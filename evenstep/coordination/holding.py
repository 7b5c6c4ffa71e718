"""Plans that a worker holds: the newest few, by number, so that all can use one that all hold."""

from __future__ import annotations

from dataclasses import dataclass

from evenstep.core.plan import Plan
from evenstep.errors import OutOfTurn

KEPT = 8
"""Plans that a worker keeps."""


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
        return self._held[max(self._held)] if self._held else None

    def keep(self, held: Held) -> None:
        """Keep a plan, and forget the oldest."""
        self._held[held.plan.number] = held
        while len(self._held) > KEPT:
            del self._held[min(self._held)]

    def numbered(self, number: int) -> Held:
        """Return the plan with this number."""
        if number not in self._held:
            numbers = ", ".join(map(str, sorted(self._held))) or "none"
            raise OutOfTurn(f"a plan must be one of those held, {numbers}, got {number}")
        return self._held[number]
