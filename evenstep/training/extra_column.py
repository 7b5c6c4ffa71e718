"""An extra column after the report rows: one number per worker in every gradient exchange.

All workers receive the numbers at the same iteration boundary, without another collective call.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from evenstep.core import Floats, as_floats
from evenstep.errors import InvalidSetting
from evenstep.training.report_rows import Row


class ColumnUser(Protocol):
    """Sends a number that all workers must receive at the same boundary."""

    def say(self) -> float:
        """Return a number that float32 represents exactly; called when the gradients are ready."""
        ...

    def hear(self, numbers: Floats) -> None:
        """Take the numbers of all workers, before the next iteration begins."""
        ...

    def close(self) -> None:
        """Stop background work."""
        ...


class ExtraColumn:
    """The column, which has at most one user; without a user it holds 0."""

    width = 1
    """Numbers per worker."""

    def __init__(self) -> None:
        self._user: ColumnUser | None = None

    def take(self, user: ColumnUser) -> None:
        """Assign the column to a user; all workers must do so before the same iteration."""
        if self._user is not None:
            raise InvalidSetting(
                "samples may migrate under one loader of a balancer, got a second one with a rule"
            )
        self._user = user

    def slot(self) -> Row:
        """Return the number of this worker."""
        return np.array([0 if self._user is None else self._user.say()], dtype=np.float32)

    def cut(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Pass the column to its user, and return the rows of all workers without it."""
        if self._user is not None:
            self._user.hear(as_floats(rows[:, -1]))
        return rows[:, : -self.width]

    def close(self) -> None:
        """Stop the background work of the user."""
        if self._user is not None:
            self._user.close()
