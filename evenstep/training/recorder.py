"""Records all reports: in a summary, and in the run log that worker 0 writes."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, TypeVar

import numpy as np

from evenstep.core import Plan, Reports
from evenstep.core.late_times import LateTimes
from evenstep.core.plan import joined_sizes
from evenstep.core.planner import Planner
from evenstep.errors import EvenstepError
from evenstep.estimates import Estimates, Estimator
from evenstep.estimates.words import duration, gain_words, percent, percent_range
from evenstep.policies import short_form
from evenstep.runlog import Event, Header, IterationRow, RunLogWriter
from evenstep.runlog.loggers import Logger
from evenstep.training.iteration import FinishedIteration

T = TypeVar("T")

_FIRST_SETTLED = 16
"""Iterations after which loggers get the settled figures for the first time."""
_FEWEST = 3
"""Settled iterations before which nothing is summed up."""

Output = str | os.PathLike[str] | Logger
Log = Output | Sequence[Output]
"""The output of a training: the path of a run log, a logger, or several of them."""

_log = logging.getLogger(__name__)


class Recorder:
    """Writes each iteration once its reports are known.

    A run log or logger that fails is dropped with a warning; the training and the others continue.
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

    def record(self, row: IterationRow, plan: Plan) -> None:
        """Write an iteration, with its plan."""
        workers = self._workers
        self._writers = [w for w in self._writers if _works(w, lambda w: _write(w, row, plan))]
        self._loggers = [o for o in self._loggers if _works(o, lambda o: o.iteration(row, workers))]

    def note(self, iteration: int, text: str) -> None:
        """Write a note about the boundary before an iteration."""
        event = Event("note", iteration, text=text)
        self._writers = [w for w in self._writers if _works(w, lambda w: w.event(event))]

    @property
    def has_loggers(self) -> bool:
        return bool(self._loggers)

    def settled(self, figures: Mapping[str, float], iteration: int) -> None:
        """Write the settled figures so far to the loggers that have a use for them."""
        self._loggers = [
            o
            for o in self._loggers
            if not hasattr(o, "settled") or _works(o, lambda o: o.settled(figures, iteration))
        ]

    def close(self, iteration: int) -> None:
        """Close the run logs and loggers."""
        for writer in self._writers:
            _works(writer, lambda writer: _end(writer, iteration))
        for logger in self._loggers:
            _works(logger, lambda logger: logger.close())
        self._writers, self._loggers = [], []


class RunTotals:
    """Turns the reports of all iterations into rows, for the summary and the run log."""

    def __init__(self, header: Header, recorder: Recorder | None) -> None:
        self.summary = Summary(header)
        self.last_reports: Reports | None = None
        self._recorder = recorder
        self._before: Reports | None = None
        self._count, self._next = 0, _FIRST_SETTLED
        self._attribution: LateTimes[FinishedIteration] = LateTimes()

    def add(self, reports: Reports, done: FinishedIteration) -> None:
        """Take the reports at the end of an iteration, which counts once its times are known."""
        self.last_reports = reports
        for complete, iteration in self._attribution.add(reports, done):
            self._add(complete, iteration)

    def _add(self, reports: Reports, done: FinishedIteration) -> None:
        before, self._before = self._before, reports
        row = row_of(reports, before, done)
        self.summary.observe(row, done.plan)
        if self._recorder is None:
            return
        self._recorder.record(row, done.plan)
        self._count += 1
        if self._recorder.has_loggers and self._count >= self._next:
            # An eighth more each time: the figures change slowly, and cost some milliseconds.
            self._next = self._count + max(_FIRST_SETTLED, self._count // 8)
            self._settle(self._recorder, row.iteration)

    def _settle(self, recorder: Recorder, iteration: int) -> None:
        figures = self.summary.figures()
        if figures:
            recorder.settled(figures, iteration)

    def note(self, iteration: int, text: str) -> None:
        """Write a note about the boundary before an iteration into the run log, if there is one."""
        if self._recorder is not None:
            self._recorder.note(iteration, text)

    def close(self, iteration: int) -> None:
        """Add the iterations whose times will not come any more, and close the run log."""
        for reports, done in self._attribution.rest():
            self._add(reports, done)
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            if recorder.has_loggers:
                self._settle(recorder, iteration)
            recorder.close(iteration)


def _works(output: T, act: Callable[[T], None]) -> bool:
    """Call a function with an output, and return whether it succeeded.

    A logger of a user may raise any error; a run log raises OSError, say on a full disk, and
    InvalidSetting for an iteration that is before the last one, after a checkpoint was loaded.
    """
    expected = (OSError, EvenstepError) if isinstance(output, RunLogWriter) else Exception
    try:
        act(output)
    except expected as error:
        _log.warning("%s failed and is not used any more: %s", type(output).__name__, error)
        return False
    return True


def _write(writer: RunLogWriter, row: IterationRow, plan: Plan) -> None:
    writer.plan(plan, row.iteration)
    writer.iteration(row)


def _end(writer: RunLogWriter, iteration: int) -> None:
    writer.event(Event("end", iteration))
    writer.close()


def row_of(reports: Reports, before: Reports | None, done: FinishedIteration) -> IterationRow:
    """Return the row of an iteration, with the sizes actually used.

    The reports hold its times, but the usage and the predicted speeds of the next iteration: its
    own came with the reports before.
    """
    if before is not None and before.iteration != done.iteration:
        before = None
    slowest = np.nanmax(reports.times) if reports.observed.any() else np.nan
    return IterationRow(
        iteration=done.iteration,
        plan=done.plan.number,
        start=done.start,
        batch_sizes=done.sizes,
        times=reports.times,
        waiting=slowest - reports.times,
        predicted_speeds=None if before is None else before.speeds,
        cpu=None if before is None else before.cpu,
        memory=None if before is None else before.memory,
        device_memory=reports.device_memory,
        caps=reports.caps,
    )


def header_of(planner: Planner, source: str, mode: str, predictor: str, job: str = "ddp") -> Header:
    """Return the header of a training with the settings of a planner."""
    settings: dict[str, Any] = {"mode": mode}
    if planner.limits.granularity > 1:
        settings["granularity"] = planner.limits.granularity
    return Header(
        source=source,
        job=job,
        workers=planner.workers,
        total=planner.total,
        policy=short_form(planner.policy),
        predictor=predictor,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        settings=settings,
    )


class Summary:
    """Sums a training up in one line: what was measured, and what was gained or could be."""

    def __init__(self, header: Header) -> None:
        self._mode = header.settings.get("mode", "balanced")
        self._estimator = Estimator(header)
        self._last: Plan | None = None
        self._problem: str | None = None

    def observe(self, row: IterationRow, plan: Plan) -> None:
        """Add the iteration that was run under `plan`."""
        self._last = plan
        if self._problem is None:
            self._try(lambda: self._observe(row, plan))

    def _observe(self, row: IterationRow, plan: Plan) -> None:
        self._estimator.plan(plan.number, plan.total)
        self._estimator.take(row)

    def _try(self, act: Callable[[], T]) -> T | None:
        """Call a function of the estimates: a defect of theirs must not end a training."""
        try:
            return act()
        except Exception as error:
            self._problem = f"{type(error).__name__}: {error}"
            _log.warning("the summary failed and is not made any more: %s", self._problem)
            return None

    def figures(self) -> dict[str, float]:
        """Return the settled figures so far under the names that loggers have; known ones only."""
        estimates = self._estimates()
        if estimates is None:
            return {}
        figures = {
            "iteration_time": estimates.iteration_time,
            "waiting_share": estimates.waiting_share,
            "plain_time": estimates.plain.value,
            "optimum_time": estimates.optimum.value,
            "gain": estimates.gain.value,
        }
        return {f"evenstep/settled/{k}": v for k, v in figures.items() if math.isfinite(v)}

    def _estimates(self) -> Estimates | None:
        return None if self._problem is not None else self._try(self._estimator.estimates)

    def line(self) -> str:
        """Return the summary."""
        estimates = self._estimates()
        if self._problem is not None:
            return f"evenstep: no summary, as it failed ({self._problem})"
        if self._last is None or estimates is None or estimates.num_iterations < _FEWEST:
            return "evenstep: too few iterations for a summary"
        measured = (
            f"an iteration took {duration(estimates.iteration_time)}, without the exchange of "
            f"gradients, and {percent(estimates.waiting_share)} of the workers' time was waiting "
            f"(means of {estimates.about})"
        )
        sizes = joined_sizes(self._last.sizes)
        if self._mode == "observe":
            return f"evenstep (observe only): {measured}; {self._could(estimates, self._last)}"
        if self._mode == "off" or estimates.is_even:
            return f"evenstep: batch sizes {sizes}, as in plain BSP; {measured}"
        return f"evenstep: batch sizes {sizes}; {measured}; {gain_words(estimates).rstrip('.')}"

    def _could(self, estimates: Estimates, last: Plan) -> str:
        """Return what the sizes that the policy proposed could save."""
        if last.proposed is None or np.array_equal(last.proposed, last.sizes):
            return "balancing would keep the even batch sizes"
        proposed = f"balancing would use batch sizes {joined_sizes(last.proposed)}"
        if math.isnan(estimates.could_save.value):
            return f"{proposed}; what that would save is not known"
        return f"{proposed}; the best sizes could save {percent_range(estimates.could_save)} of it"
