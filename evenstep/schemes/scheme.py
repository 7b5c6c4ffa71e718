"""What a scheme is: it answers every arrival of a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Answer:
    """What becomes of a gradient that has just arrived."""

    used: bool
    """Whether it counts in an update."""
    starts: tuple[int, ...]
    """The workers that start their next iteration now."""


class Scheme(Protocol):
    """Decides, arrival by arrival, which gradients count and who goes on."""

    def arrive(self, worker: int) -> Answer:
        """Take the gradient of a worker's current iteration."""
        ...
