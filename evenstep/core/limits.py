"""Limits: the batch sizes that each worker can take."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from evenstep.core.arrays import Ints, as_ints, require
from evenstep.errors import InfeasibleLimits, InvalidSetting

UNLIMITED = 2**53
"""The cap of a worker without one: far above any total, and exact as a float."""


@dataclass(frozen=True, eq=False)
class Limits:
    """The smallest and largest batch size of each worker, and the step between sizes.

    >>> limits = Limits.of(3, cap=[8, 32, 32], granularity=4)
    >>> limits.bounds(total=40)
    (array([4, 4, 4]), array([ 8, 32, 32]))
    """

    minimum: Ints
    """Smallest batch size, in samples; 0 where the worker may be benched."""
    cap: Ints
    """Largest batch size, in samples (the paper's x^o): given, or learned from memory."""
    granularity: int = 1
    """Every batch size is a multiple of this."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "minimum", as_ints(self.minimum))
        object.__setattr__(self, "cap", as_ints(self.cap))
        if self.minimum.shape != self.cap.shape or self.minimum.ndim != 1:
            raise InvalidSetting(
                "limits must give one minimum and one cap per worker, "
                f"got shapes {self.minimum.shape} and {self.cap.shape}"
            )
        if self.granularity < 1:
            raise InvalidSetting(f"granularity must be >= 1, got {self.granularity}")
        require(self.minimum >= 0, "minimum batch size must be >= 0", self.minimum)
        require(self.cap >= 0, "batch size cap must be >= 0", self.cap)

    @classmethod
    def of(
        cls,
        num_workers: int,
        minimum: ArrayLike = 1,
        cap: ArrayLike = UNLIMITED,
        granularity: int = 1,
    ) -> Limits:
        """Make the limits of `num_workers` workers; a single number holds for all of them."""
        return cls(
            np.broadcast_to(as_ints(minimum), num_workers),
            np.broadcast_to(as_ints(cap), num_workers),
            granularity,
        )

    @property
    def num_workers(self) -> int:
        return len(self.minimum)

    def bounds(self, total: int) -> tuple[Ints, Ints]:
        """Return the lowest and highest size per worker, in multiples of the granularity.

        Raises InfeasibleLimits where no plan can keep the total.
        """
        g = self.granularity
        if total % g:
            raise InfeasibleLimits(
                f"the total must be a multiple of the granularity {g}, got {total}"
            )
        lo = -(-self.minimum // g) * g
        cap = self.cap // g * g
        rule = f"the batch size cap must not be below the minimum, in multiples of {g}"
        require(lo <= cap, rule, self.cap, error=InfeasibleLimits)
        hi = np.minimum(cap, total)
        check_feasible(total, lo, hi)
        return lo, hi

    def allow(self, sizes: Ints, total: int) -> bool:
        """Whether sizes keep to these limits."""
        lo, hi = self.bounds(total)
        return bool(np.all((lo <= sizes) & (sizes <= hi) & (sizes % self.granularity == 0)))

    def tighten(
        self, minimum: ArrayLike = 0, cap: ArrayLike = UNLIMITED, granularity: int | None = None
    ) -> Limits:
        """Return limits that satisfy both these and the given ones."""
        if granularity is None:
            granularity = self.granularity
        return Limits(
            np.maximum(self.minimum, as_ints(minimum)),
            np.minimum(self.cap, as_ints(cap)),
            math.lcm(self.granularity, granularity),
        )

    def select(self, keep: Ints) -> Limits:
        """Return the limits of the workers at the positions `keep`."""
        return replace(self, minimum=self.minimum[keep], cap=self.cap[keep])


def check_feasible(total: int, lo: Ints, hi: Ints) -> None:
    """Raise InfeasibleLimits unless some sizes between `lo` and `hi` add up to `total`."""
    if total < int(lo.sum()):
        raise InfeasibleLimits(
            f"the minimum batch sizes of {len(lo)} workers add up to {int(lo.sum())}, "
            f"more than the total {total}"
        )
    if total > int(hi.sum()):
        raise InfeasibleLimits(
            f"the batch size caps of {len(hi)} workers add up to {int(hi.sum())}, "
            f"less than the total {total}"
        )
