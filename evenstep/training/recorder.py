"""Records all reports: in a summary, and in the run log that worker 0 writes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import TypeVar

import numpy as np

from evenstep.core import Floats, Ints, Plan, Reports
from evenstep.core.attribution import Attribution
from evenstep.core.planner import Planner
from evenstep.policies import short_form
from evenstep.policies.finish_filter import FinishFilter
from evenstep.runlog import Event, Header, IterationRow, RunLogWriter
from evenstep.runlog.loggers import Logger
from evenstep.training.iteration import FinishedIteration

T = TypeVar("T")

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
        self._before: Reports | None = None

    def record(
        self, reports: Reports, plan: Plan, sizes: Ints, iteration: int, start: float
    ) -> None:
        """Write an iteration, with its plan and the sizes actually used.

        The reports hold its times, but the usage and the predicted speeds of the next iteration:
        its own came with the reports before.
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
        """Write a note about the boundary before an iteration."""
        event = Event("note", iteration, text=text)
        self._writers = [w for w in self._writers if _works(w, lambda w: w.event(event))]

    def close(self, iteration: int) -> None:
        """Close the run logs and loggers."""
        for writer in self._writers:
            _works(writer, lambda writer: _end(writer, iteration))
        for logger in self._loggers:
            _works(logger, lambda logger: logger.close())
        self._writers, self._loggers = [], []


class RunTotals:
    """Adds up the reports of all iterations, and records them."""

    def __init__(self, even: Ints, recorder: Recorder | None, mode: str = "balanced") -> None:
        self.summary = Summary(even, mode)
        self.last_reports: Reports | None = None
        self._recorder = recorder
        self._attribution: Attribution[FinishedIteration] = Attribution()

    def add(self, reports: Reports, done: FinishedIteration) -> None:
        """Take the reports at the end of an iteration, which counts once its times are known."""
        self.last_reports = reports
        for complete, iteration in self._attribution.add(reports, done):
            self._add(complete, iteration)

    def _add(self, reports: Reports, done: FinishedIteration) -> None:
        self.summary.observe(reports, done.plan)
        if self._recorder is not None:
            self._recorder.record(reports, done.plan, done.sizes, done.iteration, done.start)

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
            recorder.close(iteration)


def _works(output: T, act: Callable[[T], None]) -> bool:
    """Call a function with an output, and return whether it succeeded.

    A logger of a user may raise any error; a run log raises OSError, say on a full disk.
    """
    expected = OSError if isinstance(output, RunLogWriter) else Exception
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


def make_recorder(
    log: Log | None, planner: Planner, source: str, mode: str, predictor: str, job: str = "ddp"
) -> Recorder | None:
    """Return the recorder of a training with the settings of a planner, or None without a log."""
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


_SETTLE = 5
"""Iterations before estimates count, as the lines must be fitted first."""
_ALL, _EVERY = 20, 5
"""The first `_ALL` iterations count; after that, one in `_EVERY` is enough for an estimate."""


class Summary:
    """Adds up iteration times: measured, estimated for even sizes, and for proposed sizes.

    `even` are the sizes of plain BSP. A run with those sizes is not compared with plain BSP.
    """

    def __init__(self, even: Ints, mode: str = "balanced") -> None:
        self._even = even
        self._mode = mode
        self._is_even = True
        """Whether all plans have had the even sizes."""
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
        # An iteration may be the end of an epoch, accumulate batches, or have long samples.
        work = reports.batch_sizes.sum() / plan.sizes.sum()
        self._is_even &= bool(np.array_equal(plan.sizes, self._even))
        self._actual.add(reports.times)
        self._plain.add(self._filter.times_at(self._even * work))
        sizes = plan.sizes if plan.proposed is None else plan.proposed
        self._proposed.add(self._filter.times_at(sizes * work))

    def line(self) -> str:
        """Return the summary in one line."""
        if self._last is None or not self._actual.count:
            return "evenstep: too few iterations for a summary"
        if self._mode == "observe":
            return f"evenstep (observe only): {self._measured()}; {self._gain(self._last)}"
        sizes = _joined(self._last.sizes)
        if self._is_even or self._mode == "off":
            return f"evenstep: batch sizes {sizes}, as in plain BSP; {self._measured()}"
        saved = 1 - self._actual.time / self._plain.time
        gain = (
            f"about {saved:.0%} of the iteration time saved"
            if saved >= 0 else f"iterations about {-saved:.0%} longer than with it"
        )  # fmt: skip
        return (
            f"evenstep: batch sizes {sizes}; waiting {self._actual.waiting:.0%} of the workers' "
            f"time, about {self._plain.waiting:.0%} with plain BSP; {gain} "
            "(estimates from fitted lines)"
        )

    def _measured(self) -> str:
        """Return what was measured, without any estimate."""
        return (
            f"iterations took {_duration(self._actual.mean)} on average, without the exchange of "
            f"gradients; {self._actual.waiting:.0%} of the workers' time was spent waiting"
        )

    def _gain(self, last: Plan) -> str:
        """Return what the sizes that the policy proposed would have gained over even ones."""
        if last.proposed is None or np.array_equal(last.proposed, last.sizes):
            return "balancing would keep the even batch sizes"
        saved = 1 - self._proposed.time / self._actual.time
        return (
            f"with batch sizes {_joined(last.proposed)} instead of even ones, iterations would "
            f"take about {abs(saved):.0%} {'less' if saved >= 0 else 'more'} time, "
            f"{_duration(self._proposed.mean)} (estimate from fitted lines)"
        )


def _joined(sizes: Ints) -> str:
    return "/".join(map(str, sizes.tolist()))


def _duration(seconds: float) -> str:
    """Return a duration in a fitting unit.

    >>> _duration(0.0421), _duration(1.5)
    ('42.1 ms', '1.5 s')
    """
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


class _Tally:
    """The sums of iteration times and of waiting times."""

    def __init__(self) -> None:
        self.time = 0.0
        self.count = 0
        self._worked = 0.0

    def add(self, times: Floats) -> None:
        self.time += float(times.max())
        self.count += 1
        self._worked += float(np.mean(times))

    @property
    def mean(self) -> float:
        """The mean iteration time."""
        return self.time / self.count

    @property
    def waiting(self) -> float:
        """The share of the workers' time that is spent waiting."""
        return 1 - self._worked / self.time if self.time else 0.0
