"""Looking for a worker that the plans advise to go on without."""

from __future__ import annotations

from evenstep.core.plan import Plan

_PATIENCE = 10
"""Boundaries at which the advice must have been the same before a job is restarted for it."""


class StragglerWatch:
    """Looks for a worker that the plans advise to remove, again and again."""

    def __init__(self, patience: int = _PATIENCE) -> None:
        self._patience = patience
        self._worker: int | None = None
        self._count = 0

    def observe(self, plan: Plan) -> None:
        """Take note of the advice of one more boundary."""
        worker = plan.advice[0].worker if plan.advice else None
        self._count = self._count + 1 if worker == self._worker else 1
        self._worker = worker

    @property
    def found(self) -> int | None:
        """The worker to go on without, once the advice has been the same for long enough."""
        return self._worker if self._count >= self._patience else None
