"""A manager as a source: its jobs, as its event stream tells of them."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable

from evenstep.dashboard.folder import SILENT
from evenstep.dashboard.managed_job import ManagedJob
from evenstep.dashboard.manager_line import ManagerLine
from evenstep.dashboard.source import Entry, Reading, key_of
from evenstep.errors import EvenstepError

AT_ONCE = 50
"""Events that are looked at before others get their turn."""
MOST = 1_000
"""Jobs that are kept: as many as a manager has at a time."""


class Managed:
    """Follows all jobs of a manager."""

    def __init__(
        self, line: ManagerLine, title: str, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._line = line
        self._title = title
        self._wall_clock = wall_clock
        self._jobs: dict[str, ManagedJob] = {}
        self._misunderstood: str | None = None

    @property
    def title(self) -> str:
        return self._title

    @property
    def problem(self) -> str | None:
        if (problem := self._line.problem or self._misunderstood) is not None:
            return problem
        return None if self.entries() else "the manager has told of no running job yet"

    def start(self) -> None:
        self._line.start()

    def poll(self) -> bool:
        for count in range(AT_ONCE):
            try:
                data = self._line.events.get_nowait()
            except queue.Empty:
                return count > 0
            name = data.get("job")
            if not isinstance(name, str):
                continue
            if name not in self._jobs and len(self._jobs) >= MOST:
                # Jobs come and go: who was heard of longest ago makes room.
                del self._jobs[min(self._jobs, key=lambda name: self._jobs[name].time)]
            managed = self._jobs.setdefault(name, ManagedJob(name))
            try:
                managed.hear(data)
            except (EvenstepError, LookupError, TypeError, ValueError) as error:
                self._misunderstood = f"an event of job {name!r} is not understood: {error}"
        return True

    def entries(self) -> list[Entry]:
        newest = sorted(self._jobs.values(), key=lambda managed: -managed.time)
        return [self._entry(managed) for managed in newest if managed.job is not None]

    def read(self, key: str) -> Reading | None:
        for managed in self._jobs.values():
            if key_of(managed.name) == key and managed.job is not None:
                return Reading(managed.job, managed.run)
        return None

    def _entry(self, managed: ManagedJob) -> Entry:
        assert managed.job is not None
        silent = self._wall_clock() - managed.time > SILENT
        state = "ended" if managed.job.end is not None else "silent" if silent else "running"
        workers = len(managed.job.workers)
        return Entry(key_of(managed.name), managed.name, self._title, "measured", workers, state)
