"""An extra column behind the report rows: one number of each worker with every exchange.

What one worker knows becomes known to all workers at the same iteration boundary, without a
collective of its own.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from evenstep.core import Floats, as_floats
from evenstep.errors import InvalidSetting
from evenstep.training.report_rows import Row


class ColumnUser(Protocol):
    """Has something to say that all workers must hear at the same boundary."""

    def say(self) -> float:
        """Return a number that float32 has; asked when this worker's gradients are ready."""
        ...

    def hear(self, numbers: Floats) -> None:
        """Take the numbers of all workers, before the next iteration begins."""
        ...

    def close(self) -> None:
        """End what runs in the background."""
        ...


class ExtraColumn:
    """The column that one user may take; without a user, it says 0."""

    width = 1
    """Numbers per worker."""

    def __init__(self) -> None:
        self._user: ColumnUser | None = None

    def take(self, user: ColumnUser) -> None:
        """Let a user have the column; all workers must do so before the same iteration."""
        if self._user is not None:
            raise InvalidSetting(
                "samples may migrate under one loader of a balancer, got a second one with a rule"
            )
        self._user = user

    def slot(self) -> Row:
        """Return the number of this worker."""
        return np.array([0 if self._user is None else self._user.say()], dtype=np.float32)

    def cut(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the rows of all workers without the column, which its user hears here."""
        if self._user is not None:
            self._user.hear(as_floats(rows[:, -1]))
        return rows[:, : -self.width]

    def close(self) -> None:
        """End what the user runs in the background."""
        if self._user is not None:
            self._user.close()
