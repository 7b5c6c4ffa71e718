"""A policy for tests: sizes that change in every iteration, whatever is reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from evenstep.core import Decision, Ints, View


@dataclass(frozen=True)
class Cycle:
    """A policy whose sizes are the next of a list in every iteration."""

    table: tuple[tuple[int, ...], ...]

    uses_speeds: ClassVar[bool] = False

    def init(self, num_workers: int) -> None:
        pass

    def plan(self, view: View, state: None) -> tuple[Decision, None]:
        sizes = self.table[view.reports.iteration % len(self.table)]
        return Decision(np.array(sizes), "the next of the list"), None

    def remap(self, state: None, keep: Ints) -> None:
        pass


def cycle(*table: Sequence[int]) -> Cycle:
    return Cycle(tuple(tuple(sizes) for sizes in table))
