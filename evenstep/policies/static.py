"""Sizes that no report changes: `even` (plain BSP) and `static` (shares such as 2:2:2:15)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from evenstep.core import (
    Decision,
    Ints,
    View,
    as_floats,
    even_sizes,
    predict_times,
    require,
    split_proportional,
)
from evenstep.errors import InvalidSetting


@dataclass(frozen=True)
class Even:
    """Sizes that differ by at most one granule; the first workers get the larger ones."""

    uses_speeds: ClassVar[bool] = False

    def init(self, num_workers: int) -> None:
        return None

    def plan(self, view: View, state: None) -> tuple[Decision, None]:
        sizes = even_sizes(view.total, view.limits)
        return Decision(sizes, "even", predict_times(view, sizes)), None

    def remap(self, state: None, keep: Ints) -> None:
        return None


@dataclass(frozen=True)
class Static:
    """Sizes in proportion to fixed shares, one share per worker in the workers' order."""

    shares: tuple[float, ...]

    uses_speeds: ClassVar[bool] = False

    def __post_init__(self) -> None:
        shares = as_floats(self.shares)
        if not len(shares):
            raise InvalidSetting("static shares must be given, one per worker, got none")
        require(np.isfinite(shares) & (shares > 0), "static share must be finite and > 0", shares)

    def init(self, num_workers: int) -> None:
        self._check(num_workers)

    def plan(self, view: View, state: None) -> tuple[Decision, None]:
        self._check(view.num_workers)
        sizes = split_proportional(view.total, as_floats(self.shares), view.limits)
        return Decision(sizes, "static shares", predict_times(view, sizes)), None

    def remap(self, state: None, keep: Ints) -> None:
        self._check(len(keep))

    def _check(self, num_workers: int) -> None:
        if len(self.shares) != num_workers:
            raise InvalidSetting(
                f"static shares must be one per worker ({num_workers}), got {len(self.shares)}"
            )
