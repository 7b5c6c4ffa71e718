"""A rider on the gradient exchange: says one number with each, and hears those of all workers.

So what one worker knows becomes known to all at the same iteration boundary, and nobody waits.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from evenstep.core.arrays import Floats, as_floats
from evenstep.errors import InvalidSetting
from evenstep.transports.slots import Row


class Rider(Protocol):
    """Who has something to say that all workers must hear of at the same boundary."""

    def say(self) -> float:
        """Return a number that float32 has; asked when this worker's gradients are ready."""
        ...

    def hear(self, numbers: Floats) -> None:
        """Take the numbers of all workers, before the next iteration begins."""
        ...

    def close(self) -> None:
        """End what runs in the background."""
        ...


class Seat:
    """The place behind the reports that a rider may take; empty, it says 0."""

    width = 1
    """Numbers per worker."""

    def __init__(self) -> None:
        self._rider: Rider | None = None

    def take(self, rider: Rider) -> None:
        """Let somebody ride; all workers must do so before the same iteration."""
        if self._rider is not None:
            raise InvalidSetting(
                "samples may migrate under one loader of a balancer, got a second one with a rule"
            )
        self._rider = rider

    def slot(self) -> Row:
        """Return what this worker's rider says."""
        return np.array([0 if self._rider is None else self._rider.say()], dtype=np.float32)

    def cut(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the rows of all workers without what their riders said, which is heard here."""
        if self._rider is not None:
            self._rider.hear(as_floats(rows[:, -1]))
        return rows[:, : -self.width]

    def close(self) -> None:
        """End what the rider has running."""
        if self._rider is not None:
            self._rider.close()
