"""A cluster: workers with their curves and limits, in an environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from evenstep.core import UNLIMITED, Floats, Ints, Limits, require, split_monotone
from evenstep.errors import InvalidSetting
from evenstep.policies import default_policy
from evenstep.simulator.clusters.conditions import Conditions, Environment
from evenstep.simulator.clusters.curves import Curves

_RESIDENT_MEMORY = 0.3
"""Share of a device's memory that the model takes, independent of the batch size."""


@dataclass(frozen=True, eq=False)
class Cluster:
    """The true behaviour of all workers; policies see only what workers report.

    >>> from evenstep.simulator.clusters.scenarios import gpu
    >>> cluster = gpu(num_workers=4, iterations=500, seed=0, noisy=False)
    >>> cluster.optimum(cluster.conditions(0, now=0.0))
    array([89, 21, 12,  6])
    """

    name: str
    workers: Sequence[str]
    curves: Curves
    cap: Ints
    """x^o: the batch size that just fits into each worker's memory."""
    environment: Environment
    total: int
    """X: samples of all workers in one iteration."""
    iterations: int
    """Default length of a run."""
    score_from: int = 0
    """The first iteration that counts in the figures; predictors learn before it."""
    changes_at: int | None = None
    """The iteration of the first scheduled change, where there is one."""
    policy: str = default_policy()
    """The policy to use, unless the user says otherwise."""
    minimum: int = 1
    granularity: int = 1
    overlapped: bool = False
    """Whether workers communicate while they compute; otherwise after it."""
    bandwidth: Floats = field(default_factory=lambda: np.empty(0))
    """Network bandwidth of each worker in bytes per second; NaN where unknown, the default."""

    def __post_init__(self) -> None:
        if self.bandwidth.size == 0:
            object.__setattr__(self, "bandwidth", np.full(self.num_workers, np.nan))
        if self.bandwidth.shape != (self.num_workers,):
            raise InvalidSetting(
                f"bandwidth must have {self.num_workers} entries, one per worker, "
                f"got shape {self.bandwidth.shape}"
            )
        require(
            np.isnan(self.bandwidth) | (self.bandwidth > 0), "bandwidth must be > 0", self.bandwidth
        )

    @property
    def num_workers(self) -> int:
        return len(self.workers)

    @property
    def limits(self) -> Limits:
        """The limits that a user would configure; memory caps are not included, they show in m."""
        return Limits.of(self.num_workers, self.minimum, granularity=self.granularity)

    def conditions(self, iteration: int, now: float) -> Conditions:
        return self.environment.conditions(iteration, now)

    def expected_times(self, sizes: Ints, at: Conditions) -> Floats:
        """Return the batch processing times without noise; 0 for a worker of size 0."""
        computation = at.slowdown * self.curves.times_at(sizes)
        if self.overlapped:
            times = np.maximum(at.communication, computation)
        else:
            times = at.communication + computation
        return np.where(sizes > 0, times, 0.0)

    def times(self, sizes: Ints, at: Conditions) -> Floats:
        """Return the batch processing times with noise."""
        return self.expected_times(sizes, at) * at.noise

    def device_memory(self, sizes: Ints) -> Floats:
        """Return the share of memory in use with these sizes; NaN for a worker without a cap."""
        used = _RESIDENT_MEMORY + (1 - _RESIDENT_MEMORY) * sizes / np.maximum(self.cap, 1)
        return np.where(self.cap < UNLIMITED, np.minimum(used, 1.0), np.nan)

    def optimum(self, at: Conditions) -> Ints:
        """Return the best sizes when everything but the noise is known."""
        return self._best(at, np.ones(self.num_workers))

    def oracle(self, at: Conditions) -> Ints:
        """Return the best sizes when the noise is known too."""
        return self._best(at, at.noise)

    def largest(self, times: Floats, at: Conditions) -> Ints:
        """Return the largest size that each worker finishes within its time, without noise.

        At most the total; negative where no size fits.
        """
        left = times if self.overlapped else times - at.communication
        sizes = self.curves.largest_within(left / at.slowdown)
        sizes = np.where(times < at.communication, -1.0, sizes)
        # A size that fits exactly must not be lost to a rounding error.
        return np.floor(np.minimum(sizes, self.total) * (1 + 1e-12)).astype(np.int64)

    def _best(self, at: Conditions, noise: Floats) -> Ints:
        return split_monotone(
            self.total,
            lambda level: self.largest(level / noise, at),
            self.limits.tighten(cap=self.cap),
        )
