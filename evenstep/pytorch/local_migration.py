"""Migration under training: when it begins, and when all workers change over.

Every worker asks the same rule about the same batch sizes, so all know when a migration begins.
Worker 0 carries it out in a background process; once it is over, its number rides on the gradient
exchange, and all workers change over at the boundary that follows. The sign says if it succeeded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from evenstep.core import Floats, Ints, frozen
from evenstep.partitions import MigrationRule
from evenstep.partitions.handover.task import MigrationOutcome
from evenstep.partitions.rules.rule import MigrationState
from evenstep.partitions.rules.traversals import Traversals
from evenstep.pytorch.background_processes import AgentProcess

_log = logging.getLogger(__name__)


class Carrier(Protocol):
    """Carries out migrations in the background; worker 0 has one."""

    def begin(self, sizes: Ints, number: int) -> None:
        """Begin to make partitions as large as these sizes."""
        ...

    @property
    def outcome(self) -> MigrationOutcome | None:
        """The outcome of the last migration, or None while one is running."""
        ...

    def close(self) -> None:
        """End the background process."""
        ...


class LocalMigration:
    """Knows when samples are to move, and when they have; the user of the extra column."""

    def __init__(
        self,
        rule: MigrationRule,
        sizes: Ints,
        caps: Ints,
        carrier: Carrier | None,
        agent: AgentProcess,
    ) -> None:
        """`carrier` is worker 0's, `agent` that of this worker's partition."""
        self._rule, self._caps = rule, caps
        self._state = rule.init(sizes)
        self._carrier, self._agent = carrier, agent
        self.number = 0
        """How many were begun so far."""
        self._under_way = False
        self._outcome: MigrationOutcome | None = None
        self._heard = 0

    def say(self) -> float:
        """Return the number of the migration that is over, negative if nothing may have changed."""
        if self._carrier is None or not self._under_way:
            return 0.0
        if self._outcome is None:
            self._outcome = self._carrier.outcome
        if self._outcome is None:
            return 0.0
        return float(self.number if self._outcome.is_over else -self.number)

    def hear(self, numbers: Floats) -> None:
        """Take what worker 0 says."""
        self._heard = int(numbers[0])

    def observe(self, batch_sizes: Ints) -> None:
        """Take note of the batch sizes of an iteration."""
        self._state = self._rule.observe(self._state, batch_sizes)

    def begin_if_due(self) -> str | None:
        """Begin a migration if the rule asks for one, and return what to say about it."""
        if self._under_way:
            return None
        plan, self._state = self._rule.decide(self._state, self._caps)
        if plan is None:
            return None
        self.number += 1
        self._under_way, self._outcome = True, None
        if self._carrier is not None:
            self._carrier.begin(plan.targets, self.number)
        gap = self._state.traversals.gap
        return (
            f"migration {self.number} begins: traversal counts are {gap:.1f} apart, "
            f"{plan.num_moved} samples move, partitions become {plan.targets.tolist()}"
        )

    @property
    def has_ended(self) -> bool | None:
        """Whether partitions may have changed, where a migration is over; None where none is."""
        if not self._under_way or abs(self._heard) != self.number:
            return None
        return self._heard > 0

    def end(self, sizes: Ints, caps: Ints | None, problem: str) -> str:
        """Restart counting from these partition sizes, and return a note about the end."""
        self._under_way = False
        self._agent.revive()
        self._state = self._rule.init(sizes)
        self._caps = self._caps if caps is None else caps
        outcome, self._outcome = self._outcome, None
        problems = [*(outcome.problems if outcome is not None else ()), problem]
        reasons = "; ".join(one for one in problems if one)
        moved = outcome.moved if outcome is not None and not problem else 0
        text = f"migration {self.number} ends: {moved} samples moved, partitions {sizes.tolist()}"
        if reasons:
            text = f"{text}; not all went well: {reasons}"
            if self._carrier is not None:
                _log.warning("%s", text)
        return text

    @property
    def state(self) -> MigrationState:
        """What the rule knows."""
        return self._state

    def go_back(self, state: MigrationState) -> None:
        """Forget the iterations since a state, as they were not trained on."""
        self._state = state

    def close(self) -> None:
        """End the background processes; the next training finishes an open migration."""
        if self._carrier is not None:
            self._carrier.close()
        self._agent.close()


def saved(state: MigrationState) -> dict[str, Any]:
    """Return what the rule knows in plain numbers, for a checkpoint."""
    arrays = {name: getattr(state, name).tolist() for name in ("recent", "last", "jitter")}
    return {**arrays, "consumed": state.traversals.consumed.tolist()}


def restored(state: Mapping[str, Any], sizes: Ints) -> MigrationState:
    """Return what `saved` wrote about partitions of these sizes."""
    traversals = Traversals(sizes, frozen(state["consumed"]))
    return MigrationState(traversals, *(frozen(state[n]) for n in ("recent", "last", "jitter")))
