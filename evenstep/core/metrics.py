"""Metrics of a run, from arrays with one row per iteration.

Shares are fractions (0.012, not 1.2). A metric is None if the event never happened.
"""

from __future__ import annotations

import numpy as np

from evenstep.core.arrays import Floats, Ints

_SETTLED_SHARE = 0.95


def waiting_share(times: Floats) -> float:
    """Return the part of all workers' time that is spent waiting.

    >>> waiting_share(np.array([[1.0, 2.0]]))
    0.25
    """
    return float(1 - times.sum() / (times.max(axis=1).sum() * times.shape[1]))


def per_update_time(iteration_times: Floats, num_workers: int) -> float:
    """Return the average time in which one gradient update arrives (section 5.1)."""
    return float(iteration_times.mean() / num_workers)


def time_over(iteration_times: Floats, reference: Floats) -> float:
    """Return how long a run takes relative to another: 1.02 is 2 % longer."""
    return float(iteration_times.sum() / reference.sum())


def waste(iteration_times: Floats, optimum: Floats) -> float:
    """Return ``sum(M - M*) / sum M*``: the share of time lost against the optimum."""
    return time_over(iteration_times, optimum) - 1


def settling(iteration_times: Floats, optimum: Floats, within: float) -> int | None:
    """Return after how many iterations the run has settled within a share of the optimum.

    That is the first iteration that is within, and from which on 95 % of the iterations are.

    >>> settling(np.array([2.0, 1.3, 1.0, 1.01]), np.ones(4), within=0.05)
    2
    """
    good = iteration_times <= (1 + within) * optimum
    remaining = np.arange(len(good), 0, -1)
    share_from = np.cumsum(good[::-1])[::-1] / remaining
    settled = np.flatnonzero(good & (share_from >= _SETTLED_SHARE))
    return int(settled[0]) if len(settled) else None


def changes_per_100(sizes: Ints) -> float | None:
    """Return in how many of 100 iterations the sizes differ from those before.

    >>> changes_per_100(np.array([[4, 4], [5, 3], [5, 3], [5, 3], [5, 3]]))
    25.0
    """
    if len(sizes) < 2:
        return None
    return float(100 * np.any(np.diff(sizes, axis=0) != 0, axis=1).mean())


def overruns(sizes: Ints, cap: Ints) -> int:
    """Return how often a worker was given more than its memory holds."""
    return int((sizes > cap).sum())


def rmse(predicted: Floats, actual: Floats) -> float | None:
    """Return the mean over workers of each one's root-mean-square error.

    >>> rmse(np.array([[1.0, 5.0], [1.0, 5.0]]), np.array([[1.0, 8.0], [1.0, 1.0]]))
    1.7677669529663689
    """
    error = predicted - actual
    known = np.isfinite(error)
    workers = known.any(axis=0)
    if not workers.any():
        return None
    squares = np.where(known, error, 0.0)[:, workers] ** 2
    return float(np.sqrt(squares.sum(axis=0) / known[:, workers].sum(axis=0)).mean())
