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
