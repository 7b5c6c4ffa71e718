"""Restarts: how often actors have been started anew, and when that is too often."""

from __future__ import annotations

from collections import Counter

from evenstep.errors import EngineFailed


class Restarts:
    """Counts the restarts of each actor.

    >>> restarts = Restarts(most=1)
    >>> restarts.add("worker 2", "was killed")
    >>> restarts.add("worker 2", "was killed")
    Traceback (most recent call last):
    evenstep.errors.EngineFailed: worker 2 must not need more restarts than 1, but it was killed
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts = Counter[str]()

    def add(self, who: str, why: str) -> None:
        """Count one more; an EngineFailed where it is one too many."""
        if self._counts[who] == self._most:
            raise EngineFailed(f"{who} must not need more restarts than {self._most}, but it {why}")
        self._counts[who] += 1
