"""An iteration, from asking for its batch until the reports about it are in."""

from __future__ import annotations

from dataclasses import dataclass

from evenstep.core import Plan
from evenstep.training.share import Share


@dataclass(eq=False)
class Iteration:
    """An iteration under way: from asking for its batch to the exchange of its gradients."""

    number: int
    """k."""
    plan: Plan
    start: float
    """When it began, in seconds since the balancer was made."""
    kept: Share
    """Batches before this one whose gradients have not been exchanged."""
    batch: Share
    place: tuple[int, ...] = ()
    """Where in the data its samples are: of which epoch, which iteration."""
    is_accumulated: bool = False
    """Whether its gradients are kept for a later exchange."""
    is_guarded: bool = False
    """Whether its gradients come from pieces that fit into memory."""
    is_done: bool = False

    @property
    def is_benched(self) -> bool:
        """Whether this worker has no samples of its own, though others have."""
        return self.batch.samples == 0 and self.batch.total > 0

    @property
    def share(self) -> Share:
        """What goes into an exchange of its gradients."""
        return self.kept + self.batch
