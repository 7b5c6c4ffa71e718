"""`bsp`: all workers wait for each other at each boundary, or for all but the slowest."""

from __future__ import annotations

from evenstep.core import require_whole
from evenstep.errors import InvalidSetting
from evenstep.simulator.schemes.scheme import NOTHING, Answer


class Bsp:
    """The gradient that completes an iteration starts the next one on all workers.

    With backup workers (redundant execution, section 2.2.2 of the paper) the first n gradients of
    n + b workers count; the other b are abandoned, and their workers start with the rest.

    >>> bsp = Bsp(num_workers=2)
    >>> bsp.arrive(1)
    Answer(used=True, starts=(), weight=0.5, update=False, abandoned=())
    >>> bsp.arrive(0)
    Answer(used=True, starts=(0, 1), weight=0.5, update=True, abandoned=())
    >>> Bsp(num_workers=2, backups=1).arrive(1)
    Answer(used=True, starts=(0, 1), weight=1.0, update=True, abandoned=(0,))
    """

    synchronous = True

    def __init__(self, num_workers: int, backups: int = 0) -> None:
        """`num_workers` is n + b: all workers, backups included."""
        require_whole("backups of bsp", backups, least=0)
        if backups >= num_workers:
            raise InvalidSetting(
                f"backups of bsp must be fewer than the workers ({num_workers}), got {backups}"
            )
        self.num_counted = num_workers - backups
        self._present = set(range(num_workers))
        self._running = set(range(num_workers))
        self._arrived: set[int] = set()

    def arrive(self, worker: int) -> Answer:
        assert worker in self._running, worker
        self._running.remove(worker)
        self._arrived.add(worker)
        weight = 1 / self._needed
        return self._next_iteration(used=True, weight=weight) or Answer(used=True, weight=weight)

    def leave(self, worker: int) -> Answer:
        """Continue without a worker; this ends the iteration if all others have arrived."""
        self._present.discard(worker)
        self._running.discard(worker)
        return self._next_iteration(used=False, weight=0.0) or NOTHING

    def join(self, worker: int) -> Answer:
        """Let a worker that left start with the next iteration.

        A worker that died without leaving restarts the running iteration: the others wait for it.
        """
        if worker in self._running:
            return Answer(used=False, starts=(worker,))
        self._present.add(worker)
        if self._running:
            return NOTHING
        self._running.add(worker)
        return Answer(used=False, starts=(worker,))

    @property
    def _needed(self) -> int:
        """Number of gradients that complete the iteration: n, or fewer if workers have left."""
        return min(self.num_counted, len(self._arrived) + len(self._running))

    def _next_iteration(self, used: bool, weight: float) -> Answer | None:
        complete = self._arrived and len(self._arrived) >= self._needed
        if self._running and not complete:
            return None
        abandoned = tuple(sorted(self._running))
        # No arrivals: all running workers have left, and those waiting to join start.
        update = bool(self._arrived)
        self._arrived.clear()
        self._running = set(self._present)
        return Answer(used, tuple(sorted(self._present)), weight, update, abandoned)
