"""Gathering: where the threads of a server wait until all workers have said something."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from evenstep.core.arrays import Floats
from evenstep.errors import EngineFailed

_LONGEST = 600.0
"""Seconds: who is silent for longer is not coming."""


class Gathering:
    """Everybody's rows, once all are there; what `act` does has been done by then."""

    def __init__(self, num_workers: int, act: Callable[[], None] | None = None) -> None:
        self._rows: dict[int, Floats] = {}
        self._heard: Floats = np.zeros((0, 0))
        self._act = act
        self._barrier = threading.Barrier(num_workers, self._gather, _LONGEST)

    @property
    def is_broken(self) -> bool:
        return self._barrier.broken

    def everybody(self, worker: int, row: Floats) -> Floats:
        """Return the rows of all workers, one after the other."""
        self._rows[worker] = row
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise EngineFailed(
                f"all workers must come to the end of an iteration, but one did not, and worker "
                f"{worker} cannot go on"
            ) from None
        # The next rows are gathered when this worker has come again, so these are still here.
        return self._heard

    def break_up(self) -> None:
        """Let nobody wait any longer, now or later."""
        self._barrier.abort()

    def _gather(self) -> None:
        self._heard = np.stack([self._rows[worker] for worker in sorted(self._rows)])
        self._rows = {}
        if self._act is not None:
            self._act()
