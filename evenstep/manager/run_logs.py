"""The run logs of all jobs, one per run, written on a thread of their own.

The manager queues its notifications and never waits for the disk. If the disk is slow, iterations
are left out; if it fails, the log ends with an error message, and another one begins a minute
later. Neither affects the jobs.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import count, takewhile
from pathlib import Path
from typing import TextIO

from evenstep.core import Ints, Reports, as_ints
from evenstep.core.late_times import LateTimes
from evenstep.manager.job_history import ClosedBoundary, waiting_of
from evenstep.manager.job_settings import JobSettings, safe_name
from evenstep.manager.notifications import Notification
from evenstep.runlog import Event, Header, IterationRow, RunLogWriter

MAX_PENDING = 200_000
"""Workers in boundaries that wait to be written; each boundary counts as `_OWN` more."""
RETRY = 60.0
"""Seconds after a failure before another log of the job begins."""
PORTION = 64 * 1024 * 1024
"""Bytes after which only every second iteration is written, then every fourth, and so on."""
_OWN = 20
_PATIENCE = 10.0

_log = logging.getLogger(__name__)

Complete = Iterable[tuple[Reports, tuple[ClosedBoundary, ClosedBoundary]]]
"""Reports with the times of their own iteration, and the boundaries before and after it."""


class RunLogs:
    """Writes a run log for every run of a job, from its notifications."""

    def __init__(self, folder: Path, settings_of: Callable[[str], JobSettings]) -> None:
        self.num_failures = 0
        self.num_left_out = 0
        """Iterations that are missing in logs because the disk was too slow."""
        self._folder = folder
        self._settings_of = settings_of
        self._queue: queue.SimpleQueue[tuple[Notification, JobSettings] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._work, name="evenstep-run-logs", daemon=True)
        self._logs: dict[str, JobLog] = {}
        self._runs: Counter[str] = Counter()
        self._quiet_until: dict[str, float] = {}
        # Only one thread writes each; the difference is what waits in the queue.
        self._num_given = self._num_taken = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Write what is queued, unless that takes too long."""
        self._queue.put(None)
        self._thread.join(_PATIENCE)

    def receive(self, notification: Notification) -> None:
        """Queue a notification; called on the manager's thread."""
        if notification.boundary is not None or notification.kind == "ended":
            size = _size(notification)
            if self._num_given - self._num_taken + size > MAX_PENDING and notification.boundary:
                self.num_left_out += 1
                return
            self._num_given += size
            self._queue.put((notification, self._settings_of(notification.job)))

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            notification, settings = item
            try:
                self._write(notification, settings)
            except Exception as error:
                self._give_up(notification, error)
            self._num_taken += _size(notification)
        for log in self._logs.values():
            _close(log)

    def _write(self, notification: Notification, settings: JobSettings) -> None:
        job, boundary = notification.job, notification.boundary
        log = self._logs.get(job)
        if boundary is None:
            self._logs.pop(job, None)
            if log is not None:
                log.end(str(notification.details.get("reason", "")))
        elif log is not None and log.follows(boundary):
            log.add(boundary)
        else:
            if log is not None:
                del self._logs[job]
                log.end("the job continues at an earlier iteration")
            self._begin(job, settings, boundary)

    def _begin(self, job: str, settings: JobSettings, boundary: ClosedBoundary) -> None:
        if boundary.closed >= self._quiet_until.get(job, -math.inf):
            self._runs[job] += 1
            self._logs[job] = JobLog.begin(self._folder, job, self._runs[job], settings, boundary)

    def _give_up(self, notification: Notification, error: Exception) -> None:
        """Report that a log ends; its file stays."""
        self.num_failures += 1
        if notification.boundary is not None:
            self._quiet_until[notification.job] = notification.boundary.closed + RETRY
        _log.error("job %s: its run log ends here, training continues: %s", notification.job, error)
        _close(self._logs.pop(notification.job, None))


def _close(log: JobLog | None) -> None:
    # A failed write fails again when the file is closed.
    with contextlib.suppress(OSError):
        if log is not None:
            log.close()


def _size(notification: Notification) -> int:
    return _OWN + (len(notification.boundary.workers) if notification.boundary else 0)


class JobLog:
    """The log of one run; raises OSError if the disk fails.

    A row needs two boundaries: the one before an iteration has its plan and the usage at its start,
    the one after it the reports about it. Members come from the boundaries too, so that the log
    stays correct if some of them are left out.
    """

    def __init__(self, file: TextIO, header: Header, first: ClosedBoundary) -> None:
        self._file = file
        self._writer = RunLogWriter(file, header)
        self._before = first
        self._began = first.closed
        self._num_iterations = 0
        self._every = 1
        self._portion = PORTION
        self._attribution: LateTimes[tuple[ClosedBoundary, ClosedBoundary]] = LateTimes()

    @classmethod
    def begin(
        cls, folder: Path, job: str, run: int, settings: JobSettings, first: ClosedBoundary
    ) -> JobLog:
        """Create the file of a run that begins with this boundary."""
        created = datetime.now(timezone.utc)
        header = Header(
            source="measured",
            job=job,
            workers=first.workers,
            total=settings.total,
            policy=settings.policy,
            predictor=settings.predictor,
            created=created.isoformat(timespec="seconds"),
            settings={"minimum": settings.minimum, "granularity": settings.granularity},
        )
        name = f"{safe_name(job)}.run-{run}.{created:%Y%m%dT%H%M%SZ}"
        return cls(_new_file(folder, name), header, first)

    def follows(self, boundary: ClosedBoundary) -> bool:
        """Whether a boundary can come next: iterations of a run log only increase."""
        return boundary.iteration > self._before.iteration

    def add(self, boundary: ClosedBoundary) -> None:
        """Write the iteration that a boundary ends, with its plan and its members."""
        before, self._before = self._before, boundary
        if boundary.workers != before.workers:
            # The members changed: no more times come for the rows that wait for them.
            self._add(self._attribution.rest())
        self._add(self._attribution.add(boundary.reports, (before, boundary)))

    def _add(self, complete: Complete) -> None:
        for reports, (before, after) in complete:
            if after.iteration != before.iteration + 1 or not reports.observed.any():
                continue
            self._num_iterations += 1
            if self._num_iterations % self._every == 0:
                self._write(before, replace(after, reports=reports))

    def end(self, reason: str) -> None:
        """Write the rows that wait for times and the end of the run, and close the file."""
        with contextlib.closing(self._file):
            self._add(self._attribution.rest())
            self._writer.event(Event("end", self._before.iteration, reason=reason))

    def close(self) -> None:
        """Write the rows that wait for times, and close the file of a run that may continue."""
        with contextlib.closing(self._file):
            self._add(self._attribution.rest())

    def _write(self, before: ClosedBoundary, after: ClosedBoundary) -> None:
        k = before.iteration
        self._change_members(before.workers, k)
        self._writer.plan(before.plan, k)
        # A worker that left during the iteration has not reported on it.
        there = frozenset(after.workers)
        self._change_members([worker for worker in before.workers if worker in there], k)
        if self._writer.workers:
            start = before.closed - self._began
            self._writer.iteration(row_of(before, after, self._writer.workers, start))
        if self._file.tell() > self._portion:
            self._every *= 2
            self._portion += PORTION

    def _change_members(self, workers: Sequence[str], iteration: int) -> None:
        """Write `leave` and `join` events, so that later rows are of these workers."""
        now = list(self._writer.workers)
        after = frozenset(workers)
        staying = [worker for worker in now if worker in after]
        # A worker that left and returned meanwhile is now at another position.
        pairs = zip(staying, workers, strict=False)
        kept = frozenset(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        for worker in [worker for worker in now if worker not in kept]:
            now.remove(worker)
            self._writer.event(Event("leave", iteration, worker=worker, workers=now))
        for worker in [worker for worker in workers if worker not in kept]:
            now.append(worker)
            self._writer.event(Event("join", iteration, worker=worker, workers=now))


def row_of(
    before: ClosedBoundary, after: ClosedBoundary, workers: Sequence[str], start: float
) -> IterationRow:
    """Return the row of the iteration between two boundaries, for workers that were at both.

    Usage at the start and predictions come from the boundary before, reports from the one after.
    """
    began, ended = _positions(before, workers), _positions(after, workers)
    reports = after.reports
    return IterationRow(
        iteration=before.iteration,
        plan=before.plan.number,
        start=start,
        batch_sizes=reports.batch_sizes[ended],
        times=reports.times[ended],
        waiting=waiting_of(reports.times[ended]),
        predicted_speeds=before.predicted_speeds[began],
        cpu=before.reports.cpu[began],
        memory=before.reports.memory[began],
        device_memory=reports.device_memory[ended],
    )


def _positions(boundary: ClosedBoundary, workers: Sequence[str]) -> Ints:
    position = {worker: i for i, worker in enumerate(boundary.workers)}
    return as_ints([position[worker] for worker in workers])


def _new_file(folder: Path, name: str) -> TextIO:
    """Create a file with a name that is not in use."""
    for number in count(1):
        more = "" if number == 1 else f"-{number}"
        with contextlib.suppress(FileExistsError):
            return (folder / f"{name}{more}.jsonl").open("x", encoding="ascii", newline="\n")
    raise AssertionError
