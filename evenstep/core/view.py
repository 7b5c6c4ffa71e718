"""The view: the cluster as a policy sees it at an iteration boundary."""

from __future__ import annotations

from dataclasses import dataclass

from evenstep.core.arrays import Bools, Floats, Ints
from evenstep.core.limits import Limits
from evenstep.core.report import Reports


@dataclass(frozen=True, eq=False)
class View:
    """Arrays with one entry per worker; a policy reads them and changes none."""

    reports: Reports
    """The reports of the workers at this boundary."""
    current: Ints
    """The sizes of the newest plan, which stay in use if the policy changes nothing. They are not
    always the sizes observed, as a plan may take effect some iterations late."""
    speeds: Floats
    """v: the speed predicted for the iteration to be planned, in samples per second."""
    limits: Limits

    @property
    def total(self) -> int:
        return int(self.current.sum())

    @property
    def num_workers(self) -> int:
        return len(self.current)

    @property
    def observed(self) -> Bools:
        return self.reports.observed
