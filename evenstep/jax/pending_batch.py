"""Checks that every batch of a loader gets one gradient, and every gradient has a batch."""

from __future__ import annotations

from evenstep.errors import OutOfTurn
from evenstep.training.epochs import Dealt


class PendingBatch:
    """Holds the batch whose gradient is due.

    >>> PendingBatch().take()
    Traceback (most recent call last):
    evenstep.errors.OutOfTurn: value_and_grad must be called once for each batch of
    balancer.loader, got a call without a new batch
    """

    def __init__(self) -> None:
        self._dealt: Dealt | None = None

    def give(self, dealt: Dealt) -> None:
        """Set the batch that a loader has just yielded."""
        self._dealt = dealt

    def take(self) -> Dealt:
        """Return the batch whose gradient is due, once."""
        dealt, self._dealt = self._dealt, None
        if dealt is None:
            raise OutOfTurn(
                "value_and_grad must be called once for each batch of balancer.loader, got a call "
                "without a new batch"
            )
        return dealt
