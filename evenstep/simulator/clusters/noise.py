"""Noise: the unpredictable part of batch processing times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from evenstep.core import Floats, as_floats
from evenstep.errors import InvalidSetting


@dataclass(frozen=True)
class WorkerNoise:
    """The noise of one worker: lognormal, with occasional spikes."""

    sigma: float = 0.0
    """Standard deviation of the logarithm of the time."""
    spike_probability: float = 0.0
    """Per iteration."""
    spike: tuple[float, float] = (1.5, 3.0)
    """A spike multiplies the time by a uniform number from this range."""

    def __post_init__(self) -> None:
        if not 0 <= self.sigma < np.inf:
            raise InvalidSetting(f"sigma must be finite and >= 0, got {self.sigma}")
        if not 0 <= self.spike_probability <= 1:
            raise InvalidSetting(
                f"spike_probability must be from 0 to 1, got {self.spike_probability}"
            )
        low, high = self.spike
        if not 0 < low <= high < np.inf:
            raise InvalidSetting(
                f"spike must be two factors > 0, the lower one first, got {low} and {high}"
            )


QUIET = WorkerNoise()
_KEPT = 4096
"""Largest number of iterations in the cache of factors."""


@dataclass(frozen=True, eq=False)
class Noise:
    """The random factors on the times of all workers."""

    sigma: Floats
    spike_probability: Floats
    spike_low: Floats
    spike_high: Floats
    seed: int
    _drawn: dict[int, Floats] = field(default_factory=dict, repr=False)
    """Cache by iteration: asynchronous workers request the same iteration repeatedly."""

    @classmethod
    def of(cls, workers: Sequence[WorkerNoise], seed: int) -> Noise:
        """Collect the noise of every worker in arrays.

        >>> Noise.of([QUIET] * 3, seed=0).factors(iteration=7)
        array([1., 1., 1.])
        """
        if seed < 0:
            raise InvalidSetting(f"seed must be >= 0, got {seed}")
        return cls(
            sigma=as_floats([noise.sigma for noise in workers]),
            spike_probability=as_floats([noise.spike_probability for noise in workers]),
            spike_low=as_floats([noise.spike[0] for noise in workers]),
            spike_high=as_floats([noise.spike[1] for noise in workers]),
            seed=seed,
        )

    def factors(self, iteration: int) -> Floats:
        """Return the factors of one iteration; they depend only on it and the seed."""
        if iteration not in self._drawn:
            if len(self._drawn) >= _KEPT:
                self._drawn.clear()
            self._drawn[iteration] = self._draw(iteration)
        return self._drawn[iteration]

    def _draw(self, iteration: int) -> Floats:
        num_workers = len(self.sigma)
        rng = np.random.default_rng((self.seed, iteration))
        factors = np.exp(self.sigma * rng.standard_normal(num_workers))
        spiked = rng.random(num_workers) < self.spike_probability
        spikes = rng.uniform(self.spike_low, self.spike_high)
        return np.where(spiked, factors * spikes, factors)
