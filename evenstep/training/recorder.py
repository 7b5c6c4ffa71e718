"""Records all reports: in a summary, and in the run log that worker 0 writes."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TypeVar

import numpy as np

from evenstep.core import Floats, Ints, Plan, Reports
from evenstep.core.late_times import LateTimes
from evenstep.core.planner import Planner
from evenstep.policies import short_form
from evenstep.policies.cautious import COMPARING
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
        self._attribution: LateTimes[FinishedIteration] = LateTimes()

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
_BLOCK = 16
"""Iterations before a block at even sizes that it is compared with."""
_FEWEST_BLOCKS = 3
"""Blocks from which their differences show how uncertain the comparison is."""


class Summary:
    """Adds up iteration times: measured, estimated for even sizes, and for proposed sizes.

    `even` are the sizes of plain BSP; `compare_with` adds those of another total. A run with those
    sizes is not compared with plain BSP. Where the policy measured blocks at even sizes, these are
    the comparison; otherwise it is an estimate.
    """

    def __init__(self, even: Ints, mode: str = "balanced") -> None:
        self._even = {int(even.sum()): even}
        """The even sizes of each total."""
        self._mode = mode
        self._is_even = True
        """Whether all plans have had the even sizes."""
        self._filter = FinishFilter.fresh(len(even))
        self._seen = 0
        self._count = 0
        self._actual = _Tally()
        self._plain = _Tally()
        self._proposed = _Tally()
        self._blocks = _Blocks()
        self._last: Plan | None = None

    def compare_with(self, even: Ints) -> None:
        """Compare iterations of another total with these sizes of plain BSP."""
        self._even[int(even.sum())] = even

    def observe(self, reports: Reports, plan: Plan) -> None:
        """Add the iteration that was run under `plan`."""
        self._seen += 1
        if reports.observed.all():
            self._blocks.add(reports, plan)
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
        even = self._even[plan.total]
        self._is_even &= bool(np.array_equal(plan.sizes, even))
        self._actual.add(reports.times)
        self._estimate(self._plain, reports, even * work)
        sizes = plan.sizes if plan.proposed is None else plan.proposed
        self._estimate(self._proposed, reports, sizes * work)

    def _estimate(self, tally: _Tally, reports: Reports, sizes: Floats) -> None:
        """Add the times that other sizes would have taken: those measured, moved along the lines.

        Spikes are in both, and where sizes are the same there is no difference at all.
        """
        known = self._filter
        times = reports.times * known.times_at(sizes) / known.times_at(reports.batch_sizes)
        slowest = int(np.argmax(times))
        moved = abs(float(sizes[slowest] - reports.batch_sizes[slowest]))
        slope_error = float(np.sqrt(known.slope_var[slowest]))
        spread = slope_error * moved / float(known.times_at(sizes)[slowest])
        tally.add(times, spread, float(reports.times.max()))

    def line(self) -> str:
        """Return the summary in one line: measured values, and estimates with their range."""
        if self._last is None or not self._actual.count:
            return "evenstep: too few iterations for a summary"
        if self._mode == "observe":
            return f"evenstep (observe only): {self._measured()}; {self._gain(self._last)}"
        sizes = _joined(self._last.sizes)
        if self._is_even or self._mode == "off":
            return f"evenstep: batch sizes {sizes}, as in plain BSP; {self._measured()}"
        return f"evenstep: batch sizes {sizes}; {self._measured()}; {self._saved()}"

    def _saved(self) -> str:
        """Return the part of the iteration time of plain BSP that was saved."""
        if self._blocks.count >= _FEWEST_BLOCKS:
            saving = _Saving(1 / self._blocks.ratio, self._blocks.error / self._blocks.ratio)
            how = f"measured against {self._blocks.count} blocks at even sizes"
        else:
            saving = _compare(self._actual, self._plain)
            how = "estimated from fitted lines"
        if not saving.is_clear:
            return f"no difference from plain BSP to be seen ({saving.range} saved, {how})"
        what = "saved" if saving.part > 0 else "lost"
        part = f"{abs(saving.part):.0%}"
        return f"{part} of plain BSP's iteration time {what} ({saving.range}, {how})"

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
        saving = _compare(self._proposed, self._actual)
        what = f"with batch sizes {_joined(last.proposed)} instead of even ones, iterations would"
        how = "estimated from fitted lines"
        if not saving.is_clear:
            return f"{what} take less time, or as long ({saving.range} saved, {how})"
        less = "less" if saving.part > 0 else "more"
        return f"{what} take {abs(saving.part):.0%} {less} time ({saving.range}, {how})"


@dataclass(frozen=True)
class _Saving:
    """The part of a time that is saved, with its range of two standard errors to each side."""

    ratio: float
    """The time over the one that it is compared with."""
    error: float
    """The relative standard error of the ratio."""

    @property
    def part(self) -> float:
        return 1 - self.ratio

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the most that may be saved; no more than everything."""
        factor = 1 + 2 * self.error
        return 1 - self.ratio * factor, 1 - self.ratio / factor

    @property
    def is_clear(self) -> bool:
        """Whether something is saved, or lost, whatever it is within the range."""
        low, high = self.bounds
        return low > 0 or high < 0

    @property
    def range(self) -> str:
        low, high = self.bounds
        if low > 0:
            return f"{low:.0%} to {high:.0%}"
        return f"{-high:.0%} to {-low:.0%}" if high < 0 else f"{low:+.0%} to {high:+.0%}"


def _compare(tally: _Tally, other: _Tally) -> _Saving:
    """Compare measured times with estimates made from them, or the other way round."""
    return _Saving(tally.time / other.time, float(np.hypot(tally.spread, other.spread)))


class _Blocks:
    """Compares the blocks that a policy measures at even sizes with the iterations before them."""

    def __init__(self) -> None:
        self._before: deque[float] = deque(maxlen=_BLOCK)
        self._even: list[float] = []
        self._ratios: list[float] = []

    @property
    def count(self) -> int:
        return len(self._ratios)

    @property
    def ratio(self) -> float:
        """The mean time at even sizes over that before them."""
        return float(np.mean(self._ratios))

    @property
    def error(self) -> float:
        """The standard error of the ratio, by the differences between blocks."""
        return float(np.std(self._ratios, ddof=1) / np.sqrt(self.count))

    def add(self, reports: Reports, plan: Plan) -> None:
        time = float(reports.times.max()) / int(reports.batch_sizes.sum())
        if plan.reason == COMPARING:
            self._even.append(time)
            return
        if self._even and self._before:
            self._ratios.append(float(np.mean(self._even) / np.mean(self._before)))
        if self._even:
            self._even.clear()
            self._before.clear()
        self._before.append(time)


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
        self._spread = 0.0
        self._differences = 0.0
        self._squares = 0.0

    def add(self, times: Floats, spread: float = 0.0, measured: float | None = None) -> None:
        """Add an iteration; an estimate has a relative error, and the time it was made from."""
        longest = float(times.max())
        self.time += longest
        self.count += 1
        self._worked += float(np.mean(times))
        self._spread += spread
        difference = 0.0 if measured is None else longest / measured - 1
        self._differences += difference
        self._squares += difference**2

    @property
    def mean(self) -> float:
        """The mean iteration time."""
        return self.time / self.count

    @property
    def spread(self) -> float:
        """The relative standard error: that of the lines does not average out, the rest does."""
        mean = self._differences / self.count
        variance = max(self._squares / self.count - mean**2, 0.0) / self.count
        return float(np.hypot(self._spread / self.count, np.sqrt(variance)))

    @property
    def waiting(self) -> float:
        """The share of the workers' time that is spent waiting."""
        return 1 - self._worked / self.time if self.time else 0.0
