"""What a scheme is: it answers every arrival of a gradient, and who comes and goes.

A scheme has no clock and does no I/O; an engine runs the workers and asks it. The rules between
the two, the same for every scheme and every engine:

- At the beginning all workers start. From then on a worker starts when an answer says so.
- A gradient that is `used` is pushed to the parameter server; where the answer says `update`, the
  server then applies what was pushed, before anybody starts.
- A worker that is `abandoned` stops computing; its gradient is thrown away and never shown to the
  scheme. It may be among `starts` in the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Answer:
    """What becomes of a gradient that has just arrived, and of everybody else."""

    used: bool
    """Whether it counts in an update."""
    starts: tuple[int, ...] = ()
    """The workers that start their next iteration now, in their order."""
    weight: float = 0.0
    """The share of an update that the gradient makes up: 1/n; 0 where it is not used."""
    update: bool = False
    """Whether the server applies an update now."""
    abandoned: tuple[int, ...] = ()
    """The workers that are told to drop the gradient they are computing."""


NOTHING = Answer(used=False)


class Scheme(Protocol):
    """Decides, arrival by arrival, which gradients count and who goes on."""

    @property
    def synchronous(self) -> bool:
        """Whether gradients are averaged iteration by iteration (the BSP kinds).

        Otherwise each one is an update of its own, at 1/n of the learning rate.
        """
        ...

    @property
    def num_counted(self) -> int:
        """n: how many gradients make up one update, or what is equivalent to one."""
        ...

    def arrive(self, worker: int) -> Answer:
        """Take the gradient of a worker's current iteration."""
        ...

    def leave(self, worker: int) -> Answer:
        """Go on without a worker: it died, or was taken away."""
        ...

    def join(self, worker: int) -> Answer:
        """Take a worker in that left; or start one anew that died and was never said to leave."""
        ...
