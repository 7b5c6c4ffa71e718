"""A manager as a source of the dashboard: its jobs, from its event stream."""

from __future__ import annotations

import time
from collections.abc import Callable

from evenstep.errors import EvenstepError
from evenstep.insight.dashboard.folder import SILENT
from evenstep.insight.dashboard.job import DashboardJob
from evenstep.insight.dashboard.source import Entry, Reading, Remedies, another_run, key_of
from evenstep.runlog import Header, Record
from evenstep.runlog.follower import ManagerFollower

AT_ONCE = 50
"""Events that are handled before pages are served again."""


class Managed:
    """Follows all jobs of a manager."""

    def __init__(
        self, follower: ManagerFollower, title: str, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._follower = follower
        self._title = title
        self._wall_clock = wall_clock
        self._runs: dict[str, Reading] = {}
        """The newest run of each job."""
        self._misunderstood: str | None = None

    @property
    def title(self) -> str:
        return self._title

    @property
    def problem(self) -> str | None:
        if (problem := self._follower.problem or self._misunderstood) is not None:
            return problem
        return None if self._runs else "the manager has announced no running job yet"

    @property
    def remedies(self) -> Remedies:
        return (
            ("Start a manager; --manager is its --http address:", "evenstep manager --state DIR"),
            (
                "A worker connects to it:",
                'evenstep.connect("127.0.0.1:7411", "job", "worker-0", workers=4, total=256)',
            ),
        )

    def start(self) -> None:
        self._follower.start()

    def poll(self) -> bool:
        records = self._follower.poll(AT_ONCE)
        self._misunderstood = self._follower.misunderstood or self._misunderstood
        for name, record in records:
            self._take(name, record)
        for name in self._runs.keys() - self._follower.jobs.keys():
            del self._runs[name]
        return bool(records) or self._follower.behind

    def entries(self) -> list[Entry]:
        newest = sorted(self._runs, key=lambda name: -self._follower.jobs[name].time)
        return [self._entry(name) for name in newest]

    def read(self, key: str) -> Reading | None:
        return next((run for name, run in self._runs.items() if key_of(name) == key), None)

    def _take(self, name: str, record: Record) -> None:
        """Add a record to its run; a bad record of one job costs no record of another."""
        try:
            if isinstance(record, Header):
                before = self._runs.get(name)
                number = another_run(0 if before is None else before.run)
                self._runs[name] = Reading(DashboardJob(record), number)
            if name in self._runs:
                self._runs[name].job.take([record])
            else:
                self._note(f"records of job {name!r} are left out until its next run begins")
        except (EvenstepError, LookupError, TypeError, ValueError, ArithmeticError) as error:
            reason = f"{type(error).__name__}: {error}"
            self._note(f"a record of job {name!r} is left out: {reason}")

    def _note(self, text: str) -> None:
        """Keep the first note only: the same cause may spoil many records."""
        self._misunderstood = self._misunderstood or text

    def _entry(self, name: str) -> Entry:
        job = self._runs[name].job
        silent = self._wall_clock() - self._follower.jobs[name].time > SILENT
        state = "ended" if job.end is not None else "silent" if silent else "running"
        return Entry(key_of(name), name, self._title, "measured", len(job.workers), state)
