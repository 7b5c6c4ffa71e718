"""Linear state space models of log speeds, followed by a Kalman filter, for all workers at once.

    y = level + Z s        s' = T s + w,  w ~ N(0, Q)

y is observed without further noise; `design` is Z, the same for all workers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from evenstep.core.arrays import Bools, Floats

_LEAST_VARIANCE = 1e-12


@dataclass(frozen=True, eq=False)
class StateSpaces:
    """One model per worker; states and covariances are those predicted for the next value."""

    level: Floats
    transition: Floats
    """T, (worker, state, state)."""
    disturbance: Floats
    """Q, (worker, state, state)."""
    state: Floats
    """s, (worker, state)."""
    cov: Floats
    """The covariance of s, (worker, state, state)."""

    @classmethod
    def zeros(cls, num_workers: int, num_states: int) -> StateSpaces:
        transition, disturbance, cov = np.zeros((3, num_workers, num_states, num_states))
        state = np.zeros((num_workers, num_states))
        return cls(np.zeros(num_workers), transition, disturbance, state, cov)

    def expected(self, design: Floats) -> Floats:
        """Return the expectation of the next value."""
        expected: Floats = self.level + self.state @ design
        return expected

    @property
    def sound(self) -> Bools:
        """Which models have numbers for states: one that is unstable loses them some day."""
        numbers = np.concatenate([self.state[:, None], self.cov], axis=1)
        sound: Bools = np.isfinite(numbers).all(axis=(1, 2))
        return sound

    @np.errstate(over="ignore", invalid="ignore")
    def followed(self, design: Floats, values: Floats, new: Bools) -> StateSpaces:
        """Return the models one value further, for those workers that have a new one.

        F = Z P Z'                    K = T P Z' / F
        s' = T s + K (y - Z s)        P' = T P T' - K F K' + Q
        """
        T, P = self.transition, self.cov
        P_design = P @ design
        F = np.maximum(P_design @ design, _LEAST_VARIANCE)
        innovation = np.where(new, values - self.expected(design), 0.0)
        gain = _times(T, P_design) / F[:, None]
        state = _times(T, self.state) + gain * innovation[:, None]
        taken = gain[:, :, None] * (F[:, None] * gain)[:, None, :]
        cov = T @ P @ T.swapaxes(1, 2) - taken + self.disturbance
        return replace(
            self,
            state=np.where(new[:, None], state, self.state),
            cov=np.where(new[:, None, None], cov, P),
        )


def _times(matrices: Floats, vectors: Floats) -> Floats:
    product: Floats = (matrices @ vectors[:, :, None])[:, :, 0]
    return product
