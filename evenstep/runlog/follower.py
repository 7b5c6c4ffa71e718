"""Followers: the records of runs that are still going on, from a file or from a manager.

A follower is polled, and returns what is new: a header begins a run, rows and events follow it.
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
"""Bytes that are read at once: the records of a whole long log would not fit into memory."""
SKIMMED_PIECE = 2**20
"""The same where most lines are left out."""
MOST_JOBS = 1_000
"""Jobs of a manager that are followed: as many as it has at a time."""
MOST_HELD = 1_000
"""Records before the first row of a job that may be the one to follow."""


class FileFollower:
    """Reads what a run log has grown by since the last poll; the file may not be there yet.

    Another file under the name, or one that is shorter than before, is a new run log. With `skims`,
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
        """Why nothing comes: there is no file."""
        self.num_missed = 0
        """Rows that will never come: a file keeps them all."""
        self._begin(0)

    @property
    def header(self) -> Header | None:
        """The header of the file; None while it was not read."""
        return self._parser.header

    @property
    def behind(self) -> bool:
        """Whether the file has more than was read."""
        return self._position < self._size

    @property
    def progress(self) -> float:
        """The fraction of the file that was read."""
        if self._identity is None:
            return 0.0
        return self._position / self._size if self._size else 1.0

    @property
    def every(self) -> int:
        """Of the iterations before the last ones, about one in this number is read."""
        return self._skimmer.every

    def poll(self) -> list[Record]:
        """Return new records, those of a piece of the file.

        Raises RunLogError where the log is damaged, in every poll until there is another file.
        """
        try:
            with self._path.open("rb") as file:
                stat = os.fstat(file.fileno())
                identity = (stat.st_dev, stat.st_ino)
                # Nothing in a run log is ever taken back.
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
        """Return what of a piece is parsed."""
        skims = self._position < self._skim_until
        self._position += len(text)
        if not skims:
            return text
        text = self._skimmer.pass_on(text)
        return text if self._position < self._skim_until else text + self._skimmer.rest()


class ManagerFollower:
    """Reads the records of all jobs that a manager's event stream is about."""

    def __init__(self, stream: ManagerStream) -> None:
        self._stream = stream
        self.misunderstood: str | None = None
        """What of the last events makes no sense."""
        self.jobs: dict[str, JobRecords] = {}
        """The jobs by their names; a job that was silent for longest makes room for a new one."""
        self.behind = False
        """Whether more has come than was returned."""

    @property
    def problem(self) -> str | None:
        """Why nothing comes, or why it cannot be used."""
        return self._stream.problem or self.misunderstood

    def start(self) -> None:
        self._stream.start()

    def close(self) -> None:
        self._stream.close()

    def poll(self, most: int | None = None) -> list[tuple[str, Record]]:
        """Return new records, with their jobs, of at most this number of events."""
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
            # Anything may listen there, and say anything.
            why = f"{type(error).__name__}: {error}"
            self.misunderstood = f"an event of job {name!r} is not understood: {why}"
            return []


class JobFollower:
    """Reads the records of one job of a manager: the one named, or the first that has a row."""

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
        """Return new records."""
        records: list[Record] = []
        for name, record in self._manager.poll():
            if self._job is None:
                records = self._hold(name, record)
            elif name == self._job:
                records.append(record)
        return records

    def _hold(self, name: str, record: Record) -> list[Record]:
        """Keep what comes before the first row, and return it with that row."""
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
