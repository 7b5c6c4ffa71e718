"""The boundary between two iterations: the reports of one become the plan of the next.

`LocalPlanning`: every worker computes the same plan from the reports of all. `ManagerPlanning`: a
coordinator computes plans, and the workers agree on which of them they use. An adapter whose
workers exchange no reports has a boundary of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from evenstep.core import Plan, Policy
from evenstep.training.checkpoint import Remembered
from evenstep.training.iteration import FinishedIteration
from evenstep.training.report_rows import Row


class Boundary(Protocol):
    """Provides the plan of the next iteration, which is the same on all workers."""

    @property
    def first(self) -> int:
        """The first iteration of the training."""
        ...

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of all workers, in the order of their ranks."""
        ...

    @property
    def policy(self) -> Policy[Any]:
        """The policy behind the plans."""
        ...

    @property
    def plan(self) -> Plan:
        """The newest plan that all workers have."""
        ...

    @property
    def straggler(self) -> int | None:
        """The worker without which the job would be faster, if there is one."""
        ...

    @property
    def slot_width(self) -> int:
        """The number of values that `slot` returns."""
        ...

    def slot(self) -> Row:
        """Return the values that this worker adds to its row in the gradient exchange."""
        ...

    def take(self, rows: NDArray[np.float32], done: FinishedIteration) -> None:
        """Take the rows of all workers about an iteration whose gradients were exchanged.

        It does not communicate, as a worker may call it alone when it makes a checkpoint.
        """
        ...

    def change_total(self, total: int, iteration: int) -> None:
        """Plan for another total from an iteration on; raises if that is not possible."""
        ...

    def meet(self) -> None:
        """Communicate with the other workers, where needed, before an iteration begins."""
        ...

    def state(self, iteration: int) -> dict[str, Any]:
        """Return everything learned, for a checkpoint."""
        ...

    def restore(self, state: Mapping[str, Any], worker: int) -> Remembered:
        """Restore a checkpoint, and return what it holds about one of the workers."""
        ...

    def note(self, iteration: int, text: str) -> None:
        """Write a note about the boundary before an iteration into the run log, if there is one."""
        ...

    def summary(self) -> str:
        """Return one line on the time that balancing has saved so far."""
        ...

    def close(self, iteration: int) -> None:
        """Close the run log."""
        ...
