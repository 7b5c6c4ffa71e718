"""The run log of one run of a job, made of the boundaries that it closed.

What stands in a row comes from two boundaries: the one before an iteration says what it began with,
the one after it what came of it. Who is a member is taken from the boundaries too, so that some may
be left out where the disk is too slow, and what is written stays right.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import count, takewhile
from pathlib import Path
from typing import TextIO

from evenstep.core import Ints, Reports, as_ints
from evenstep.core.attribution import Attribution
from evenstep.manager.job_history import ClosedBoundary, waiting_of
from evenstep.manager.job_settings import JobSettings, safe_name
from evenstep.runlog import Event, Header, IterationRow, RunLogWriter

PORTION = 64 * 1024 * 1024
"""Bytes after which only every second iteration is written, then every fourth, and so on."""


Complete = Iterable[tuple[Reports, tuple[ClosedBoundary, ClosedBoundary]]]
"""Reports with the times of their own iteration, and the boundaries before and after it."""


class JobLog:
    """Writes boundary after boundary; raises OSError where the disk does not take it."""

    def __init__(self, file: TextIO, header: Header, first: ClosedBoundary) -> None:
        self._file = file
        self._writer = RunLogWriter(file, header)
        self._before = first
        self._began = first.closed
        self._num_iterations = 0
        self._every = 1
        self._portion = PORTION
        self._attribution: Attribution[tuple[ClosedBoundary, ClosedBoundary]] = Attribution()

    @classmethod
    def begin(
        cls, folder: Path, job: str, run: int, settings: JobSettings, first: ClosedBoundary
    ) -> JobLog:
        """Make the file of a run that begins with this boundary."""
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
        """Whether a boundary can come next: a run log never goes back."""
        return boundary.iteration > self._before.iteration

    def add(self, boundary: ClosedBoundary) -> None:
        """Write the iteration that a boundary ends, with its plan and its members."""
        before, self._before = self._before, boundary
        if boundary.workers != before.workers:
            # Arrays of other workers: what still waits for its times gets no more of them.
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
        """Write what still waits for times, say that the run is over, and close the file."""
        with contextlib.closing(self._file):
            self._add(self._attribution.rest())
            self._writer.event(Event("end", self._before.iteration, reason=reason))

    def close(self) -> None:
        """Write what still waits for times, and close the file of a run that may continue."""
        with contextlib.closing(self._file):
            self._add(self._attribution.rest())

    def _write(self, before: ClosedBoundary, after: ClosedBoundary) -> None:
        k = before.iteration
        self._change_members(before.workers, k)
        self._writer.plan(before.plan, k)
        # Who has left by the end of the iteration has said nothing of it.
        there = frozenset(after.workers)
        self._change_members([worker for worker in before.workers if worker in there], k)
        if self._writer.workers:
            start = before.closed - self._began
            self._writer.iteration(row_of(before, after, self._writer.workers, start))
        if self._file.tell() > self._portion:
            self._every *= 2
            self._portion += PORTION

    def _change_members(self, workers: Sequence[str], iteration: int) -> None:
        """Write who left and who joined, so that the arrays from here on are of these workers."""
        now = list(self._writer.workers)
        after = frozenset(workers)
        staying = [worker for worker in now if worker in after]
        # Who left and came back meanwhile is now at another place.
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
    """Return the row of the iteration between two boundaries, of workers that were at both.

    What the boundary before says of them is the usage at its start, and what was predicted; the one
    after says what they did.
    """
    began, ended = _places(before, workers), _places(after, workers)
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


def _places(boundary: ClosedBoundary, workers: Sequence[str]) -> Ints:
    place = {worker: i for i, worker in enumerate(boundary.workers)}
    return as_ints([place[worker] for worker in workers])


def _new_file(folder: Path, name: str) -> TextIO:
    """Open a file that was not there before."""
    for number in count(1):
        more = "" if number == 1 else f"-{number}"
        with contextlib.suppress(FileExistsError):
            return (folder / f"{name}{more}.jsonl").open("x", encoding="ascii", newline="\n")
    raise AssertionError
