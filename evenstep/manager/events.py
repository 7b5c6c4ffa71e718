"""The event stream: the last things that happened, numbered, for whoever follows them.

The manager keeps so many and no more, whoever follows or not. A follower that falls behind what
is kept is told so, and goes on from there: it costs no memory, and holds nobody up.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from evenstep.core import Floats
from evenstep.manager.job_history import ClosedBoundary
from evenstep.manager.notifications import Notification

MAX_EVENTS = 1_000
MAX_ENTRIES = 50_000
"""Workers, added up over all events that are kept."""
INTERVAL = 0.25
"""Seconds between the figures of two iterations of a job, at least."""
INTERVAL_PER_WORKER = 0.0005
"""The same for every worker of a large job."""


@dataclass(eq=False)
class StreamEvent:
    """Something to be told; it is put into words when the first follower wants it."""

    number: int
    kind: str
    job: str
    time: float
    """When, in seconds since 1970."""
    worker: str | None = None
    details: dict[str, Any] = field(default_factory=dict)
    boundary: ClosedBoundary | None = None
    _text: bytes | None = None

    @property
    def num_entries(self) -> int:
        """How much it holds on to."""
        named = self.details.get("workers", ())
        return 1 + len(named if self.boundary is None else self.boundary.workers)

    @property
    def text(self) -> bytes:
        """The event as it is sent."""
        if self._text is None:
            own = {"event": self.kind, "time": round(self.time, 3), "job": self.job}
            worker = {} if self.worker is None else {"worker": self.worker}
            data = {**own, **worker, **self.details, **_figures(self.kind, self.boundary)}
            self._text = encode(self.kind, data, self.number)
        return self._text


def encode(kind: str, data: dict[str, Any], number: int | None = None) -> bytes:
    """Return an event in the format of server-sent events.

    >>> encode("left", {"worker": "w0"}, 7)
    b'id: 7\\nevent: left\\ndata: {"worker":"w0"}\\n\\n'
    """
    first = "" if number is None else f"id: {number}\n"
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return f"{first}event: {kind}\ndata: {text}\n\n".encode()


class EventStream:
    """Listens to the news and keeps the last events. On the manager's thread only."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._events: deque[StreamEvent] = deque()
        self._num_entries = 0
        # Higher than any of an earlier manager: who followed that one has seen none of these.
        self._next = int(1000 * clock())
        self._plans: dict[str, int] = {}
        self._told: dict[str, float] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self.num_followers = 0

    @property
    def newest(self) -> int:
        """The number of the last event."""
        return self._next - 1

    @property
    def oldest(self) -> int:
        """The number of the first event that is still kept, or that will be."""
        return self._events[0].number if self._events else self._next

    def after(self, number: int) -> Iterator[StreamEvent]:
        """Yield the events kept that came after one."""
        skipped = max(0, number + 1 - self.oldest)
        for i in range(skipped, len(self._events)):
            yield self._events[i]

    def hear(self, happening: Notification) -> None:
        """Keep what happened, if followers are to know it."""
        boundary = happening.boundary
        if boundary is None:
            if happening.kind in ("ended", "begun"):
                self._plans.pop(happening.job, None)
                self._told.pop(happening.job, None)
            self._keep(happening.kind, happening)
            return
        if self._plans.get(happening.job) != boundary.plan.number:
            self._plans[happening.job] = boundary.plan.number
            self._keep("plan", happening)
        if boundary.measured.observed.any() and self._is_due(happening.job, boundary):
            self._keep("iteration", happening)

    async def newer(self, number: int, patience: float) -> bool:
        """Wait until something came after an event, and say whether it did in time."""
        if self.newest > number:
            return True
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await asyncio.wait_for(future, patience)
        except (TimeoutError, asyncio.TimeoutError):
            return False
        finally:
            if future in self._waiting:
                self._waiting.remove(future)
        return True

    def _is_due(self, job: str, boundary: ClosedBoundary) -> bool:
        interval = max(INTERVAL, INTERVAL_PER_WORKER * len(boundary.workers))
        if boundary.closed - self._told.get(job, -math.inf) < interval:
            return False
        self._told[job] = boundary.closed
        return True

    def _keep(self, kind: str, happening: Notification) -> None:
        event = StreamEvent(
            self._next,
            kind,
            happening.job,
            self._clock(),
            happening.worker,
            dict(happening.details),
            happening.boundary,
        )
        self._next += 1
        self._events.append(event)
        self._num_entries += event.num_entries
        while len(self._events) > MAX_EVENTS or self._num_entries > MAX_ENTRIES:
            self._num_entries -= self._events.popleft().num_entries
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


def _figures(kind: str, boundary: ClosedBoundary | None) -> dict[str, Any]:
    """Return what an event says of a boundary."""
    if boundary is None:
        return {}
    plan = boundary.plan
    workers = list(boundary.workers)
    if kind == "plan":
        return {
            "iteration": boundary.iteration,
            "plan": plan.number,
            "workers": workers,
            "batch_sizes": plan.sizes.tolist(),
            "reason": plan.reason,
        }
    measured = boundary.measured
    return {
        "iteration": measured.iteration - 1,
        "workers": workers,
        "batch_sizes": measured.batch_sizes.tolist(),
        "times": _known(measured.times),
        "waiting": _known(boundary.waiting),
        "cpu": _known(measured.cpu),
        "next_plan": plan.number,
        "next_speeds": _known(boundary.predicted_speeds),
    }


def _known(values: Floats) -> list[float | None]:
    """Return numbers as JSON knows them: 7 digits, null where unknown."""
    return [float(f"{v:.7g}") if math.isfinite(v) else None for v in values.tolist()]
