"""Iterations, the batches of all workers in them, and the passes over loaders they come from."""

from __future__ import annotations

from dataclasses import dataclass, field

from evenstep.core import Ints, Plan, gradient_weight
from evenstep.errors import InvalidSetting


@dataclass(frozen=True, eq=False)
class Share:
    """The batches that go into one gradient exchange, and the part of this worker in them."""

    sizes: Ints
    """x of all workers: the samples actually processed."""
    worker: int
    importance: Ints | None = None
    """The number of samples that each gradient counts for in the mean, if not x."""

    @property
    def counted(self) -> Ints:
        """The number of samples that each gradient counts for in the mean."""
        return self.sizes if self.importance is None else self.importance

    @property
    def samples(self) -> int:
        """x of this worker."""
        return int(self.sizes[self.worker])

    @property
    def total(self) -> int:
        """X: samples of all workers."""
        return int(self.sizes.sum())

    @property
    def weight(self) -> float:
        """The weight of this worker's gradient in the mean: ``x_i / X``, or by importance."""
        return gradient_weight(int(self.counted[self.worker]), int(self.counted.sum()))

    def require_samples(self) -> None:
        """Raise InvalidSetting where gradients are not weighted by their samples."""
        if self.importance is not None:
            raise InvalidSetting(
                "with importance=True a loss must be a mean over this worker's own batch, which "
                "stands for its partition: leave balancer.weigh out"
            )

    def __add__(self, other: Share) -> Share:
        plain = self.importance is None and other.importance is None
        importance = None if plain else self.counted + other.counted
        return Share(self.sizes + other.sizes, self.worker, importance)


@dataclass(eq=False)
class Pass:
    """One pass over a loader, from which batches are handed out."""

    num_begun: int = 0
    """Iterations that were begun."""
    has_trained: bool = False
    """Whether the gradients of a batch were computed."""
    has_ended: bool = False
    """Whether it is exhausted, or was left early."""

    @property
    def is_unused(self) -> bool:
        """Whether it has ended, and nothing was trained on: it was an evaluation, say."""
        return self.has_ended and not self.has_trained


@dataclass(eq=False)
class Iteration:
    """An iteration, from the request for its batch to the exchange of its gradients."""

    number: int
    """The number of finished iterations when its batch was requested; k, if none is ahead."""
    plan: Plan
    start: float
    """When it began, in seconds since the loop was made."""
    batch: Share
    of: Pass = field(default_factory=Pass)
    size: float = 0.0
    """The reported size of this worker's batch."""
    loading: float = 0.0
    """Seconds from the request for its batch until it was there."""
    position: tuple[int, ...] = ()
    """The position of its samples in the data: epoch, iteration of the epoch."""
    is_accumulated: bool = False
    """Whether its gradients are kept for a later exchange."""
    is_guarded: bool = False
    """Whether its gradients come from pieces of the batch that fit into memory."""
    is_done: bool = False
    """Whether its gradients are being exchanged, or were."""

    @property
    def is_retired(self) -> bool:
        """Whether its gradients were computed, so that the next ones are usually of another."""
        return self.is_done or self.is_accumulated

    @property
    def is_benched(self) -> bool:
        """Whether this worker has no samples of its own, though others have."""
        return self.batch.samples == 0 and self.batch.total > 0


@dataclass(frozen=True)
class FinishedIteration:
    """An iteration whose gradients are being exchanged, together with its reports."""

    iteration: int
    plan: Plan
    position: tuple[int, ...]
    sizes: Ints
    """x of all workers, as actually used."""
    start: float
