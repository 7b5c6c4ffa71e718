"""Workers on cores that other processes use too, in virtual time.

An iteration has a part that does not depend on the batch size. A neighbour, always ready to run,
stays on one core for a while and then moves to the next; on its core, worker and neighbour
take turns of a few milliseconds. So short iterations are hit rarely and hard, and how much a
worker loses has little to do with its batch size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.core import Floats, Ints, Policy, Reports
from evenstep.core.planner import Planner
from evenstep.predictors import make_predictor

SAMPLES = 32
"""The even batch size."""
TURN = 0.004
"""Seconds for which one process runs before the other one does."""
PAUSE = 0.0005
"""Seconds of an iteration in which no worker computes."""


@dataclass(frozen=True)
class Job:
    """Workers that compute the same on cores of these speeds."""

    period: float
    """Seconds of an even iteration at speed 1, with nothing else on the core."""
    overhead: float = 0.2
    """The part of it that does not depend on the batch size."""
    dwell: float = 0.0
    """Seconds for which the neighbour stays on a core, on average; 0 for no neighbour."""
    spikes: float = 0.02
    """The part of the iterations that a short-lived process interrupts."""
    noise: float = 0.08
    speeds: tuple[float, ...] = (1.0, 1.0)


class Cores:
    """The cores: their neighbour, its turns, and the share that workers got."""

    def __init__(self, job: Job, seed: int) -> None:
        self._job = job
        self._rng = np.random.default_rng(seed)
        self._clock = 0.0
        self._host = 0
        self._moves_at = 0.0
        self._turn = np.full(len(job.speeds), TURN)
        self.share = np.ones(len(job.speeds))
        """c of the last iteration."""

    def run(self, sizes: Ints) -> Floats:
        """Return the batch processing times of an iteration."""
        job, rng = self._job, self._rng
        n = len(sizes)
        work = job.overhead + (1 - job.overhead) * sizes / SAMPLES / np.array(job.speeds)
        work = job.period * work * np.exp(job.noise * rng.standard_normal(n))
        lost = (rng.random(n) < job.spikes) * rng.exponential(TURN, n)
        if job.dwell:
            lost += [self._taken(worker, float(work[worker])) for worker in range(n)]
        times: Floats = work + lost
        # A worker that waits for the others may run for longer afterwards.
        self._turn = np.minimum(self._turn + times.max() - times + PAUSE, TURN)
        self._clock += float(times.max()) + PAUSE
        self.share = np.maximum(work / times, 0.01)
        return times

    def _taken(self, worker: int, work: float) -> float:
        """Return the time that the neighbour takes from a worker."""
        taken = 0.0
        while self._host_at(self._clock + taken) == worker and work > self._turn[worker]:
            work -= self._turn[worker]
            taken += TURN
            self._turn[worker] = TURN
        self._turn[worker] -= min(work, self._turn[worker])
        return taken

    def _host_at(self, clock: float) -> int:
        while clock >= self._moves_at:
            self._host = (self._host + 1) % len(self._turn)
            self._moves_at += self._rng.exponential(self._job.dwell)
        return self._host


def play(job: Job, policy: Policy[Any], seed: int, iterations: int) -> tuple[Ints, Floats]:
    """Return sizes and times, (iteration, worker), of a job under a policy and `best_of`."""
    n = len(job.speeds)
    cores = Cores(job, seed)
    predictor = make_predictor("best_of", n) if policy.uses_speeds else None
    planner = Planner([f"w{i}" for i in range(n)], SAMPLES * n, policy, predictor)
    free, unknown = np.full(n, 0.95), np.full(n, np.nan)
    reports = Reports(0, np.zeros(n, dtype=np.int64), unknown, cores.share, free, unknown)
    all_sizes, all_times = [], []
    for k in range(iterations):
        sizes = planner.decide(reports).sizes
        times = cores.run(sizes)
        reports = Reports(k + 1, sizes, times, cores.share, free, unknown)
        all_sizes.append(sizes)
        all_times.append(times)
    return np.array(all_sizes), np.array(all_times)
