"""A case: workers with their curves, and the conditions of some iterations.

A recorded run and a cluster file both become a case, so that the same functions serve both. All
iterations are computed together: a case of `rows` iterations is one cluster of ``rows * n``
workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from evenstep.core import Bools, Floats, Ints, even_sizes
from evenstep.errors import InfeasibleLimits
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.conditions import Conditions
from evenstep.simulator.clusters.curves import Curves

_PRECISION = 1e-6
"""Relative precision of the levels."""


@dataclass(frozen=True, eq=False)
class Case:
    """A cluster and its conditions; matrices are (iterations, workers)."""

    cluster: Cluster
    slowdown: Floats
    communication: Floats
    noise: Floats

    @classmethod
    def of(cls, cluster: Cluster, conditions: Sequence[Conditions]) -> Case:
        names = ("slowdown", "communication", "noise")
        return cls(cluster, *(np.array([getattr(at, name) for at in conditions]) for name in names))

    @property
    def num_rows(self) -> int:
        return len(self.slowdown)

    @property
    def even(self) -> Ints:
        """The sizes of plain BSP."""
        return even_sizes(self.cluster.total, self.cluster.limits)

    def times(self, sizes: Ints) -> Floats:
        """Return the batch processing times in every iteration with these sizes."""
        flat = np.broadcast_to(sizes, self.slowdown.shape).ravel()
        return self._stack.times(flat, self._at).reshape(self.slowdown.shape)

    def best_sizes(self, kept: Ints | None = None) -> Ints:
        """Return, for each iteration, the sizes with which all workers finish together.

        They follow the lasting slowdowns, not the noise. In each row, `kept` has a 0 for every
        worker that is left out. The sizes of a row may exceed the total by ties.
        """
        cluster = self.cluster
        lo, hi = cluster.limits.tighten(cap=cluster.cap).bounds(cluster.total)
        lo, hi = (np.broadcast_to(bound, self.slowdown.shape) for bound in (lo, hi))
        if kept is not None:
            lo, hi = lo * kept, hi * kept
        if (hi.sum(axis=1) < cluster.total).any():
            raise InfeasibleLimits(
                f"the batch size caps must add up to the total {cluster.total} at least, "
                f"got {int(hi.sum(axis=1).min())}"
            )

        def sizes_at(levels: Floats) -> Ints:
            flat = self._stack.largest(np.repeat(levels, cluster.num_workers), self._at)
            sizes = flat.reshape(self.slowdown.shape) // cluster.granularity * cluster.granularity
            return np.clip(sizes, lo, hi)

        levels = lowest_levels(
            lambda levels: sizes_at(levels).sum(axis=1) >= cluster.total, self.num_rows
        )
        return sizes_at(levels)

    def best_iteration_times(self) -> Floats:
        """Return the iteration times with the best sizes."""
        times: Floats = self.times(self.best_sizes()).max(axis=1)
        return times

    def recent(self) -> Conditions:
        """Return the conditions towards the end, without noise."""
        late = slice(-max(1, self.num_rows // 4), None)
        slowdown = np.median(self.slowdown[late], axis=0)
        communication = np.median(self.communication[late], axis=0)
        nothing = np.ones(self.cluster.num_workers)
        return Conditions(slowdown, communication, nothing, nothing, nothing)

    @cached_property
    def _stack(self) -> Cluster:
        cluster, rows = self.cluster, self.num_rows
        curves = Curves(
            *(np.tile(getattr(cluster.curves, field.name), (rows, 1)) for field in fields(Curves))
        )
        return replace(
            cluster, workers=list(cluster.workers) * rows, curves=curves,
            cap=np.tile(cluster.cap, rows), bandwidth=np.tile(cluster.bandwidth, rows),
        )  # fmt: skip

    @cached_property
    def _at(self) -> Conditions:
        nothing = np.ones(self.slowdown.size)
        return Conditions(
            self.slowdown.ravel(), self.communication.ravel(), self.noise.ravel(), nothing, nothing
        )


def lowest_levels(enough: Callable[[Floats], Bools], count: int) -> Floats:
    """Return, for each of `count` entries, the lowest level > 0 that is enough.

    >>> lowest_levels(lambda levels: levels >= np.array([0.5, 3.0]), 2).round(3)
    array([0.5, 3. ])
    """
    high = np.ones(count)
    while not enough(high).all():
        high = np.where(enough(high), high, 2 * high)
    low = np.zeros(count)
    while ((high - low) > _PRECISION * high).any():
        middle = low + (high - low) / 2
        good = enough(middle)
        low, high = np.where(good, low, middle), np.where(good, middle, high)
    return high


def case_of_cluster(cluster: Cluster, num_rows: int) -> Case:
    """Return the case of iterations spread over a run, at their times under plain BSP."""
    rows = np.unique(np.linspace(0, cluster.iterations - 1, num_rows).astype(int))
    even = even_sizes(cluster.total, cluster.limits)
    conditions, now, last = [], 0.0, 0
    for row in rows.tolist():
        at = cluster.conditions(row, now)
        conditions.append(at)
        # All iterations since the last row count as long as this one.
        now += float(cluster.times(even, at).max()) * max(row - last, 1)
        last = row
    return Case.of(cluster, conditions)
