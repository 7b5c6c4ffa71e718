"""`asp`: workers never wait for each other."""

from __future__ import annotations

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
