"""The interface of schemes, which answer arrivals of gradients and changes of the workers.

A scheme has no clock and does no I/O; an engine runs the workers and asks it. The rules between
the two, for every scheme and every engine:

- At the beginning all workers start. After that a worker starts when an answer says so.
- A gradient that is `used` is pushed to the parameter server; if the answer says `update`, the
  server then applies all pushed gradients, before any worker starts.
- A worker that is `abandoned` stops computing; its gradient is discarded and never shown to the
  scheme. It may be among `starts` in the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Answer:
    """The consequences of an arrival for the gradient and for all workers."""

    used: bool
    """Whether the gradient counts in an update."""
    starts: tuple[int, ...] = ()
    """The workers that start their next iteration now, in ascending order."""
    weight: float = 0.0
    """The gradient's share of an update: 1/n, or 0 if it is not used."""
    update: bool = False
    """Whether the server applies an update now."""
    abandoned: tuple[int, ...] = ()
    """The workers that must drop the gradient they are computing."""


NOTHING = Answer(used=False)


class Scheme(Protocol):
    """Decides at each arrival which gradients count and which workers start."""

    @property
    def synchronous(self) -> bool:
        """Whether gradients are averaged iteration by iteration (the BSP kinds).

        Otherwise each gradient is an update of its own, at 1/n of the learning rate.
        """
        ...

    @property
    def num_counted(self) -> int:
        """n: the number of gradients in one update, or in its equivalent."""
        ...

    def arrive(self, worker: int) -> Answer:
        """Take the gradient of a worker's current iteration."""
        ...

    def leave(self, worker: int) -> Answer:
        """Continue without a worker that died or was removed."""
        ...

    def join(self, worker: int) -> Answer:
        """Admit a worker that left, or restart one that died without leaving."""
        ...
