"""`asp` and `ssp`: workers that never wait for each other, or only when they are too far ahead."""

from __future__ import annotations

from evenstep.core import require_whole
from evenstep.simulator.schemes.scheme import NOTHING, Answer


class Asp:
    """Every gradient is an update of its own, and its worker continues at once.

    >>> Asp(num_workers=4).arrive(2)
    Answer(used=True, starts=(2,), weight=0.25, update=True, abandoned=())
    """

    synchronous = False

    def __init__(self, num_workers: int) -> None:
        self.num_counted = num_workers
        self._present = set(range(num_workers))

    def arrive(self, worker: int) -> Answer:
        assert worker in self._present, worker
        return Answer(used=True, starts=(worker,), weight=1 / self.num_counted, update=True)

    def leave(self, worker: int) -> Answer:
        self._present.discard(worker)
        return NOTHING

    def join(self, worker: int) -> Answer:
        self._present.add(worker)
        return Answer(used=False, starts=(worker,))


class Ssp:
    """A worker may start while its lead over the slowest is below the bound, in iterations.

    A bound of 1 releases workers as BSP does. Each gradient is an update of its own.

    >>> ssp = Ssp(num_workers=2, bound=2)
    >>> [ssp.arrive(0).starts, ssp.arrive(0).starts]
    [(0,), ()]
    >>> ssp.arrive(1).starts
    (0, 1)
    """

    synchronous = False

    def __init__(self, num_workers: int, bound: int = 5) -> None:
        require_whole("bound of ssp", bound)
        self.num_counted = num_workers
        self._bound = bound
        self._finished = dict.fromkeys(range(num_workers), 0)
        """Finished iterations of each present worker."""
        self._waiting: set[int] = set()
        self._slowest = 0
        self._num_slowest = num_workers

    def arrive(self, worker: int) -> Answer:
        assert worker in self._finished and worker not in self._waiting, worker
        self._waiting.add(worker)
        self._finished[worker] += 1
        if self._finished[worker] == self._slowest + 1:
            self._num_slowest -= 1
        # While one of the slowest is still running, no waiting worker may start.
        starts = self._release((worker,) if self._num_slowest else self._find_slowest())
        return Answer(True, starts, weight=1 / self.num_counted, update=True)

    def leave(self, worker: int) -> Answer:
        """Continue without a worker, and release workers that waited only for it."""
        self._finished.pop(worker, None)
        self._waiting.discard(worker)
        return Answer(used=False, starts=self._release(self._find_slowest()))

    def join(self, worker: int) -> Answer:
        """Let a worker that left start at the slowest worker's iteration; a dead one restarts."""
        if worker in self._waiting:
            return NOTHING
        if worker not in self._finished:
            self._finished[worker] = self._slowest
            self._find_slowest()
        return Answer(used=False, starts=(worker,))

    def _find_slowest(self) -> tuple[int, ...]:
        """Recompute the slowest workers, and return all waiting ones."""
        if self._finished:
            self._slowest = min(self._finished.values())
            self._num_slowest = list(self._finished.values()).count(self._slowest)
        return tuple(self._waiting)

    def _release(self, waiting: tuple[int, ...]) -> tuple[int, ...]:
        ahead = self._slowest + self._bound
        released = tuple(sorted(i for i in waiting if self._finished[i] < ahead))
        self._waiting.difference_update(released)
        return released
