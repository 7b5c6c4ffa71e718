"""Presence: whether a worker is connected, and whether its lease is over. Times are given to it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from evenstep.errors import InvalidSetting

DEFAULT_LEASE = 10.0
LONGEST_LEASE = 86_400.0
LONGEST_WAIT = 3_600.0


@dataclass
class Lease:
    """What is known of a worker besides what it reports."""

    lease: float
    """Seconds that it may be silent."""
    since: float
    """When it came, or came back."""
    heard: float
    """When it last said something."""
    connected: bool = True
    instance: str = ""
    """Drawn by its client, which it tells from another worker of its name."""

    def is_over(self, now: float) -> bool:
        return now - self.heard > self.lease


def check_seconds(what: str, seconds: object, longest: float = LONGEST_LEASE) -> float:
    """Return a time span, if it is one."""
    number = isinstance(seconds, float | int) and not isinstance(seconds, bool)
    if not (number and math.isfinite(seconds) and 0 < seconds <= longest):  # type: ignore[arg-type, operator]
        raise InvalidSetting(f"{what} must be from 0 to {longest:g} s, got {seconds!r}")
    return float(seconds)  # type: ignore[arg-type]
