"""The plans of a sharded model: by fixed shares, or by a calibration.

The workers of a sharded model exchange no reports, so a plan holds until the next calibration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.core import UNLIMITED, Ints, Limits, Plan, as_floats, as_ints, even_sizes
from evenstep.core.short_form import require_whole
from evenstep.core.split import split_proportional
from evenstep.errors import StateFileError
from evenstep.policies import Even, Policy, Static
from evenstep.pytorch.calibration import FittedLine, saved_by, split_by_lines
from evenstep.training.checkpoint import Remembered
from evenstep.training.iteration import FinishedIteration
from evenstep.training.report_rows import Row
from evenstep.training.settings import Settings


class CalibratedPlans:
    """Provides the plan of the next iteration, which is the same on all workers."""

    first = 0
    slot_width = 0
    straggler = None

    def __init__(self, settings: Settings, num_workers: int) -> None:
        self.workers = tuple(map(str, range(num_workers)))
        self._total = settings.total
        self._limits = _limits(settings, num_workers)
        self.even = even_sizes(settings.total, self._limits)
        """The sizes of plain BSP."""
        self.policy: Policy[Any] = Even()
        sizes = self.even
        if settings.shares is not None:
            static = self.policy = Static(tuple(float(share) for share in settings.shares))
            static.init(num_workers)
            sizes = split_proportional(self._total, as_floats(static.shares), self._limits)
        self.plan = Plan(0, 0, sizes, reason="start")
        self.lines: tuple[FittedLine, ...] = ()
        """The fitted line of each worker by the last calibration; empty without one."""

    def sizes_by(self, lines: Sequence[FittedLine]) -> Ints:
        """Return the sizes with which all workers finish together."""
        return split_by_lines(self._total, lines, self._limits)

    def adopt(self, sizes: Ints, lines: tuple[FittedLine, ...], upcoming: int) -> None:
        """Use these sizes from an iteration on; unchanged sizes keep the number of the plan."""
        self.lines = lines
        if not np.array_equal(sizes, self.plan.sizes):
            self.plan = Plan(self.plan.number + 1, upcoming, sizes, reason="calibration")

    def slot(self) -> Row:
        """Return nothing: no rows are exchanged."""
        return np.zeros(0, dtype=np.float32)

    def take(self, rows: NDArray[np.float32], done: FinishedIteration) -> None:
        """Learn nothing: no rows are exchanged."""

    def meet(self) -> None:
        """Do nothing: only a calibration changes plans."""

    def state(self, iteration: int) -> dict[str, Any]:
        """Return the plan and the lines, for a checkpoint."""
        return {
            "iteration": iteration,
            "number": self.plan.number,
            "sizes": self.plan.sizes.tolist(),
            "lines": [[line.offset, line.slope] for line in self.lines],
        }

    def restore(self, state: Mapping[str, Any], worker: int) -> Remembered:
        """Restore the plan of a checkpoint of the same number of workers."""
        sizes = as_ints(state["sizes"])
        num_workers = len(self.workers)
        if len(sizes) != num_workers or np.any(sizes < 0) or sizes.sum() != self._total:
            raise StateFileError(
                f"saved sizes must be one per worker ({num_workers}), >= 0, and add up to "
                f"{self._total}, got {sizes.tolist()}"
            )
        if not self._limits.allow(sizes, self._total):
            sizes = split_proportional(self._total, np.maximum(sizes, 1e-3), self._limits)
        self.lines = tuple(FittedLine(offset, slope) for offset, slope in state["lines"])
        self.plan = Plan(int(state["number"]), int(state["iteration"]), sizes, reason="restored")
        return Remembered()

    def note(self, iteration: int, text: str) -> None:
        """Do nothing: there is no run log."""

    def summary(self) -> str:
        """Return one line on the sizes, and on the time that they save by the calibration."""
        sizes = "/".join(map(str, self.plan.sizes.tolist()))
        if not self.lines:
            return f"evenstep: batch sizes {sizes}, not calibrated"
        saved = saved_by(self.plan.sizes, self.even, self.lines)
        return (
            f"evenstep: batch sizes {sizes}; by the calibration, forward and backward passes take "
            f"about {saved:.0%} less time than with even sizes"
        )

    def close(self, iteration: int) -> None:
        """Do nothing: there is no run log."""


def _limits(settings: Settings, num_workers: int) -> Limits:
    require_whole("granularity", settings.granularity)
    maximum = UNLIMITED
    if settings.maximum is not None:
        require_whole("maximum", settings.maximum)
        assert isinstance(settings.maximum, int)
        maximum = settings.maximum
    return Limits.of(num_workers, settings.minimum, maximum, settings.granularity)
