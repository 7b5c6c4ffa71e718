"""Sources of jobs: the interface that a folder of run logs and a manager implement."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from evenstep.insight.dashboard.job import DashboardJob


@dataclass(frozen=True)
class Entry:
    """A job in the list of jobs."""

    key: str
    """The key in the requests of the page."""
    job: str
    """The name of the job."""
    place: str
    """The file or the manager that has it."""
    source: str
    """`measured`, `emulated` or `simulated`; empty where unknown."""
    num_workers: int
    state: str
    """`running`, `ended` or `silent`."""


@dataclass(frozen=True, eq=False)
class Reading:
    """A job as far as it was read."""

    job: DashboardJob
    run: int
    """Number of the run; a new number means a new run."""
    progress: float = 1.0
    """The fraction of the log that was read."""
    every: int = 1
    """One in this number of iterations is read."""


Remedies: TypeAlias = tuple[tuple[str, str], ...]


class Source(Protocol):
    """A source of jobs; only one thread uses it."""

    @property
    def title(self) -> str:
        """The name of the source."""

    @property
    def problem(self) -> str | None:
        """Why there are no records, if something is wrong."""

    @property
    def remedies(self) -> Remedies:
        """What to do if there is no job: words, and the line of code or the command."""

    def start(self) -> None:
        """Start reading."""

    def poll(self) -> bool:
        """Read a piece of the new records, and return whether there were any."""

    def entries(self) -> list[Entry]:
        """Return the jobs, the newest first."""

    def read(self, key: str) -> Reading | None:
        """Return a job, and keep reading it for a while; None where there is none yet."""


def another_run(before: int = 0) -> int:
    """Return an unused number for a run, also unused by an earlier dashboard process.

    A page that reconnects after a while must see that its data are of another run.

    >>> another_run(2**52) - 2**52
    1
    """
    return max(before + 1, time.time_ns() // 1_000_000)


def key_of(name: str) -> str:
    """Return a key for a name, of characters that need no escaping.

    >>> key_of("run.jsonl")
    'e08a89dcafb6'
    """
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:12]
