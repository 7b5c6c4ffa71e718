"""Live estimates of the iteration time of plain BSP and of the optimum, from fitted lines.

The lines are those of `equal_finish`, for any policy of the job: batch processing time against
batch size, worker by worker, learned from the iterations so far. Before sizes have changed, a time
is assumed to be proportional to the size.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable

import numpy as np

from evenstep.core import (
    LARGEST_TOTAL,
    UNLIMITED,
    Floats,
    Ints,
    Limits,
    as_ints,
    remap_rows,
    split_affine,
)
from evenstep.errors import EvenstepError
from evenstep.policies.finish_filter import FinishFilter
from evenstep.runlog import IterationRow

_ALL = 20
"""The first iterations are all used; later, one in `_EVERY` is enough."""
_EVERY = 5
_WORKERS_PER_SKIP = 10
"""With many workers an update costs milliseconds, so that more iterations are skipped."""
_SETTLE = 3
"""Iterations before the first estimate."""
_LAST = 5
"""The median of this number of estimates is shown."""


class LiveEstimates:
    """Follows a job; `plain` and `optimum` are iteration times in seconds, NaN while unknown."""

    def __init__(self, workers: tuple[str, ...]) -> None:
        self._workers = workers
        self._filter = FinishFilter.fresh(len(workers))
        self._seen = 0
        self._all_until = _ALL
        self._plain: deque[float] = deque(maxlen=_LAST)
        self._optimum: deque[float] = deque(maxlen=_LAST)
        self.plain = math.nan
        self.optimum = math.nan

    def change(self, workers: tuple[str, ...]) -> None:
        """Change the workers; the lines of workers that stay are kept."""
        position = {name: i for i, name in enumerate(self._workers)}
        keep = as_ints([position.get(name, -1) for name in workers])
        self._filter = remap_rows(self._filter, FinishFilter.fresh(len(workers)), keep)
        self._workers = workers
        self._all_until = max(_ALL, self._seen + _SETTLE)
        self._plain.clear()
        self._optimum.clear()
        self.plain = self.optimum = math.nan

    def observe(self, row: IterationRow) -> None:
        """Learn from an iteration, unless it is skipped."""
        self._seen += 1
        every = max(_EVERY, len(self._workers) // _WORKERS_PER_SKIP)
        if self._seen > self._all_until and self._seen % every:
            return
        times = np.where((row.batch_sizes > 0) & (row.times > 0), row.times, np.nan)
        self._filter = self._filter.observe(row.batch_sizes, times)
        if self._seen >= _SETTLE and self._filter.seen.any():
            self._estimate(row, times)

    def _estimate(self, row: IterationRow, times: Floats) -> None:
        total = int(row.batch_sizes.sum())
        known = self._filter.filled(row.batch_sizes)
        even = np.full(row.num_workers, total / row.num_workers)
        best = _best(total, known, row)
        self._plain.append(_longest(known, row, times, even))
        self._optimum.append(math.nan if best is None else _longest(known, row, times, best))
        self.plain, self.optimum = _middle(self._plain), _middle(self._optimum)


def _longest(known: FinishFilter, row: IterationRow, times: Floats, sizes: Floats | Ints) -> float:
    """Return the time of this iteration with other sizes.

    Every worker's time is moved along its line, so that it keeps its noise.
    """
    then = known.times_at(sizes)
    moved = np.where(np.isnan(times), then, times * then / known.times_at(row.batch_sizes))
    return float(moved.max())


def _best(total: int, known: FinishFilter, row: IterationRow) -> Ints | None:
    """Return the best sizes that the limits allow, or None."""
    if total > LARGEST_TOTAL:
        return None
    cap = UNLIMITED if row.caps is None else np.maximum(row.caps, 1)
    try:
        limits = Limits.of(row.num_workers, minimum=min(1, total // row.num_workers), cap=cap)
        return split_affine(total, known.offsets(), known.slope, limits)
    except (EvenstepError, AssertionError):
        # There is no split: a total of 0, limits that are too small, or implausible times.
        return None


def _middle(values: Iterable[float]) -> float:
    """Return the median of the known values."""
    known = [value for value in values if math.isfinite(value)]
    return statistics.median(known) if known else math.nan
