"""Batch processing times of asynchronous workers, each in its own iteration."""

from __future__ import annotations

from evenstep.core import Ints
from evenstep.simulator.clusters.cluster import Cluster


class AsyncTimes:
    """Returns the time of one worker in its iteration k, with constant batch sizes.

    A cluster computes its times for all workers at once. If they do not depend on the clock, they
    are cached until the last worker has started iteration k.
    """

    def __init__(self, cluster: Cluster, sizes: Ints) -> None:
        self._cluster = cluster
        self._sizes = sizes
        self._follows_clock = cluster.environment.follows_clock
        self._cached: dict[int, list[float]] = {}
        self._num_reads: dict[int, int] = {}

    def time(self, worker: int, iteration: int, now: float) -> float:
        """Return t, in seconds; to be called once per worker and iteration."""
        if self._follows_clock:
            return self._times(iteration, now)[worker]
        if iteration not in self._cached:
            self._cached[iteration] = self._times(iteration, now)
            self._num_reads[iteration] = 0
        time = self._cached[iteration][worker]
        self._num_reads[iteration] += 1
        if self._num_reads[iteration] == len(self._sizes):
            del self._cached[iteration], self._num_reads[iteration]
        return time

    def _times(self, iteration: int, now: float) -> list[float]:
        at = self._cluster.conditions(iteration, now)
        times: list[float] = self._cluster.times(self._sizes, at).tolist()
        return times
