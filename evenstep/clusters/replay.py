"""Replaying a trace: which level holds when, on a clock that may run faster."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from evenstep.clusters.traces import Trace
from evenstep.errors import InvalidSetting


@dataclass(frozen=True)
class Level:
    """What others take of a machine for a while."""

    second: float
    """When it begins in the trace."""
    start: float
    """When it begins in the replay, in seconds."""
    end: float
    cpu: float
    """Share of the CPUs that is taken."""
    memory: float
    """Share of the memory that is taken."""


def replay(trace: Trace, speedup: float = 1.0, duration: float | None = None) -> Iterator[Level]:
    """Yield the levels of a replay that lasts `duration` seconds, or as long as the trace.

    A trace that is shorter begins anew, or its last level goes on, as it is made.

    >>> import numpy as np
    >>> busy = Trace(np.array([0, 60]), np.array([1.0, 0.5]), np.ones(2), "second", repeat=90)
    >>> [(level.start, level.end, level.cpu) for level in replay(busy, speedup=30)]
    [(0.0, 2.0, 0.0), (2.0, 3.0, 0.5)]
    """
    if duration is None:
        if trace.repeat is None:
            raise InvalidSetting(
                "a trace of levels goes on for ever: a duration must be given, got none"
            )
        duration = trace.repeat / speedup
    length = math.inf if trace.repeat is None else trace.repeat
    at, cpu, memory = (values.tolist() for values in (trace.at, 1 - trace.cpu, 1 - trace.memory))
    begun = 0.0
    while begun / speedup < duration:
        for second, end, *taken in zip(at, [*at[1:], length], cpu, memory, strict=True):
            start = (begun + second) / speedup
            if start >= duration:
                return
            shares = (round(share, 12) for share in taken)
            yield Level(second, start, min((begun + end) / speedup, duration), *shares)
        begun += length
