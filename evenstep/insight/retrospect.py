"""The retrospect: iteration times that plain BSP and the optimum would have had in a run.

They come from lines fitted to the run itself (`recorded.py`). Neighbouring iterations of a long run
are grouped; the real iteration time is scaled by the effect of other sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.core import Floats
from evenstep.errors import EvenstepError
from evenstep.insight.advice.observations import Observations, follows_speeds
from evenstep.insight.advice.recorded import LASTS, case_of
from evenstep.insight.thinning import group_medians, group_size
from evenstep.runlog.run_log import RunLog, Segment

_ENTRIES = 60_000
"""Times (points x workers) that are used."""


def look_back(run_log: RunLog) -> Estimates:
    """Return the estimates of all iterations."""
    policy = run_log.header.policy
    pieces = [_look_back(policy, segment, total) for segment, total in run_log.parts]
    nothing = np.zeros((2, 0))
    plain, optimum = np.concatenate([nothing, *pieces], axis=1)
    return Estimates(plain, optimum)


def _look_back(policy: str, segment: Segment, total: int) -> Floats:
    """Return the two estimates of the iterations of a segment with one total, as rows."""
    length, count = segment.times.shape
    if count == 1:
        # A single worker has the whole batch: plain BSP and the optimum are the same.
        return np.stack([segment.iteration_times] * 2)
    unknown = np.full((2, length), np.nan)
    every = max(group_size(length), -(-length * count // _ENTRIES))
    sizes = group_medians(segment.batch_sizes.astype(np.float64), every)
    try:
        seen = Observations(
            segment.workers, sizes, group_medians(segment.times, every), total,
            caps=np.asarray(segment.caps[-1]), sizes_follow=follows_speeds(policy),
        )  # fmt: skip
        # A policy that follows speeds within the iteration is compared with known speeds.
        case = case_of(seen, 1 if seen.sizes_follow else LASTS)
        best = case.best_iteration_times()
    except EvenstepError:
        # Too few iterations, or limits that were broken: there is no estimate.
        return unknown
    real = case.times(np.maximum(np.round(sizes), 0).astype(np.int64)).max(axis=1)
    others = np.stack([case.times(case.even).max(axis=1), best])
    ratios = np.repeat(others / np.where(real > 0, real, np.nan), every, axis=1)[:, :length]
    estimates: Floats = ratios * segment.iteration_times
    return estimates


@dataclass(frozen=True, eq=False)
class Estimates:
    """Iteration times, in seconds, one per iteration of a run log; NaN where unknown."""

    plain: Floats
    """With even sizes."""
    optimum: Floats
    """With the best sizes."""
