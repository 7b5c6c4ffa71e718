"""Observations and clusters for the tests."""

from __future__ import annotations

import numpy as np

from evenstep.insight.advice import Observations


def seen(offsets, slopes, sizes, noise=0.0, seed=0, **changes) -> Observations:
    """Observe workers with known lines at these sizes, one row per iteration."""
    sizes = np.asarray(sizes, dtype=float)
    rng = np.random.default_rng(seed)
    factors = np.exp(noise * rng.standard_normal(sizes.shape))
    times = np.where(
        sizes > 0, (np.asarray(offsets) + np.asarray(slopes) * sizes) * factors, np.nan
    )
    workers = [f"w{i}" for i in range(sizes.shape[1])]
    total = changes.pop("total", int(sizes[0].sum()))
    return Observations(workers, sizes, times, total, **changes)
