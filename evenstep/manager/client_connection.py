"""The other end of a connection, and by which name it is told what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from evenstep.errors import (
    EvenstepError,
    InfeasibleLimits,
    LimitReached,
    MembershipError,
    NameTaken,
    OutOfTurn,
    Refused,
    UnknownJob,
    Unplanned,
)
from evenstep.manager.job import Job

MAX_REFUSED = 100
"""Refused calls in a row after which a connection is closed."""

_PROBLEMS: list[tuple[type[EvenstepError], str]] = [
    (NameTaken, "NAME_TAKEN"),
    (MembershipError, "MEMBERSHIP"),
    (UnknownJob, "UNKNOWN_JOB"),
    (OutOfTurn, "OUT_OF_TURN"),
    (InfeasibleLimits, "INFEASIBLE"),
    (Unplanned, "UNPLANNED"),
    (LimitReached, "LIMIT"),
    (EvenstepError, "INVALID"),
]


@dataclass(eq=False)
class ClientConnection:
    """The other end of a connection."""

    send: Callable[[bytes], None]
    close: Callable[[], None]
    greeted: bool = False
    job: Job | None = None
    worker: str = ""
    refused: int = 0
    busy: bool = False
    """Whether a call of it waits for its answer."""

    def count_refusal(self, problem: str, refused: Counter[str]) -> None:
        """Add a refused call to all of a service; close the line where it only ever has such."""
        refused[problem] += 1
        self.refused += 1
        if self.refused >= MAX_REFUSED:
            self.close()


def problem_of(error: EvenstepError) -> str:
    """Return the name in `manager.thrift` of what an error is about."""
    if isinstance(error, Refused):
        return error.problem
    return next(name for kind, name in _PROBLEMS if isinstance(error, kind))
