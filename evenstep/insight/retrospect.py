"""The retrospect: the estimates of a whole run log, and their lines for its pictures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.core import Floats
from evenstep.estimates import Estimates, Estimator, follow
from evenstep.insight.thinning import group_medians, group_size
from evenstep.runlog.run_log import RunLog, Segment

_ENTRIES = 60_000
"""Times (points x workers) of a line."""


@dataclass(frozen=True, eq=False)
class Retrospect:
    """The figures of a run, and iteration times that plain BSP and the optimum would have had."""

    estimates: Estimates | None
    """Of the settled iterations; None before any time is known."""
    plain: Floats
    """A line: seconds with even sizes, one per iteration of the run log; NaN where unknown."""
    optimum: Floats
    """A line: seconds with the best sizes."""


def look_back(run_log: RunLog) -> Retrospect:
    """Return the estimates of a run log."""
    estimates = None
    lines = [np.zeros((2, 0))]
    for segment, estimator in follow(run_log):
        lines.append(_lines(segment, estimator))
        estimates = estimator.estimates()
    plain, optimum = np.concatenate(lines, axis=1)
    return Retrospect(estimates, plain, optimum)


def _lines(segment: Segment, estimator: Estimator) -> Floats:
    """Return the two lines of a part of the run; of a long one, neighbours are grouped."""
    length, count = segment.times.shape
    every = max(group_size(length), -(-length * count // _ENTRIES))
    sizes = np.rint(group_medians(segment.batch_sizes.astype(np.float64), every))
    times = group_medians(segment.times, every)
    real = np.fmax.reduce(times, axis=1)
    ratios = np.stack(estimator.compare(sizes.astype(np.int64), times)) / real
    lines: Floats = np.repeat(ratios, every, axis=1)[:, :length] * segment.iteration_times
    return lines
