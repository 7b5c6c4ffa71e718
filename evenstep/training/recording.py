"""Recording: worker 0 writes the run log, as it knows everybody's reports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone

import numpy as np

from evenstep.balancer import Balancer
from evenstep.core.arrays import Ints
from evenstep.core.plan import Plan
from evenstep.core.report import Reports
from evenstep.policies import short_form
from evenstep.runlog import Event, Header, IterationRow, RunLogWriter


class Recorder:
    """Writes each iteration once its reports are known; an error of the disk ends the log only."""

    def __init__(self, path: str, header: Header) -> None:
        self._writer: RunLogWriter | None = RunLogWriter(path, header)
        self._before: Reports | None = None
        self.failure: OSError | None = None

    def record(
        self, reports: Reports, plan: Plan, sizes: Ints, iteration: int, start: float
    ) -> None:
        """Write an iteration, with the plan that it ran under and the sizes really used.

        The reports have its times, but the usage at the start of the next iteration, and the
        speeds predicted for that one: its own came with the reports before.
        """
        before, self._before = self._before, reports
        if before is not None and before.iteration != iteration:
            before = None
        slowest = np.nanmax(reports.times) if reports.observed.any() else np.nan
        row = IterationRow(
            iteration=iteration,
            plan=plan.number,
            start=start,
            batch_sizes=sizes,
            times=reports.times,
            waiting=slowest - reports.times,
            predicted_speeds=None if before is None else before.speeds,
            cpu=None if before is None else before.cpu,
            memory=None if before is None else before.memory,
            device_memory=reports.device_memory,
        )
        with self._writing() as writer:
            if writer is not None:
                writer.plan(plan, iteration)
                writer.iteration(row)

    def note(self, iteration: int, text: str) -> None:
        """Write what happened at the boundary of an iteration."""
        with self._writing() as writer:
            if writer is not None:
                writer.event(Event("note", iteration, text=text))

    def close(self, iteration: int) -> None:
        with self._writing() as writer:
            if writer is not None:
                writer.event(Event("end", iteration))
                writer.close()
        self._writer = None

    @contextmanager
    def _writing(self) -> Iterator[RunLogWriter | None]:
        try:
            yield self._writer
        except OSError as error:
            self.failure, self._writer = error, None


def make_recorder(
    path: str | None, balancer: Balancer, source: str, mode: str, predictor: str, job: str = "ddp"
) -> Recorder | None:
    """Return the recorder of a training with the settings of a balancer, if it has a path."""
    if path is None:
        return None
    header = Header(
        source=source,
        job=job,
        workers=balancer.workers,
        total=balancer.total,
        policy=short_form(balancer.policy),
        predictor=predictor,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        settings={"mode": mode},
    )
    return Recorder(path, header)
