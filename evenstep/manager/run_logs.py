"""The run logs of all jobs, written on a thread of their own.

The manager hands over what it has seen and goes on. Where the disk is slow, iterations are left
out; where it fails, the log ends, that is reported, and another one is begun after a while: neither
changes anything for the jobs.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from evenstep.manager.job_history import ClosedBoundary
from evenstep.manager.job_log import JobLog
from evenstep.manager.job_settings import JobSettings
from evenstep.manager.notifications import Notification

MAX_PENDING = 200_000
"""Workers of boundaries that may wait to be written, each boundary counting as `_OWN` more."""
RETRY = 60.0
"""Seconds after a failure in which no other log of the job is begun."""
_OWN = 20
_PATIENCE = 10.0

_log = logging.getLogger(__name__)


class RunLogs:
    """Listens to the news, and writes a run log for every run of a job."""

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
        # Each is written by one thread only; the difference waits.
        self._num_given = self._num_taken = 0

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def close(self) -> None:
        """Write what was handed over, unless that takes too long."""
        self._queue.put(None)
        self._thread.join(_PATIENCE)

    def hear(self, happening: Notification) -> None:
        """Hand over what happened, on the manager's thread."""
        if happening.boundary is not None or happening.kind == "ended":
            size = _size(happening)
            if self._num_given - self._num_taken + size > MAX_PENDING and happening.boundary:
                self.num_left_out += 1
                return
            self._num_given += size
            self._queue.put((happening, self._settings_of(happening.job)))

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            happening, settings = item
            try:
                self._write(happening, settings)
            except Exception as error:
                self._give_up(happening, error)
            self._num_taken += _size(happening)
        for log in self._logs.values():
            _close(log)

    def _write(self, happening: Notification, settings: JobSettings) -> None:
        job, boundary = happening.job, happening.boundary
        log = self._logs.get(job)
        if boundary is None:
            self._logs.pop(job, None)
            if log is not None:
                log.end(str(happening.details.get("reason", "")))
        elif log is not None and log.follows(boundary):
            log.add(boundary)
        else:
            if log is not None:
                del self._logs[job]
                log.end("the job goes on at an earlier iteration")
            self._begin(job, settings, boundary)

    def _begin(self, job: str, settings: JobSettings, boundary: ClosedBoundary) -> None:
        if boundary.closed >= self._quiet_until.get(job, -math.inf):
            self._runs[job] += 1
            self._logs[job] = JobLog.begin(self._folder, job, self._runs[job], settings, boundary)

    def _give_up(self, happening: Notification, error: Exception) -> None:
        """Report that a log ends; what was written of it stays."""
        self.num_failures += 1
        if happening.boundary is not None:
            self._quiet_until[happening.job] = happening.boundary.closed + RETRY
        _log.error("job %s: its run log ends here, training goes on: %s", happening.job, error)
        _close(self._logs.pop(happening.job, None))


def _close(log: JobLog | None) -> None:
    # What could not be written before cannot be now.
    with contextlib.suppress(OSError):
        if log is not None:
            log.close()


def _size(happening: Notification) -> int:
    return _OWN + (len(happening.boundary.workers) if happening.boundary else 0)
