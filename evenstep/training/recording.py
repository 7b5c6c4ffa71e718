"""Recording: what was reported, for the summary and for the run log that worker 0 writes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import TypeVar

import numpy as np

from evenstep.core.arrays import Ints
from evenstep.core.attribution import Attribution
from evenstep.core.plan import Plan
from evenstep.core.planner import Planner
from evenstep.core.report import Reports
from evenstep.policies import short_form
from evenstep.runlog import Event, Header, IterationRow, RunLogWriter
from evenstep.runlog.loggers import Logger
from evenstep.training.exchanged import Exchanged
from evenstep.training.summary import Summary

T = TypeVar("T")


Output = str | os.PathLike[str] | Logger
Log = Output | Sequence[Output]
"""Where a training is recorded: the path of a run log, a logger, or several of them."""

_log = logging.getLogger(__name__)


class Recorder:
    """Writes each iteration once its reports are known.

    A run log or logger that fails ends, with a warning; the training and the others go on.
    """

    def __init__(self, log: Log, header: Header) -> None:
        self._workers = tuple(header.workers)
        outputs = [log] if isinstance(log, str) or not isinstance(log, Sequence) else log
        self._writers: list[RunLogWriter] = []
        self._loggers: list[Logger] = []
        for output in outputs:
            if isinstance(output, (str, os.PathLike)):
                self._writers.append(RunLogWriter(output, header))
            else:
                self._loggers.append(output)
        self._before: Reports | None = None

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
        workers = self._workers
        self._writers = [w for w in self._writers if _works(w, lambda w: _write(w, row, plan))]
        self._loggers = [o for o in self._loggers if _works(o, lambda o: o.iteration(row, workers))]

    def note(self, iteration: int, text: str) -> None:
        """Write what happened at the boundary of an iteration."""
        event = Event("note", iteration, text=text)
        self._writers = [w for w in self._writers if _works(w, lambda w: w.event(event))]

    def close(self, iteration: int) -> None:
        """End the run logs, and let the loggers write what is left."""
        for writer in self._writers:
            _works(writer, lambda writer: _end(writer, iteration))
        for logger in self._loggers:
            _works(logger, lambda logger: logger.close())
        self._writers, self._loggers = [], []


class Account:
    """Takes every iteration's reports, wherever the plans come from."""

    def __init__(self, even: Ints, recorder: Recorder | None) -> None:
        self.summary = Summary(even)
        self.last_reports: Reports | None = None
        self._recorder = recorder
        self._attribution: Attribution[Exchanged] = Attribution()

    def add(self, reports: Reports, done: Exchanged) -> None:
        """Take the reports at the end of an iteration, which is added once its times are known."""
        self.last_reports = reports
        for complete, iteration in self._attribution.add(reports, done):
            self._add(complete, iteration)

    def _add(self, reports: Reports, done: Exchanged) -> None:
        self.summary.observe(reports, done.plan)
        if self._recorder is not None:
            self._recorder.record(reports, done.plan, done.sizes, done.iteration, done.start)

    def note(self, iteration: int, text: str) -> None:
        """Write into the run log, where there is one, what happened before an iteration."""
        if self._recorder is not None:
            self._recorder.note(iteration, text)

    def close(self, iteration: int) -> None:
        """Add what still waits for times that will not come, and end the run log."""
        for reports, done in self._attribution.rest():
            self._add(reports, done)
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.close(iteration)


def _works(output: T, act: Callable[[T], None]) -> bool:
    """Do something with an output, and return whether it went well.

    What other people's loggers raise is anything; of a run log of ours, the disk may be full.
    """
    expected = OSError if isinstance(output, RunLogWriter) else Exception
    try:
        act(output)
    except expected as error:
        _log.warning("%s ends, as it failed: %s", type(output).__name__, error)
        return False
    return True


def _write(writer: RunLogWriter, row: IterationRow, plan: Plan) -> None:
    writer.plan(plan, row.iteration)
    writer.iteration(row)


def _end(writer: RunLogWriter, iteration: int) -> None:
    writer.event(Event("end", iteration))
    writer.close()


def make_recorder(
    log: Log | None, planner: Planner, source: str, mode: str, predictor: str, job: str = "ddp"
) -> Recorder | None:
    """Return the recorder of a training with the settings of a planner, if it has a log."""
    if not log:
        return None
    header = Header(
        source=source,
        job=job,
        workers=planner.workers,
        total=planner.total,
        policy=short_form(planner.policy),
        predictor=predictor,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        settings={"mode": mode},
    )
    return Recorder(log, header)
