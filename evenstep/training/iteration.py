"""An iteration, from asking for its batch to the exchange of its gradients; and its shares."""

from __future__ import annotations

from dataclasses import dataclass

from evenstep.core import Ints, Plan
from evenstep.core.gradient_weight import gradient_weight
from evenstep.errors import InvalidSetting


@dataclass(frozen=True, eq=False)
class Share:
    """This worker's part of the batches that go into one exchange."""

    sizes: Ints
    """x of all workers: the samples really processed."""
    worker: int
    importance: Ints | None = None
    """How many samples each worker's gradient counts for in the mean, if not for x."""

    @property
    def counted(self) -> Ints:
        """How many samples each worker's gradient counts for in the mean."""
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
        """The part of this worker's gradient in the mean: ``x_i / X``, or by importance."""
        return gradient_weight(int(self.counted[self.worker]), int(self.counted.sum()))

    def require_samples(self) -> None:
        """Raise InvalidSetting where gradients count for something else than their samples."""
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
    position: tuple[int, ...] = ()
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


@dataclass(frozen=True)
class FinishedIteration:
    """An iteration whose gradients were exchanged, and whose reports are on their way."""

    iteration: int
    plan: Plan
    position: tuple[int, ...]
    sizes: Ints
    """x of all workers, really used."""
    start: float
