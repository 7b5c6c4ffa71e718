"""Migration during training: when it begins, and when all workers switch to their new partitions.

Every worker applies the same rule to the same batch sizes, so all know when a migration begins.
Worker 0 runs it in a background process. Once it has ended, the gradient exchange carries its
number, and all workers switch at the next boundary. The sign of the number is negative if it
failed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from evenstep.core import Floats, Ints, SavedState, frozen
from evenstep.partitions import MigrationRule
from evenstep.partitions.handover.task import MigrationOutcome
from evenstep.partitions.rules.rule import MigrationState
from evenstep.partitions.rules.traversals import Traversals
from evenstep.pytorch.background_processes import AgentProcess

_log = logging.getLogger(__name__)


class Carrier(Protocol):
    """Carries out migrations in the background; worker 0 has one."""

    def begin(self, sizes: Ints, number: int) -> None:
        """Start a migration to partitions of these sizes."""
        ...

    @property
    def outcome(self) -> MigrationOutcome | None:
        """The outcome of the last migration, or None while one is running."""
        ...

    def close(self) -> None:
        """Stop the background process."""
        ...


class LocalMigration:
    """Decides when samples move, and learns through the extra column when they have moved."""

    def __init__(
        self,
        rule: MigrationRule,
        sizes: Ints,
        caps: Ints,
        carrier: Carrier | None,
        agent: AgentProcess,
    ) -> None:
        """Only worker 0 has a `carrier`; `agent` is that of this worker's partition."""
        self._rule, self._caps = rule, caps
        self._state = rule.init(sizes)
        self._carrier, self._agent = carrier, agent
        self.number = 0
        """The number of migrations begun so far."""
        self._under_way = False
        self._outcome: MigrationOutcome | None = None
        self._received = 0

    def say(self) -> float:
        """Return the number of the ended migration, negative if partitions cannot have changed."""
        if self._carrier is None or not self._under_way:
            return 0.0
        if self._outcome is None:
            self._outcome = self._carrier.outcome
        if self._outcome is None:
            return 0.0
        return float(self.number if self._outcome.is_over else -self.number)

    def hear(self, numbers: Floats) -> None:
        """Take the number of worker 0."""
        self._received = int(numbers[0])

    def observe(self, batch_sizes: Ints) -> None:
        """Record the batch sizes of an iteration."""
        self._state = self._rule.observe(self._state, batch_sizes)

    def begin_if_due(self) -> str | None:
        """Begin a migration if the rule asks for one, and return a note about it."""
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
        """Whether partitions may have changed in an ended migration; None if none has ended."""
        if not self._under_way or abs(self._received) != self.number:
            return None
        return self._received > 0

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
        """The state of the rule."""
        return self._state

    def go_back(self, state: MigrationState) -> None:
        """Restore an earlier state, as the iterations since were not trained on."""
        self._state = state

    def close(self) -> None:
        """Stop the background processes; the next training finishes an open migration."""
        if self._carrier is not None:
            self._carrier.close()
        self._agent.close()


def saved(state: MigrationState) -> dict[str, Any]:
    """Return the state of the rule in plain numbers, for a checkpoint."""
    arrays = {name: getattr(state, name).tolist() for name in ("recent", "last", "jitter")}
    return {**arrays, "consumed": state.traversals.consumed.tolist()}


def restored(state: Mapping[str, Any], sizes: Ints) -> MigrationState:
    """Return the state of the rule from a checkpoint, for partitions of these sizes."""
    names = ("recent", "last", "jitter")
    saved = SavedState("a migration rule", state, "consumed", *names)
    traversals = Traversals(sizes, frozen(saved.wholes("consumed", len(sizes))))
    return MigrationState(traversals, *(frozen(saved.wholes(n, len(sizes))) for n in names))
