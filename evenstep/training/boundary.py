"""The boundary between two iterations: the reports of one become the plan of the next.

`OwnBoundary`: every worker works out the same plan from everybody's reports. `CoordinatedBoundary`:
a coordinator does, and the workers agree on which of its plans they use. An adapter whose workers
exchange no reports has one of its own.
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
    """Has the plan of the next iteration, which is the same on all workers."""

    @property
    def first(self) -> int:
        """The iteration that the training begins with."""
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
        """The worker that the job had better go on without."""
        ...

    @property
    def slot_width(self) -> int:
        """How many numbers `slot` returns."""
        ...

    def slot(self) -> Row:
        """Return what this worker adds to its row in the gradient exchange."""
        ...

    def take(self, rows: NDArray[np.float32], done: FinishedIteration) -> None:
        """Take the rows of all workers about an iteration whose gradients were exchanged.

        A worker may do this alone, when it makes a checkpoint: it talks to nobody.
        """
        ...

    def meet(self) -> None:
        """Do what all workers do together before an iteration begins."""
        ...

    def state(self, iteration: int) -> dict[str, Any]:
        """Return everything known, for a checkpoint."""
        ...

    def restore(self, state: Mapping[str, Any], worker: int) -> Remembered:
        """Take up a checkpoint, and return what it has on one of the workers."""
        ...

    def note(self, iteration: int, text: str) -> None:
        """Write into the run log, where there is one, what happened before an iteration."""
        ...

    def summary(self) -> str:
        """Return in one line what balancing gained so far."""
        ...

    def close(self, iteration: int) -> None:
        """End the run log."""
        ...
