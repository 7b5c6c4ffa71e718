"""From plans to events: the changes in the plan of a boundary, as events of a run log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from evenstep.core import Plan
from evenstep.runlog.event import Event


class PlanEvents:
    """Remembers the last plan, so that an unchanged plan yields no events.

    >>> events = PlanEvents()
    >>> plan = Plan(number=0, iteration=0, sizes=np.array([4, 4]), reason="start")
    >>> [event.kind for event in events.new_in(plan, ["w0", "w1"])]
    ['plan']
    >>> events.new_in(plan, ["w0", "w1"])
    []
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._phase = ""
        self._proposed: tuple[int, ...] | None = None
        self._advised: set[tuple[str, str]] = set()

    def new_in(
        self, plan: Plan, workers: Sequence[str], iteration: int | None = None
    ) -> list[Event]:
        """Return the events of a boundary whose plan, new or not, is `plan`.

        `iteration` is the iteration about to start; by default the first one of the plan.
        """
        at = plan.iteration if iteration is None else iteration
        events = [*self._adopted(plan), *self._proposal(plan, at)]
        events += [*self._entered(plan, at), *self._advice(plan, workers, at)]
        return events

    def _adopted(self, plan: Plan) -> Iterator[Event]:
        if plan.number != self._number:
            self._number = plan.number
            yield Event(
                "plan",
                plan.iteration,
                plan=plan.number,
                batch_sizes=plan.sizes.tolist(),
                predicted_time=_iteration_time(plan),
                reason=plan.reason or None,
            )

    def _proposal(self, plan: Plan, at: int) -> Iterator[Event]:
        proposed = None if plan.proposed is None else tuple(plan.proposed.tolist())
        if proposed is not None and proposed != self._proposed:
            yield Event("proposal", at, batch_sizes=proposed, reason=plan.reason or None)
        self._proposed = proposed

    def _entered(self, plan: Plan, at: int) -> Iterator[Event]:
        if plan.phase and plan.phase != self._phase:
            yield Event("phase", at, phase=plan.phase)
        self._phase = plan.phase

    def _advice(self, plan: Plan, workers: Sequence[str], at: int) -> Iterator[Event]:
        advised = {(a.kind, workers[a.worker]): a.predicted_time for a in plan.advice}
        for (kind, worker), predicted_time in advised.items():
            if (kind, worker) not in self._advised:
                yield Event("advice", at, advice=kind, worker=worker, predicted_time=predicted_time)
        self._advised = set(advised)


def _iteration_time(plan: Plan) -> float | None:
    times = plan.predicted_times
    if times is None or not np.isfinite(times).any():
        return None
    return float(np.max(times, where=np.isfinite(times), initial=0.0))
