"""From a manager's events to the records of a run log.

The manager writes the same run log with `--logs` (manager/run_logs.py). A row needs two boundaries:
the boundary before iteration k made its plan, the boundary after k has the workers' reports. An
`iteration` event comes from the boundary after it, and names the next plan; the plan in use in k
was announced earlier, with its workers. Where that event was missed, there is no row of k.

A device that runs ahead is measured late: then the event comes from a later boundary, which it
names, and the plan and the speeds in it are those of that boundary.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.core import Floats
from evenstep.core.late_times import LONGEST_WAIT
from evenstep.runlog.event import Event
from evenstep.runlog.header import Header
from evenstep.runlog.iteration_row import IterationRow
from evenstep.runlog.parser import Record

Data = Mapping[str, Any]

_MOST_BOUNDARIES = LONGEST_WAIT + 2
"""From the boundary before an iteration to the last one that can have its times."""


@dataclass(frozen=True)
class _PlanInUse:
    since: int
    """The first iteration in which the plan is known to be in use."""
    number: int
    workers: tuple[str, ...]
    """The members of the job in those iterations."""


class JobRecords:
    """Turns the events of one job into records, through all its runs; a header begins each run.

    A manager sends few iterations of a fast job, and never memory, limits, phases or advice. The
    start of an iteration is known if the boundary before it was sent; the predicted speed is the
    newest one sent before it.
    """

    def __init__(self, job: str) -> None:
        self.job = job
        self.time = 0.0
        """When the newest event happened, in seconds since 1970."""
        self.num_missed = 0
        """Iterations without a row because events were missed."""
        self._settings: Data = {}
        self._misses = self._is_stale = False
        self._stop()

    def miss(self) -> None:
        """Note that events were missed, possibly of this job."""
        self._misses = self._is_stale = True

    def take(self, data: Data) -> list[Record]:
        """Return the records that an event completes.

        Raises an error of any kind if the event is malformed; the next event begins another run.
        """
        try:
            return self._take(data)
        except Exception:
            # The records of this event are lost, and a header may be among them.
            self._stop()
            raise

    def _take(self, data: Data) -> list[Record]:
        self.time = float(data["time"])
        kind = data["event"]
        if kind == "created":
            self._settings = dict(data["settings"])
        elif kind in ("begun", "recovered"):
            self._stop()
        elif kind == "moved":
            self._move(data["iteration"])
        elif kind == "ended":
            return list(self._end(data))
        elif kind == "plan":
            return [*self._reach(data, data["iteration"]), *self._plan(data)]
        elif kind == "iteration":
            return [*self._reach(data, _boundary_of(data)), *self._iteration(data)]
        return []

    def _stop(self) -> None:
        """Forget the run; the next boundary begins another."""
        self._workers: list[str] | None = None
        """The order of the arrays; None between two runs."""
        self._began = 0.0
        self._boundaries: deque[tuple[int, float]] = deque(maxlen=_MOST_BOUNDARIES)
        """The last boundaries that were sent, with their times."""
        self._last_row = -1
        self._members_since = -1
        """The iteration of the last join or leave."""
        self._sent: deque[Data] = deque(maxlen=_MOST_BOUNDARIES)
        """The last `iteration` events."""
        self._plans: deque[_PlanInUse] = deque(maxlen=_MOST_BOUNDARIES)
        """The plans of the last iterations, and that of the next one."""
        self._held: Data | None = None
        """A `plan` event for other workers, held until the row before it has arrived."""

    @property
    def _boundary(self) -> int:
        return self._boundaries[-1][0] if self._boundaries else -1

    def _move(self, iteration: int) -> None:
        """Continue at another iteration: with the same plan, unless another one is announced."""
        plan = self._plans[-1] if self._plans else None
        if iteration <= self._boundary:
            # A run log never goes back.
            self._stop()
        self._plans.clear()
        if plan is not None:
            self._plans.append(_PlanInUse(iteration, plan.number, plan.workers))

    def _end(self, data: Data) -> Iterator[Record]:
        if self._workers is not None:
            yield from self._release()
            # The event has the open boundary; the run log ends with the last closed one.
            yield Event("end", max(0, data["iteration"] - 1), reason=data.get("reason"))
        self._stop()

    def _reach(self, data: Data, boundary: int) -> Iterator[Record]:
        """Continue at a boundary; an earlier boundary begins another run, and so does a row again.

        An `iteration` event without its boundary may only be late.
        """
        is_row = data["event"] == "iteration"
        is_row_again = is_row and data["iteration"] <= self._last_row
        is_earlier = boundary < self._boundary
        if is_row_again or (is_earlier and (not is_row or "boundary" in data)):
            self._stop()
        if self._workers is None:
            self._workers, self._began = list(data["workers"]), self.time
            yield self._header(data)
        if boundary > self._boundary:
            self._boundaries.append((boundary, self.time))

    def _header(self, data: Data) -> Header:
        settings = self._settings
        return Header(
            source="measured",
            job=self.job,
            workers=data["workers"],
            total=settings.get("total", sum(data["batch_sizes"])),
            policy=settings.get("policy", "unknown"),
            predictor=settings.get("predictor", "unknown"),
            settings={
                name: settings[name] for name in ("minimum", "granularity") if name in settings
            },
        )

    def _plan(self, data: Data) -> Iterator[Record]:
        yield from self._release()
        self._learn(data["iteration"], data["plan"], data["workers"])
        self._held = data
        if set(data["workers"]) == set(self._workers or ()):
            yield from self._release()

    def _release(self) -> Iterator[Record]:
        """Yield the plan that was held back, after the changes of membership."""
        data, self._held = self._held, None
        if data is not None:
            yield from self._change(data["workers"], data["iteration"])
            sizes = self._in_order(data, "batch_sizes").astype(np.int64).tolist()
            reason = data.get("reason") or None
            yield Event("plan", data["iteration"], data["plan"], sizes, reason=reason)

    def _learn(self, since: int, number: int, workers: Sequence[str]) -> None:
        """Note the plan of an iteration; plan numbers are unique in a job."""
        if not self._plans or self._plans[-1].number != number:
            if self._is_stale:
                # The plans in between, and their first iterations, are unknown.
                self._plans.clear()
            self._plans.append(_PlanInUse(since, number, tuple(workers)))
        self._is_stale = False

    def _iteration(self, data: Data) -> Iterator[Record]:
        k, boundary = data["iteration"], _boundary_of(data)
        if self._held is not None and self._held["iteration"] <= k:
            yield from self._release()
        self._learn(boundary, data["next_plan"], data["workers"])
        plan = next((plan for plan in reversed(self._plans) if plan.since <= k), None)
        # Workers that joined or left since the boundary before are not in the row.
        present = frozenset(data["workers"])
        members = [] if plan is None else [name for name in plan.workers if name in present]
        # A late row may be of the time before the members changed, or before the job moved back:
        # a run log never goes back.
        is_in_order = self._members_since <= k < boundary
        if plan is not None and members and is_in_order:
            yield from self._change(members, k)
            yield from self._gap(k)
            yield self._row(data, plan.number)
            self._last_row = k
        self._sent.append(data)
        yield from self._release()

    def _gap(self, iteration: int) -> Iterator[Record]:
        missed = iteration - self._last_row - 1 if self._last_row >= 0 else 0
        if self._misses and missed:
            self.num_missed += missed
            yield Event("note", iteration, text=f"{missed} rows missed")
        self._misses = False

    def _row(self, data: Data, plan: int) -> IterationRow:
        k, last = data["iteration"], self._sent[-1] if self._sent else None
        starts = [time - self._began for boundary, time in self._boundaries if boundary == k]
        is_next = last is not None and last["iteration"] == k - 1
        before = next((sent for sent in reversed(self._sent) if _boundary_of(sent) <= k), None)
        return IterationRow(
            iteration=k,
            plan=plan,
            start=starts[0] if starts else math.nan,
            batch_sizes=self._in_order(data, "batch_sizes").astype(np.int64),
            times=self._in_order(data, "times"),
            waiting=self._known(data, "waiting"),
            predicted_speeds=self._known(before, "next_speeds"),
            # A row has c at its start: the end of k-1. If k-1 was not sent, c at the end of k is
            # the nearest value.
            cpu=self._known(last if is_next else data, "cpu"),
        )

    def _change(self, workers: Sequence[str], iteration: int) -> Iterator[Record]:
        """Yield the leaves and joins; the other workers keep their positions."""
        members = self._workers or []
        if frozenset(members) != frozenset(workers):
            self._members_since = iteration
        for worker in [worker for worker in members if worker not in frozenset(workers)]:
            members.remove(worker)
            yield Event("leave", iteration, worker=worker, workers=list(members))
        known = frozenset(members)
        for worker in [worker for worker in workers if worker not in known]:
            members.append(worker)
            yield Event("join", iteration, worker=worker, workers=list(members))

    def _in_order(self, data: Data, name: str) -> Floats:
        """Return the values of an event in the order of the arrays."""
        of = dict(zip(data["workers"], data[name], strict=True))
        known = [of[worker] for worker in self._workers or ()]
        return np.array([np.nan if value is None else value for value in known], dtype=np.float64)

    def _known(self, data: Data | None, name: str) -> Floats | None:
        """Return the values in the order of the arrays; None if unknown, or not for all workers."""
        if data is None or data.get(name) is None:
            return None
        if not frozenset(data["workers"]).issuperset(self._workers or ()):
            return None
        values = self._in_order(data, name)
        return None if np.isnan(values).all() else values


def _boundary_of(data: Data) -> int:
    """Return the boundary that an `iteration` event comes from; older managers do not send it."""
    boundary: int = data["boundary"] if "boundary" in data else data["iteration"] + 1
    return boundary
