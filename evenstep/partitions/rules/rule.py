"""The migration rule: when samples move, and when they stay although counts drift apart.

Samples move once a traversal count is ahead of another by more than the threshold (Section 3.5).
Three things let the sizes settle. Batch sizes are not read off one plan but added up over the rise
to the threshold: the smaller the imbalance, the longer that takes, and the better jitter averages
out. (Where they changed on the way, over its second half: what was before would blur the targets.)
Partitions that are within the tolerance of their targets stay, and so do all where jitter alone
may have moved the counts apart: it always does so, slowly. Counting then starts again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from evenstep.core import UNLIMITED, Ints, Limits, as_ints, frozen, require_whole
from evenstep.errors import InvalidSetting
from evenstep.partitions.rules.plan import MigrationPlan, plan_migration, target_sizes
from evenstep.partitions.rules.traversals import Traversals

_CERTAINTY = 4.0
"""How many standard deviations of its jitter a worker's consumption must be off."""


@dataclass(frozen=True, eq=False)
class MigrationState:
    """The state of the rule: traversals since the last reset, and recent batch sizes."""

    traversals: Traversals
    recent: Ints
    """Samples consumed since the gap passed half of the threshold; zeros while it has not."""
    last: Ints
    """The batch sizes that were observed last; zeros before the first."""
    jitter: Ints
    """The squares of their changes from one observation to the next, added up since the reset."""


@dataclass(frozen=True)
class MigrationRule:
    """Decides when partitions follow the batch sizes.

    >>> rule = MigrationRule()
    >>> state = rule.init([100, 100])
    >>> while (decision := rule.decide(state))[0] is None:
    ...     state = rule.observe(state, [30, 10])
    >>> decision[0].transfers, state.traversals.counts
    ((Transfer(giver=1, receiver=0, count=50),), array([3.3, 1.1]))
    """

    threshold: float = 2.0
    """How far one partition's traversal count may be ahead of another's."""
    tolerance: float = 0.05
    """How far off its target a partition may stay, as a share of it."""
    minimum: int = 1
    """Samples that every partition keeps."""

    def __post_init__(self) -> None:
        if not (np.isfinite(self.threshold) and self.threshold > 0):
            raise InvalidSetting(f"threshold must be finite and > 0, got {self.threshold}")
        if not 0 <= self.tolerance < 1:
            raise InvalidSetting(f"tolerance must be in [0, 1), got {self.tolerance}")
        require_whole("minimum of a partition", self.minimum)

    def init(self, sizes: ArrayLike) -> MigrationState:
        """Return the state of partitions of these sizes, with the statistics reset.

        It is also the state after a migration, whether that succeeded or not.
        """
        traversals = Traversals.of(sizes)
        count, num_samples = len(traversals.sizes), int(traversals.sizes.sum())
        if count * self.minimum > num_samples:
            raise InvalidSetting(
                f"there must be samples for the minimum of every partition, {count} times "
                f"{self.minimum}, got {num_samples}"
            )
        zeros = frozen(np.zeros_like(traversals.sizes))
        return MigrationState(traversals, zeros, zeros, zeros)

    def observe(self, state: MigrationState, batch_sizes: ArrayLike) -> MigrationState:
        """Return the state after one more iteration."""
        batch_sizes = frozen(batch_sizes)
        traversals = state.traversals.consume(batch_sizes)
        rising = traversals.gap > self.threshold / 2
        recent = state.recent + batch_sizes if rising else np.zeros_like(state.recent)
        changes = batch_sizes - state.last if state.last.any() else np.zeros_like(recent)
        return MigrationState(traversals, recent, batch_sizes, state.jitter + changes**2)

    def decide(
        self, state: MigrationState, caps: ArrayLike | None = None
    ) -> tuple[MigrationPlan | None, MigrationState]:
        """Return the migration that is due, or None, and the state to continue from.

        `caps` are the samples that each worker's disk holds at most. After a migration,
        continue from `init` with the new sizes.
        """
        sizes = state.traversals.sizes
        if state.traversals.gap <= self.threshold:
            return None, state
        if _may_be_jitter(state, state.traversals.consumed, sizes):
            return None, self.init(sizes)
        holds = np.full(len(sizes), UNLIMITED) if caps is None else as_ints(caps)
        # A worker whose disk is smaller than the minimum keeps what it holds.
        limits = Limits.of(len(sizes), np.minimum(self.minimum, holds), holds)
        targets = target_sizes(int(sizes.sum()), _typical(state), limits)
        if self._near(sizes, targets):
            return None, self.init(sizes)
        return plan_migration(sizes, targets), state

    def _near(self, sizes: Ints, targets: Ints) -> bool:
        # One sample may be nothing but rounding, however small the partition.
        return bool(np.all(np.abs(sizes - targets) <= np.maximum(1, self.tolerance * targets)))


def _typical(state: MigrationState) -> Ints:
    """Return the batch sizes to follow, up to a common factor."""
    consumed = state.traversals.consumed
    return consumed if _may_be_jitter(state, state.recent, consumed) else state.recent


def _may_be_jitter(state: MigrationState, part: Ints, whole: Ints) -> bool:
    """Whether jitter may be all that makes `part` of the consumption differ from `whole`."""
    excess = part - whole * (int(part.sum()) / int(whole.sum()))
    # Independent jitter changes by sqrt(2) times its deviation, and adds up like a random walk.
    length = int(part.sum()) / int(state.traversals.consumed.sum())
    deviation = np.sqrt(state.jitter / 2 * length)
    return bool(np.all(np.abs(excess) <= _CERTAINTY * deviation))
