"""From a manager's events to records: the job of a manager as if it had a run log."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from evenstep.core.arrays import Floats
from evenstep.dashboard.job import Job
from evenstep.dashboard.source import another_run
from evenstep.runlog import Event, Header, IterationRow, Record

Data = Mapping[str, Any]


class ManagedJob:
    """Follows one job through its runs; the manager tells of some iterations, not of all."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.run = 0
        self.job: Job | None = None
        """The newest run."""
        self.time = 0.0
        """When it was last heard of, in seconds since 1970."""
        self._settings: Data = {}
        self._began = 0.0
        self._expected: tuple[int, Sequence[str], Any] = (-1, (), None)
        """The iteration after the last, its workers, and the speeds that were predicted for it."""
        self._plans: deque[tuple[int, int]] = deque([(0, 0)], maxlen=8)
        """The last plans: from which iteration on they hold, and their numbers."""

    def hear(self, data: Data) -> None:
        """Go on with an event of the manager."""
        self.time = float(data["time"])
        kind = data["event"]
        if kind == "created":
            self._settings = data["settings"]
        elif kind in ("begun", "recovered", "moved"):
            self.job = None
        elif kind == "ended":
            self._take([Event("end", data["iteration"], reason=data.get("reason"))])
        elif kind in ("plan", "iteration"):
            self._take_from(data)

    def _take_from(self, data: Data) -> None:
        last = None if self.job is None else self.job.last
        goes_back = (
            data["event"] == "iteration" and last and data["iteration"] <= last.row.iteration
        )
        if self.job is None or self.job.end is not None or goes_back:
            self._begin(data)
        assert self.job is not None
        self._take(self._members(data))
        self._take([self._plan(data) if data["event"] == "plan" else self._row(data)])

    def _begin(self, data: Data) -> None:
        self.run = another_run(self.run)
        self._began = float(data["time"])
        settings = self._settings
        header = Header(
            source="measured",
            job=self.name,
            workers=data["workers"],
            total=settings.get("total", sum(data["batch_sizes"])),
            policy=settings.get("policy", "unknown"),
            predictor=settings.get("predictor", "unknown"),
        )
        self.job = Job(header)

    def _members(self, data: Data) -> Iterator[Event]:
        """Yield who left and who joined since the last event that says who is there."""
        assert self.job is not None
        now = list(self.job.workers)
        for worker in [worker for worker in now if worker not in data["workers"]]:
            now.remove(worker)
            yield Event("leave", data["iteration"], worker=worker, workers=now)
        for worker in [worker for worker in data["workers"] if worker not in now]:
            now.append(worker)
            yield Event("join", data["iteration"], worker=worker, workers=now)

    def _plan(self, data: Data) -> Event:
        sizes = self._in_order(data["workers"], data["batch_sizes"]).astype(int).tolist()
        reason = data.get("reason") or None
        self._plans.append((data["iteration"], data["plan"]))
        return Event("plan", data["iteration"], data["plan"], sizes, reason=reason)

    def _row(self, data: Data) -> IterationRow:
        iteration, workers = data["iteration"], data["workers"]
        expected, whose, speeds = self._expected
        predicted = None
        # Where iterations are not told, the newest prediction that was told must do.
        if expected <= iteration and list(whose) == list(workers) and speeds is not None:
            predicted = self._in_order(workers, speeds)
        self._expected = (iteration + 1, workers, data.get("next_speeds"))
        return IterationRow(
            iteration=iteration,
            plan=next((p for since, p in reversed(self._plans) if since <= iteration), 0),
            start=float(data["time"]) - self._began,
            batch_sizes=self._in_order(workers, data["batch_sizes"]).astype(np.int64),
            times=self._in_order(workers, data["times"]),
            waiting=self._in_order(workers, data["waiting"]),
            predicted_speeds=predicted,
            cpu=self._in_order(workers, data["cpu"]) if _any_known(data.get("cpu")) else None,
        )

    def _in_order(self, workers: Sequence[str], values: Sequence[float | None]) -> Floats:
        """Return values in the order that the job has its workers in."""
        assert self.job is not None
        of = dict(zip(workers, values, strict=True))
        known = [of[worker] for worker in self.job.workers]
        return np.array([np.nan if value is None else value for value in known], dtype=np.float64)

    def _take(self, records: Iterable[Record]) -> None:
        if self.job is not None:
            self.job.take(records)


def _any_known(values: Sequence[float | None] | None) -> bool:
    """Whether something is known: older managers, and workers without a probe, tell nothing."""
    return values is not None and any(value is not None for value in values)
