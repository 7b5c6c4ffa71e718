"""Where jobs come from: what the dashboard needs of a folder of run logs, or of a manager."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Protocol

from evenstep.insight.dashboard.job import DashboardJob


@dataclass(frozen=True)
class Entry:
    """A job in the list of jobs."""

    key: str
    """What the page asks for it by."""
    job: str
    """Its name, as the job has it."""
    place: str
    """Where it was found."""
    source: str
    """`measured`, `emulated` or `simulated`; empty where nobody knows."""
    num_workers: int
    state: str
    """`running`, `ended` or `silent`."""


@dataclass(frozen=True, eq=False)
class Reading:
    """A job as far as it has been read."""

    job: DashboardJob
    run: int
    """Another number: another run, of which nothing has been seen yet."""
    progress: float = 1.0
    """The fraction of it that has been read."""
    every: int = 1
    """One in so many iterations is read."""


class Source(Protocol):
    """Is asked by one thread only."""

    @property
    def title(self) -> str:
        """What is looked at, in a few words."""

    @property
    def problem(self) -> str | None:
        """Why nothing comes, where something is wrong."""

    def start(self) -> None:
        """Begin."""

    def poll(self) -> bool:
        """Go on with a piece of what is new, and say whether there was any."""

    def entries(self) -> list[Entry]:
        """Return the jobs, the newest first."""

    def read(self, key: str) -> Reading | None:
        """Return a job, and go on reading it for a while; None where there is none yet."""


def another_run(before: int = 0) -> int:
    """Return a number for a run that no run before has had, also of an earlier dashboard.

    A page that comes back after a while must see that what it knows is of another reading.

    >>> another_run(2**52) - 2**52
    1
    """
    return max(before + 1, time.time_ns() // 1_000_000)


def key_of(name: str) -> str:
    """Return a key for a name, of letters that need no escaping anywhere.

    >>> key_of("run.jsonl")
    'e08a89dcafb6'
    """
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:12]
