"""Balancing: what a loader needs of its balancer, whichever way that comes by its plans."""

from __future__ import annotations

from typing import Protocol

import torch.distributed as dist

from evenstep.core.arrays import Ints
from evenstep.core.plan import Plan
from evenstep.pytorch.iteration import Iteration
from evenstep.training.meeting import Meeting


class Balancing(Protocol):
    """Plans the batch sizes of all workers, and is told of every iteration."""

    @property
    def total(self) -> int:
        """X: samples of all workers in one iteration."""
        ...

    @property
    def minimum(self) -> int:
        """The smallest batch size that a plan may give to a worker."""
        ...

    @property
    def fewest(self) -> int:
        """The smallest batch that the model can be trained on."""
        ...

    @property
    def worker(self) -> int: ...

    @property
    def side_group(self) -> dist.ProcessGroup:
        """The group in which the workers exchange CPU tensors."""
        ...

    @property
    def meeting(self) -> Meeting:
        """All workers, as they tell each other what is no gradient."""
        ...

    @property
    def batch_size(self) -> int:
        """This worker's planned batch size."""
        ...

    @property
    def newest_plan(self) -> Plan:
        """The plan of the next iteration, as far as it is known."""
        ...

    @property
    def iteration(self) -> int:
        """k: iterations that were trained on."""
        ...

    def begin(self) -> Iteration:
        """Begin an iteration, and plan it."""
        ...

    def has_batch(self, sizes: Ints, place: tuple[int, ...], size: float | None = None) -> None:
        """Take note of the batches of this iteration, and of where in the data they are.

        `size` is this worker's in average samples, where samples are unequal work.
        """
        ...

    def interrupted(self) -> Iteration:
        """Return the iteration that the iterations of another loader now come in the middle of."""
        ...

    def go_on(self, iteration: Iteration, last: Iteration) -> None:
        """Go on with an interrupted iteration after the `last` one of another loader."""
        ...

    def average_buffers(self) -> None:
        """Average the buffers at the end of an epoch."""
        ...
