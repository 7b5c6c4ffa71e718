"""`bsp`: everybody waits for everybody at the end of each iteration."""

from __future__ import annotations

from evenstep.schemes.scheme import Answer


class Bsp:
    """Every gradient counts; the last one to arrive starts the next iteration of all.

    >>> bsp = Bsp(num_workers=2)
    >>> bsp.arrive(1)
    Answer(used=True, starts=())
    >>> bsp.arrive(0)
    Answer(used=True, starts=(0, 1))
    """

    def __init__(self, num_workers: int) -> None:
        self._everybody = tuple(range(num_workers))
        self._arrived: set[int] = set()

    def arrive(self, worker: int) -> Answer:
        assert worker not in self._arrived, worker
        self._arrived.add(worker)
        if len(self._arrived) < len(self._everybody):
            return Answer(used=True, starts=())
        self._arrived.clear()
        return Answer(used=True, starts=self._everybody)
