"""The summary: what balancing gained, estimated from the lines fitted to each worker's times."""

from __future__ import annotations

import numpy as np

from evenstep.core.arrays import Floats, Ints
from evenstep.core.plan import Plan
from evenstep.core.report import Reports
from evenstep.policies.finish_filter import FinishFilter

_SETTLE = 5
"""Iterations before estimates count: the lines must be known first."""
_ALL, _EVERY = 20, 5
"""So many iterations are all looked at; later, one in so many is enough for an estimate."""


class Summary:
    """Adds up what every iteration took, would have taken evenly, and would take as proposed."""

    def __init__(self, even: Ints) -> None:
        self._even = even
        self._filter = FinishFilter.fresh(len(even))
        self._seen = 0
        self._count = 0
        self._actual = _Tally()
        self._plain = _Tally()
        self._proposed = _Tally()
        self._last: Plan | None = None

    def observe(self, reports: Reports, plan: Plan) -> None:
        """Add the iteration that was run under `plan`."""
        self._seen += 1
        if self._seen > _ALL and self._seen % _EVERY:
            return
        self._filter = self._filter.observe(reports.batch_sizes, reports.times)
        self._last = plan
        if not reports.observed.all():
            return
        self._count += 1
        if self._count <= _SETTLE:
            return
        # The work of this iteration, be it a tail, of accumulated batches, or of long samples.
        work = reports.batch_sizes.sum() / plan.sizes.sum()
        self._actual.add(reports.times)
        self._plain.add(self._filter.times_at(self._even * work))
        sizes = plan.sizes if plan.proposed is None else plan.proposed
        self._proposed.add(self._filter.times_at(sizes * work))

    def line(self) -> str:
        """Return the summary in one line."""
        if self._last is None or not self._actual.time:
            return "evenstep: too few iterations for a summary"
        if self._last.proposed is not None:
            saved = 1 - self._proposed.time / self._actual.time
            sizes = "/".join(map(str, self._last.proposed.tolist()))
            return (
                f"evenstep (observe only): with batch sizes {sizes} instead of even ones, "
                f"iterations would take about {saved:.0%} less time (estimate from fitted lines); "
                f"{self._actual.waiting:.0%} of the workers' time is spent waiting"
            )
        saved = 1 - self._actual.time / self._plain.time
        sizes = "/".join(map(str, self._last.sizes.tolist()))
        gain = (
            f"about {saved:.0%} of the iteration time saved"
            if saved >= 0 else f"iterations about {-saved:.0%} longer than with it"
        )  # fmt: skip
        return (
            f"evenstep: batch sizes {sizes}; waiting {self._actual.waiting:.0%} of the workers' "
            f"time, about {self._plain.waiting:.0%} with plain BSP; {gain} "
            "(estimates from fitted lines)"
        )


class _Tally:
    """Iteration times and waiting, added up."""

    def __init__(self) -> None:
        self.time = 0.0
        self._worked = 0.0

    def add(self, times: Floats) -> None:
        self.time += float(times.max())
        self._worked += float(np.mean(times))

    @property
    def waiting(self) -> float:
        """The share of the workers' time that is spent waiting."""
        return 1 - self._worked / self.time if self.time else 0.0
