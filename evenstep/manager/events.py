"""The event stream: the latest events of the manager, numbered, for clients that follow it.

The manager keeps a fixed number of events, with or without followers. A follower that falls behind
gets a `missed` event and continues with the oldest kept one: it costs no memory and delays nothing.
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
"""Workers in all kept events together."""
INTERVAL = 0.25
"""Least number of seconds between two `iteration` events of a job."""
INTERVAL_PER_WORKER = 0.0005
"""The same per worker, for large jobs."""
MAX_FOLLOWERS = 64


@dataclass(eq=False)
class StreamEvent:
    """An event, which is encoded when the first follower needs it."""

    number: int
    kind: str
    job: str
    time: float
    """Seconds since 1970."""
    worker: str | None = None
    details: dict[str, Any] = field(default_factory=dict)
    boundary: ClosedBoundary | None = None
    _text: bytes | None = None

    @property
    def num_entries(self) -> int:
        """How many entries of `MAX_ENTRIES` it takes."""
        named = self.details.get("workers", ())
        return 1 + len(named if self.boundary is None else self.boundary.workers)

    @property
    def text(self) -> bytes:
        """The event, encoded for sending."""
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
    """Turns notifications into events and keeps the latest ones; for the manager's thread only."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._events: deque[StreamEvent] = deque()
        self._num_entries = 0
        # Higher than any number of an earlier manager, whose followers have seen none of these.
        self._next = int(1000 * clock())
        self._plans: dict[str, int] = {}
        self._last_sent: dict[str, float] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self.num_followers = 0

    def admit(self) -> bool:
        """Count another follower, unless there are `MAX_FOLLOWERS`; then return False."""
        if self.num_followers >= MAX_FOLLOWERS:
            return False
        self.num_followers += 1
        return True

    def dismiss(self) -> None:
        """Count a follower less: one that was admitted is gone."""
        self.num_followers -= 1

    @property
    def newest(self) -> int:
        """The number of the last event."""
        return self._next - 1

    @property
    def oldest(self) -> int:
        """The number of the oldest event kept, or of the next one if there is none."""
        return self._events[0].number if self._events else self._next

    def after(self, number: int) -> Iterator[StreamEvent]:
        """Yield the kept events after a number."""
        skipped = max(0, number + 1 - self.oldest)
        for i in range(skipped, len(self._events)):
            yield self._events[i]

    def receive(self, notification: Notification) -> None:
        """Keep the events of a notification, if it has any."""
        boundary = notification.boundary
        if boundary is None:
            if notification.kind in ("ended", "begun"):
                self._plans.pop(notification.job, None)
                self._last_sent.pop(notification.job, None)
            self._keep(notification.kind, notification)
            return
        if self._plans.get(notification.job) != boundary.plan.number:
            self._plans[notification.job] = boundary.plan.number
            self._keep("plan", notification)
        if boundary.measured.observed.any() and self._is_due(notification.job, boundary):
            self._keep("iteration", notification)

    async def newer(self, number: int, patience: float) -> bool:
        """Wait until there is an event after a number; return whether one came in time."""
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
        if boundary.closed - self._last_sent.get(job, -math.inf) < interval:
            return False
        self._last_sent[job] = boundary.closed
        return True

    def _keep(self, kind: str, notification: Notification) -> None:
        event = StreamEvent(
            self._next,
            kind,
            notification.job,
            self._clock(),
            notification.worker,
            dict(notification.details),
            notification.boundary,
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
    """Return the fields of an event about a boundary."""
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
        "boundary": boundary.iteration,
        "workers": workers,
        "batch_sizes": measured.batch_sizes.tolist(),
        "times": _known(measured.times),
        "waiting": _known(boundary.waiting),
        "cpu": _known(measured.cpu),
        "next_plan": plan.number,
        "next_speeds": _known(boundary.predicted_speeds),
    }


def _known(values: Floats) -> list[float | None]:
    """Return numbers for JSON: 7 digits, null where unknown."""
    return [float(f"{v:.7g}") if math.isfinite(v) else None for v in values.tolist()]
