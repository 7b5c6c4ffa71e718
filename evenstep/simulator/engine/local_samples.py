"""Local samples: each worker reads only its own partition.

Samples migrate by the migration rule during training (Section 3.5 of the paper). Until a migration
is complete, workers use their old partitions; then, at one iteration boundary, all workers switch
to the new ones, start a traversal of them, and reset their counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from evenstep.core import Floats, Ints, gradient_weight, require
from evenstep.errors import InvalidSetting
from evenstep.partitions import MigrationPlan, MigrationRule, Traversals
from evenstep.partitions.rules.choice import Holdings
from evenstep.partitions.rules.traversals import counted_samples
from evenstep.simulator.engine.samples import Samples, WorkerStreams


@dataclass(frozen=True, eq=False)
class Migration:
    """A migration of samples, complete or in progress."""

    plan: MigrationPlan
    gap: float
    """The largest difference of traversal counts when it was decided."""
    start: float
    """Time of the decision, in seconds of virtual time."""
    end: float
    """Arrival of the last sample; the migration takes effect at the next boundary."""


class LocalSamples:
    """Deals each worker batches from its partition, and migrates samples.

    >>> partitions = [np.arange(10), np.arange(10, 20)]
    >>> samples = LocalSamples(partitions, rule=MigrationRule(threshold=0.5))
    >>> for k in range(3):
    ...     samples.boundary(now=float(k))
    ...     batches = [samples.deal(worker, k, np.array([2, 6])).tolist() for worker in (0, 1)]
    >>> samples.sizes, [migration.start for migration in samples.migrations]
    (array([ 5, 15]), [2.0])
    """

    def __init__(
        self,
        partitions: Sequence[Ints],
        *,
        rule: MigrationRule | None = None,
        importance: bool = False,
        labels: Ints | None = None,
        sample_bytes: float = 0.0,
        bandwidth: Floats | None = None,
        seed: int = 0,
    ) -> None:
        """Without a rule no samples migrate; without labels, migrations ignore classes.

        `importance` weighs gradients by partition sizes, n_i / N, in place of batch sizes: a
        worker's gradient estimates that of its partition, so the sum estimates the gradient of all
        samples, however often each is used, and none has to move.

        `bandwidth` is in bytes per second per worker, NaN where unknown; a migration takes no time
        where it or `sample_bytes` is unknown. `seed` determines the order of samples in each
        traversal and the choice of samples that move.
        """
        if not 0 <= sample_bytes < np.inf:
            raise InvalidSetting(f"sample_bytes must be finite and >= 0, got {sample_bytes}")
        self._holdings = Holdings(partitions)
        num_workers = len(partitions)
        self._bandwidth = np.full(num_workers, np.nan) if bandwidth is None else bandwidth
        if self._bandwidth.shape != (num_workers,):
            raise InvalidSetting(
                f"bandwidth must have {num_workers} entries, one per partition, "
                f"got shape {self._bandwidth.shape}"
            )
        require(~(self._bandwidth <= 0), "bandwidth must be > 0", self._bandwidth)
        self.rule = rule
        self._counter = rule or MigrationRule()
        self._importance = importance
        self._labels = labels
        self._sample_bytes = sample_bytes
        self._seed = seed
        self._streams = WorkerStreams.of_partitions(self.partitions, seed)
        self._state = self._counter.init(self.sizes)
        self._consumed = np.zeros(num_workers, dtype=np.int64)
        """Samples that each worker has processed in the current iteration."""
        self._move: Callable[[Sequence[Ints]], bool] = lambda partitions: True
        self._under_way: Migration | None = None
        self.migrations: list[Migration] = []
        """All migrations that were started."""

    def move_by(self, move: Callable[[Sequence[Ints]], bool]) -> None:
        """Set the function that moves real samples, so that each worker holds its partition.

        It returns whether it succeeded; a failed migration is retried at the next boundary.
        """
        self._move = move

    @property
    def partitions(self) -> Sequence[Ints]:
        """The current partition of each worker."""
        return self._holdings.partitions

    @property
    def sizes(self) -> Ints:
        """The current size of each partition."""
        return self._holdings.sizes

    @property
    def traversals(self) -> Traversals:
        """How often workers had traversed their partitions at the last boundary."""
        return self._state.traversals

    def deal(self, worker: int, iteration: int, sizes: Ints) -> Ints:
        """Return the next samples of the worker's traversal."""
        self._consumed[worker] += sizes[worker]
        return self._streams.deal(worker, iteration, sizes)

    def unused(self, worker: int, count: int) -> None:
        """Do not count samples of a worker as consumed: its gradient was not used."""
        self._consumed[worker] -= count

    def counted(self, sizes: Ints) -> Ints:
        """Return the number of samples with which each worker's gradient counts in the mean."""
        return counted_samples(self.sizes, sizes) if self._importance else sizes

    def boundary(self, now: float) -> None:
        """Count the samples of the finished iteration, and start or finish a migration."""
        if self._consumed.any():
            self._state = self._counter.observe(self._state, self._consumed)
            self._consumed[:] = 0
        if self.rule is not None and self._under_way is None:
            self._begin(self.rule, now)
        if self._under_way is not None and self._under_way.end <= now:
            self._finish(self._under_way)

    def _begin(self, rule: MigrationRule, now: float) -> None:
        plan, self._state = rule.decide(self._state)
        if plan is not None:
            end = now + migration_time(plan, self._sample_bytes, self._bandwidth)
            self._under_way = Migration(plan, self.traversals.gap, now, end)
            self.migrations.append(self._under_way)

    def _finish(self, migration: Migration) -> None:
        seed = self._seed + len(self.migrations)
        holdings = self._holdings.migrate(migration.plan, seed, self._labels)
        if not self._move(holdings.partitions):
            return
        self._holdings = holdings
        first_pass = self._streams.num_passes
        self._streams = WorkerStreams.of_partitions(self.partitions, self._seed, first_pass)
        self._state = self._counter.init(self.sizes)
        self._under_way = None


def push_weight(samples: Samples, worker: int, sizes: Ints, weighted: bool) -> float:
    """Return n x_i / X, by importance where samples have one; 1 if unweighted."""
    if not weighted:
        return 1.0
    counts = samples.counted(sizes) if isinstance(samples, LocalSamples) else sizes
    return gradient_weight(int(counts[worker]), int(counts.sum()), len(counts))


def migration_time(plan: MigrationPlan, sample_bytes: float, bandwidth: Floats) -> float:
    """Return the duration of a migration: that of the busiest worker's transfers.

    >>> from evenstep.partitions import plan_migration
    >>> plan = plan_migration([200, 200, 200], [100, 150, 350])
    >>> migration_time(plan, sample_bytes=10.0, bandwidth=np.array([50.0, 100.0, 100.0]))
    20.0
    >>> migration_time(plan, sample_bytes=10.0, bandwidth=np.full(3, np.nan))
    0.0
    """
    carried = np.zeros(len(bandwidth))
    for transfer in plan.transfers:
        carried[[transfer.giver, transfer.receiver]] += transfer.count * sample_bytes
    return float(np.nan_to_num(carried / bandwidth, nan=0.0).max())
