"""The boundary between two iterations: learning from the reports of one, planning the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenstep.balancer import Balancer as CoreBalancer
from evenstep.core.plan import Plan
from evenstep.core.report import Reports
from evenstep.policies.policy import even_sizes
from evenstep.pytorch.iteration import Exchanged
from evenstep.pytorch.recording import Recorder
from evenstep.pytorch.saved import Memory, last_reports, remembered, restore, save
from evenstep.pytorch.straggler import StragglerWatch
from evenstep.pytorch.summary import Summary
from evenstep.transports.slots import check_digests, read_rows


class Boundary:
    """What every worker does alike with everybody's reports: so all come to the same plan."""

    def __init__(self, core: CoreBalancer, recorder: Recorder | None) -> None:
        self.core = core
        self.summary = Summary(even_sizes(core.total, core.limits))
        self._recorder = recorder
        self._straggler = StragglerWatch()
        self.last_reports: Reports | None = None

    @property
    def plan(self) -> Plan:
        """The newest plan."""
        return self.core.plan

    @property
    def straggler(self) -> int | None:
        """The worker that the job had better go on without."""
        return self._straggler.found

    def take(self, rows: NDArray[np.float32], done: Exchanged) -> None:
        """Take the rows of all workers about an iteration whose gradients were exchanged."""
        check_digests(rows, done.plan, done.place)
        self.learn(read_rows(rows, done.iteration + 1), done)

    def learn(self, reports: Reports, done: Exchanged) -> None:
        """Learn from the reports about an iteration, and plan anew."""
        self.last_reports = reports
        self.summary.observe(reports, done.plan)
        if self._recorder is not None:
            self._recorder.record(reports, done.plan, done.sizes, done.iteration, done.start)
        if reports.speeds is not None or not self.core.policy.uses_speeds:
            self._straggler.observe(self.core.decide(reports))

    def state(self, iteration: int) -> dict[str, Any]:
        """Return everything learned, for a checkpoint."""
        return save(self.core, self.last_reports, iteration)

    def restore(self, state: Mapping[str, Any], worker: int) -> Memory:
        """Take up a checkpoint, and return what it has on one of the workers."""
        restore(self.core, state)
        self.last_reports = last_reports(state, self.core.workers)
        self._straggler = StragglerWatch()
        return remembered(state, self.core.workers[worker])

    def close(self, iteration: int) -> None:
        """End the run log."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.close(iteration)
