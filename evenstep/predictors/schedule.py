"""When a training is due."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Schedule:
    """The first training is due when there is enough to learn from, then one every so often.

    A training is handed out once: if it fails, the next one comes when that would be due.

    >>> schedule, due = Schedule(), []
    >>> for iteration in range(300):
    ...     if schedule.is_due(every=100):
    ...         due.append(iteration)
    ...         schedule = schedule.handed_out()
    ...     schedule = schedule.ticked()
    >>> due
    [0, 100, 200]
    """

    iterations: int = 0
    """Iterations observed so far."""
    handed_out_at: int = -1
    """How many there were when a training was last handed out; -1 before the first one."""
    trained_at: int = -1
    """The same for the training whose models are in use."""

    def is_due(self, every: int) -> bool:
        return self.handed_out_at < 0 or self.iterations - self.handed_out_at >= every

    def ticked(self) -> Schedule:
        """Count an iteration."""
        return replace(self, iterations=self.iterations + 1)

    def handed_out(self) -> Schedule:
        """Note that a training begins with what has been observed by now."""
        return replace(self, handed_out_at=self.iterations)

    def trained(self, began: int) -> Schedule:
        """Note that the models of a training are in use that began after so many iterations."""
        return replace(self, trained_at=began)

    def resumed(self) -> Schedule:
        """Forget a training whose result was lost, as it is when a job starts again."""
        return replace(self, handed_out_at=self.trained_at)
