"""Observations: batch sizes and batch processing times of workers, from any source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from evenstep.core import LARGEST_TOTAL, UNLIMITED, Bools, Floats, Ints, require
from evenstep.errors import InvalidSetting
from evenstep.estimates import Estimates, Estimator, estimates_of, follows_speeds
from evenstep.runlog import Header, IterationRow, RunLog

FEWEST = 3
"""Least number of iterations that advice needs."""
SHORTEST, LONGEST = 1e-9, 1e9
"""Shortest and longest plausible time, in seconds."""


@dataclass(frozen=True, eq=False)
class Observations:
    """Matrices of (iterations, workers), NaN where unknown; iterations are in order.

    >>> seen = Observations(["a", "b"], np.full((4, 2), 8.0), np.full((4, 2), 0.5), total=16)
    >>> seen.num_workers, seen.source
    (2, 'measured')
    """

    workers: Sequence[str]
    sizes: Floats
    """x: samples processed; 0 for a worker without a batch."""
    times: Floats
    """t, in seconds, waiting excluded."""
    total: int
    """X: samples of all workers in one iteration."""
    sizes_follow: bool = False
    """Whether sizes followed speeds within the iteration, so that the effect of a size on t cannot
    be separated from the cause of its change."""
    caps: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """x^o of each worker; UNLIMITED where there is none, and by default."""
    source: str = "measured"
    """`measured`, `emulated` or `simulated`."""
    relative: bool = False
    """Whether times have no unit, and only their ratios have a meaning."""
    remarks: Sequence[str] = ()
    """Remarks on the source, for the reader of the advice."""
    recorded: Estimates | None = None
    """The estimates of a run log, where the observations are from one."""

    def __post_init__(self) -> None:
        if self.caps.size == 0:
            object.__setattr__(self, "caps", np.full(self.num_workers, UNLIMITED))
        if self.num_workers < 2:
            names = ", ".join(self.workers) or "none"
            raise InvalidSetting(
                f"balancing takes at least 2 workers, got {self.num_workers} ({names})"
            )
        if not self.num_workers <= self.total <= LARGEST_TOTAL:
            raise InvalidSetting(
                "the total batch must be at least one sample per worker "
                f"({self.num_workers}), and at most {LARGEST_TOTAL}, got {self.total}"
            )
        known = self.known.sum(axis=0)
        bounds = f"from {SHORTEST:g} to {LONGEST:g} s"
        rule = f"a worker must have the times, {bounds}, of at least {FEWEST} iterations"
        require(known >= FEWEST, rule, known, self.workers)

    @property
    def num_workers(self) -> int:
        return len(self.workers)

    @property
    def known(self) -> Bools:
        """Whether a worker had a batch, and its time is known."""
        return (self.times >= SHORTEST) & (self.times <= LONGEST) & (self.sizes > 0)

    def estimates(self) -> Estimates:
        """Return the estimates: those of the run log, or of all observations."""
        found = self.recorded
        if found is None:
            policy = "proportional" if self.sizes_follow else "even"
            estimator = Estimator(Header(
                self.source, "advice", tuple(self.workers), self.total, policy, "none"
            ))  # fmt: skip
            times = np.where(self.known, self.times, np.nan)
            for k, (x, t) in enumerate(zip(self.sizes.astype(np.int64), times, strict=True)):
                estimator.take(IterationRow(k, 0, np.nan, x, t, caps=self.caps))
            found = estimator.estimates("all")
        if found is None or math.isnan(found.gain.value):
            raise InvalidSetting(
                "advice takes at least 6 iterations of a run, and a time of every worker in the "
                "second half, got fewer, or none of some worker"
            )
        return found


def given_sizes(batch_sizes: Sequence[int] | None, num_workers: int, what: str) -> Ints:
    """Return one size per worker; a single number holds for all of them.

    >>> given_sizes([32], 3, "a trace")
    array([32, 32, 32])
    """
    if batch_sizes is None:
        raise InvalidSetting(f"{what} does not say batch sizes: give them (--batch-size 32)")
    if len(batch_sizes) not in (1, num_workers) or min(batch_sizes) < 1:
        raise InvalidSetting(
            f"batch sizes must be one >= 1 for all or for each of {num_workers} workers, "
            f"got {list(batch_sizes)}"
        )
    return np.array(np.broadcast_to(np.asarray(batch_sizes, np.int64), num_workers))


def observations_of(run_log: RunLog) -> Observations:
    """Return the observations of the workers at the end of a run log."""
    if not run_log.segments:
        raise InvalidSetting(
            f"advice takes the times of at least {FEWEST} iterations, got a run log with none"
        )
    segment, total = run_log.parts[-1]
    estimates = estimates_of(run_log)
    remarks = []
    if len(run_log.segments) > 1:
        remarks.append(
            f"Workers joined or left: this is about the {len(segment.workers)} that were there "
            "at the end."
        )
    elif len(run_log.parts) > 1:
        remarks.append(
            f"The total changed: this is about the last {len(segment.iterations)} iterations, "
            f"of {total}."
        )
    if estimates is not None:
        remarks.append(f"Times are means of {estimates.about}.")
    return Observations(
        workers=segment.workers,
        sizes=segment.batch_sizes.astype(np.float64),
        times=segment.times,
        total=total,
        sizes_follow=follows_speeds(run_log.header.policy),
        caps=np.asarray(segment.caps[-1]),
        source=run_log.header.source,
        remarks=tuple(remarks),
        recorded=estimates,
    )
