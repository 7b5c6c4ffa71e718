"""Observations: batch sizes and batch processing times of workers, wherever they were recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from evenstep.core.arrays import Floats, Ints, require
from evenstep.core.limits import UNLIMITED
from evenstep.core.split import LARGEST_TOTAL
from evenstep.errors import InvalidSetting

FEWEST = 3
"""Iterations below which nothing can be said."""
SHORTEST, LONGEST = 1e-9, 1e9
"""Seconds between which a time is believed: no clock has given others."""


@dataclass(frozen=True, eq=False)
class Observations:
    """Matrices of (iterations, workers), NaN where nothing is known; all iterations in order.

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
    """Whether sizes were made to follow speeds within the iteration, so that what a change of
    size did to t cannot be told from what made the size change."""
    caps: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """x^o of each worker; UNLIMITED where it has none, as it is if not given."""
    source: str = "measured"
    """`measured`, `emulated` or `simulated`."""
    relative: bool = False
    """Whether times have no unit, and only their ratios mean anything."""
    remarks: Sequence[str] = ()
    """What a reader of the advice must know about where this comes from."""

    def __post_init__(self) -> None:
        if self.caps.size == 0:
            object.__setattr__(self, "caps", np.full(self.num_workers, UNLIMITED))
        if self.num_workers < 2:
            raise InvalidSetting(
                f"balancing takes at least 2 workers, got {self.num_workers} ({self._names()})"
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
    def known(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Whether a worker had a batch, and its time is known."""
        usable = (self.times >= SHORTEST) & (self.times <= LONGEST) & (self.sizes > 0)
        known: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] = usable
        return known

    def _names(self) -> str:
        return ", ".join(self.workers) or "none"
