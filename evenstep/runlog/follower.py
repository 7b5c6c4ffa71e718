"""Followers: the records of running jobs, from a file or from a manager.

A poll returns the new records: a header begins a run, rows and events follow it.
"""

from __future__ import annotations

import os
from pathlib import Path

from evenstep.errors import EvenstepError, RunLogError
from evenstep.runlog.header import Header
from evenstep.runlog.iteration_row import IterationRow
from evenstep.runlog.manager_events import JobRecords
from evenstep.runlog.manager_stream import Data, ManagerStream
from evenstep.runlog.parser import Record, RunLogParser
from evenstep.runlog.skimming import skimmer_for

PIECE = 2**22
"""Bytes read at once: the records of a whole long log would not fit into memory."""
SKIMMED_PIECE = 2**20
"""The same where most lines are left out."""
MOST_JOBS = 1_000
"""Jobs of a manager that are followed: as many as a manager has at a time."""
MOST_HELD = 1_000
"""Records kept of a job before its first row, while no job is chosen."""


class FileFollower:
    """Reads the part of a run log that is new since the last poll; the file may not exist yet.

    Another file under the same name, or a file that became shorter, is a new run log. With `skims`,
    most iterations of a very long log are left out.
    """

    def __init__(
        self, path: str | os.PathLike[str], piece: int | None = None, skims: bool = False
    ) -> None:
        self._path = Path(path)
        self._piece = PIECE if piece is None else piece
        self._skims = skims
        self._identity: tuple[int, int] | None = None
        self._position = self._size = 0
        self.problem: str | None = None
        """Why there are no records: the file does not exist."""
        self.num_missed = 0
        """Lost rows: always 0, as a file keeps all rows."""
        self._begin(0)

    @property
    def header(self) -> Header | None:
        """The header of the file; None until it is read."""
        return self._parser.header

    @property
    def behind(self) -> bool:
        """Whether a part of the file is still to be read."""
        return self._position < self._size

    @property
    def progress(self) -> float:
        """The fraction of the file that was read."""
        if self._identity is None:
            return 0.0
        return self._position / self._size if self._size else 1.0

    @property
    def every(self) -> int:
        """About one in this number of iterations is read; of the last iterations, all are."""
        return self._skimmer.every

    def poll(self) -> list[Record]:
        """Return the new records in the next piece of the file.

        Raises RunLogError if the log is damaged, in every poll until another file replaces it.
        """
        try:
            with self._path.open("rb") as file:
                stat = os.fstat(file.fileno())
                identity = (stat.st_dev, stat.st_ino)
                # A run log only grows.
                if identity != self._identity or stat.st_size < self._position:
                    self._identity = identity
                    self._begin(stat.st_size)
                self._size = stat.st_size
                file.seek(self._position)
                text = file.read(self._room())
        except FileNotFoundError:
            self.problem = f"{self._path} is not there yet"
            return []
        self.problem = None
        try:
            return self._parser.feed(self._lines(text))
        except RunLogError:
            self._position = self._size
            raise

    def _begin(self, size: int) -> None:
        self._parser = RunLogParser(self._path.name)
        self._skimmer, self._skim_until = skimmer_for(size if self._skims else 0)
        self._position = 0

    def _room(self) -> int:
        left = self._skim_until - self._position
        return min(SKIMMED_PIECE, left) if left > 0 else self._piece

    def _lines(self, text: bytes) -> bytes:
        """Return the lines of a piece that are parsed."""
        skims = self._position < self._skim_until
        self._position += len(text)
        if not skims:
            return text
        text = self._skimmer.pass_on(text)
        return text if self._position < self._skim_until else text + self._skimmer.rest()


class ManagerFollower:
    """Reads the records of all jobs in a manager's event stream."""

    def __init__(self, stream: ManagerStream) -> None:
        self._stream = stream
        self.misunderstood: str | None = None
        """Which of the last events could not be understood, and why."""
        self.jobs: dict[str, JobRecords] = {}
        """The jobs by name; the job that was silent for longest makes room for a new one."""
        self.behind = False
        """Whether received events are still to be returned."""

    @property
    def problem(self) -> str | None:
        """Why there are no events, or why they cannot be used."""
        return self._stream.problem or self.misunderstood

    def start(self) -> None:
        self._stream.start()

    def close(self) -> None:
        self._stream.close()

    def poll(self, most: int | None = None) -> list[tuple[str, Record]]:
        """Return the new records, with their jobs, of at most `most` events."""
        records: list[tuple[str, Record]] = []
        count = 0
        while count != most and (data := self._stream.next()) is not None:
            if count == 0:
                self.misunderstood = None
            count += 1
            records += [(data["job"], record) for record in self._take(data)]
        self.behind = count == most
        return records

    def _take(self, data: Data) -> list[Record]:
        name = data.get("job")
        if data.get("event") == "missed":
            for job in self.jobs.values():
                job.miss()
        if not isinstance(name, str):
            return []
        if name not in self.jobs and len(self.jobs) >= MOST_JOBS:
            del self.jobs[min(self.jobs, key=lambda name: self.jobs[name].time)]
        try:
            return self.jobs.setdefault(name, JobRecords(name)).take(data)
        except (EvenstepError, LookupError, TypeError, ValueError, AttributeError) as error:
            # Another program may listen at that address, and send anything.
            reason = f"{type(error).__name__}: {error}"
            self.misunderstood = f"an event of job {name!r} is not understood: {reason}"
            return []


class JobFollower:
    """Reads the records of one job of a manager: the named job, or the first that has a row."""

    def __init__(self, manager: ManagerFollower, job: str | None = None) -> None:
        self._manager = manager
        self._job = job
        self._held: dict[str, list[Record]] = {}

    @property
    def behind(self) -> bool:
        return self._manager.behind

    @property
    def problem(self) -> str | None:
        return self._manager.problem

    @property
    def num_missed(self) -> int:
        """Iterations without a row because events were missed."""
        job = None if self._job is None else self._manager.jobs.get(self._job)
        return 0 if job is None else job.num_missed

    def poll(self) -> list[Record]:
        """Return the new records."""
        records: list[Record] = []
        for name, record in self._manager.poll():
            if self._job is None:
                records = self._hold(name, record)
            elif name == self._job:
                records.append(record)
        return records

    def _hold(self, name: str, record: Record) -> list[Record]:
        """Keep the records before the first row, and return them with that row."""
        if isinstance(record, Header):
            self._held[name] = []
        held = self._held.get(name)
        if held is None:
            return []
        held.append(record)
        if isinstance(record, IterationRow):
            self._job, self._held = name, {}
            return held
        if len(held) > MOST_HELD or len(self._held) > MOST_JOBS:
            # The next run of the job begins with a header again.
            del self._held[name]
        return []
