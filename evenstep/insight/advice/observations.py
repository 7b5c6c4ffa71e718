"""Observations: batch sizes and batch processing times of workers, from any source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from evenstep.core import LARGEST_TOTAL, UNLIMITED, Bools, Floats, Ints, require
from evenstep.errors import EvenstepError, InvalidSetting
from evenstep.policies import make_policy
from evenstep.runlog import RunLog

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


WARM_UP = 2
"""First iterations that are left out of a real run with many more iterations."""

_ENTRIES = 200_000
"""Times (iterations x workers) that are used: the latest ones."""


def observations_of(run_log: RunLog) -> Observations:
    """Return the observations of the workers at the end of a run log, without warm-up."""
    if not run_log.segments:
        raise InvalidSetting(
            f"advice takes the times of at least {FEWEST} iterations, got a run log with none"
        )
    segment, total = run_log.parts[-1]
    length = len(segment.iterations)
    most = max(50, _ENTRIES // len(segment.workers))
    warms_up = run_log.header.source != "simulated" and len(run_log.parts) == 1
    first = WARM_UP if warms_up and length > 5 * WARM_UP else 0
    rows = slice(max(first, length - most), None)
    remarks = []
    if len(run_log.segments) > 1:
        remarks.append(
            f"Workers joined or left: this is about the {len(segment.workers)} that were there "
            "at the end."
        )
    elif len(run_log.parts) > 1:
        remarks.append(
            f"The total changed: this is about the last {length} iterations, of {total}."
        )
    elif length - first > most:
        remarks.append(f"This is about the last {most} iterations.")
    return Observations(
        workers=segment.workers,
        sizes=segment.batch_sizes[rows].astype(np.float64),
        times=segment.times[rows],
        total=total,
        sizes_follow=follows_speeds(run_log.header.policy),
        caps=np.asarray(segment.caps[-1]),
        source=run_log.header.source,
        remarks=tuple(remarks),
    )


def follows_speeds(policy: str) -> bool:
    """Whether the sizes of a run with this policy come from predicted speeds.

    >>> follows_speeds("proportional"), follows_speeds("equal_finish"), follows_speeds("their own")
    (True, False, False)
    """
    try:
        return make_policy(policy).uses_speeds
    except EvenstepError:
        return False
