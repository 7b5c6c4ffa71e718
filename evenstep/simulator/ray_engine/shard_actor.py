"""The actor of a shard."""

from __future__ import annotations

import os
from typing import Any

from evenstep.simulator.engine.optimizers import Optimizer
from evenstep.simulator.engine.parameter_server import Shard
from evenstep.simulator.ray_engine.calls import Arrays, pack, unpack

State = dict[str, Any]


class ShardActor:
    """A shard to which workers push, and which the coordinator updates.

    A pushed gradient waits until the coordinator counts it; of each worker only the newest is kept.
    """

    def __init__(self, arrays: Arrays, optimizer: Optimizer, average: bool) -> None:
        self._shard = Shard(unpack(arrays), optimizer, average)
        self._version = 0
        """Number of updates."""
        self._pushed: dict[int, tuple[int, Arrays]] = {}

    def ready(self) -> int:
        """Return the id of this process."""
        return os.getpid()

    def load(self, state: State | None, version: int) -> None:
        """Continue from the state of another shard, or from the initial one if it is None."""
        if state is not None:
            self._shard.load(state)
        self._version = version

    def pull(self) -> tuple[int, Arrays]:
        """Return the number of updates and the tensors after them."""
        return self._version, pack(self._shard.pull())

    def push(self, worker: int, ticket: int, gradients: Arrays) -> None:
        if ticket >= self._pushed.get(worker, (ticket,))[0]:
            self._pushed[worker] = (ticket, gradients)

    def count(self, worker: int, ticket: int, weight: float) -> bool:
        """Add a pushed gradient to the next update; False if it is not here."""
        found, gradients = self._pushed.get(worker, (None, []))
        if found != ticket:
            return False
        self._shard.push(unpack(gradients), weight)
        del self._pushed[worker]
        return True

    def update(self, keep: bool) -> tuple[int, State | None]:
        """Apply the counted gradients; return the number of updates, and the state if `keep`."""
        self._shard.update()
        self._version += 1
        return self._version, self._shard.state() if keep else None
