"""Own times: batch processing times of workers that are each in an iteration of their own."""

from __future__ import annotations

from evenstep.core import Ints
from evenstep.simulator.clusters.cluster import Cluster


class AsyncTimes:
    """The time of one worker in its iteration k, with batch sizes that stay.

    A cluster works its times out for all workers at once; where they do not depend on the clock,
    they are kept until the last worker has been through iteration k.
    """

    def __init__(self, cluster: Cluster, sizes: Ints) -> None:
        self._cluster = cluster
        self._sizes = sizes
        self._follows_clock = cluster.environment.follows_clock
        self._kept: dict[int, list[float]] = {}
        self._asked: dict[int, int] = {}

    def time(self, worker: int, iteration: int, now: float) -> float:
        """Return t, in seconds; each worker asks once for each of its iterations."""
        if self._follows_clock:
            return self._times(iteration, now)[worker]
        if iteration not in self._kept:
            self._kept[iteration] = self._times(iteration, now)
            self._asked[iteration] = 0
        time = self._kept[iteration][worker]
        self._asked[iteration] += 1
        if self._asked[iteration] == len(self._sizes):
            del self._kept[iteration], self._asked[iteration]
        return time

    def _times(self, iteration: int, now: float) -> list[float]:
        at = self._cluster.conditions(iteration, now)
        times: list[float] = self._cluster.times(self._sizes, at).tolist()
        return times
