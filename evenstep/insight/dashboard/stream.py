"""The stream to one page: server-sent events with the list of jobs, and with the job it shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import asdict
from typing import Any

from evenstep.insight.dashboard import view
from evenstep.insight.dashboard.job import DashboardJob
from evenstep.insight.dashboard.source import Entry, Reading, Source
from evenstep.insight.plots.plot_data import readable
from evenstep.manager.events import encode

TICK = 0.25
"""Least seconds between two checks for new data."""
PER_WORKER = 0.0002
"""Least seconds between two messages about iterations, per worker of a large job."""
HISTORY = 1.0
"""Least seconds between two histories: they are the largest messages."""
SETTLED = 1.0
"""Least seconds between two computations of the settled figures."""
HEARTBEAT = 5.0
"""Seconds without an event after which a comment is sent, so that the page sees a live server."""


async def stream(
    source: Source,
    key: str | None,
    worker: int | None,
    is_over: Callable[[], bool],
    other: str | None = None,
) -> AsyncGenerator[bytes, None]:
    """Yield events until `is_over`.

    Without a key, they show the newest job; without a worker, the details of the slowest one.
    `other` is the key of a second job, which is drawn over the first.
    """
    loop = asyncio.get_running_loop()
    page = Page(source, key, worker, other)
    sent = loop.time()
    yield b": the events of an evenstep dashboard\n\n"
    while not is_over():
        for name, data in page.due_events(loop.time()):
            yield encode(name, data)
            sent = loop.time()
        if loop.time() - sent >= HEARTBEAT:
            yield b": nothing new\n\n"
            sent = loop.time()
        await asyncio.sleep(TICK)


class Page:
    """Knows the events that a page has received, and returns the new ones."""

    def __init__(
        self, source: Source, key: str | None, worker: int | None, other: str | None = None
    ) -> None:
        self._source = source
        self._key = key
        self._worker = worker
        self._other = other
        self._is_chosen = key is not None
        self._sent: dict[str, Any] = {}
        self._state: tuple[object, ...] = ()
        self._begin(run=-1)

    def _begin(self, run: int) -> None:
        self._run = run
        self._rows = self._events = 0
        self._now_at = self._history_at = self._settled_at = float("-inf")
        self._settled: dict[str, Any] | None = None
        self._settled_of = -1
        self._was_read = False
        """Whether the log has been read up to its end: then the figures are due at once."""
        self._history_of = -1
        self._overlay_of: tuple[object, ...] = ()
        self._overlay_at = float("-inf")

    def due_events(self, now: float) -> list[tuple[str, Any]]:
        """Return the events that are due at the time `now`, in seconds."""
        entries = self._source.entries()
        self._choose(entries)
        events = self._changed("jobs", _list(self._source, entries, self._key))
        reading = None if self._key is None else self._source.read(self._key)
        return events if reading is None else [*events, *self._about(reading, now)]

    def _choose(self, entries: list[Entry]) -> None:
        """If the user chose no job, show the newest, and the next one when it has ended."""
        running = any(entry.key == self._key and entry.state == "running" for entry in entries)
        if self._is_chosen or running or not entries or entries[0].key == self._key:
            return
        if self._key is None or entries[0].state == "running":
            # The slowest worker of the next job is found when the job is read.
            self._worker = self._worker if self._key is None else None
            self._key, self._run, self._state = entries[0].key, -1, ()

    def _about(self, reading: Reading, now: float) -> list[tuple[str, Any]]:
        job = reading.job
        if reading.run != self._run:
            self._begin(reading.run)
        about = {"run": reading.run, "key": self._key, **view.about(job)}
        events = self._changed("job", about)
        base = {"run": reading.run, "progress": round(reading.progress, 3), "every": reading.every}
        is_read = reading.progress == 1 and not self._was_read
        due = now - self._settled_at >= SETTLED or is_read
        self._was_read |= is_read
        if job.num_iterations != self._settled_of and due:
            self._settled, self._settled_of = view.figures(job), job.num_iterations
            self._settled_at = now
        state = (base, job.num_iterations, job.num_events, job.problem, self._settled_of)
        if state != self._state and now - self._now_at >= PER_WORKER * len(job.all_workers):
            self._state, self._now_at = state, now
            told = view.now(job, self._rows, self._events, self._settled)
            events.append(("now", {**base, **told}))
            self._rows, self._events = job.num_iterations, job.num_events
        if job.num_iterations != self._history_of and now - self._history_at >= HISTORY:
            self._history_at, self._history_of = now, job.num_iterations
            events.append(("course", view.history(job, self._shown_worker(job))))
            if self._worker is None and reading.progress == 1:
                self._worker = self._shown_worker(job)
        return [*events, *self._overlay(job, now)]

    def _shown_worker(self, job: DashboardJob) -> int:
        """Return the chosen worker; before a log was read, the straggler so far."""
        worker = view.slowest(job) if self._worker is None else self._worker
        return min(worker, len(job.all_workers) - 1)

    def _overlay(self, job: DashboardJob, now: float) -> list[tuple[str, Any]]:
        """Return the history of the second job, if it has changed and is not the first one."""
        if self._other is None or self._other == self._key:
            return []
        other = self._source.read(self._other)
        if other is None or now - self._overlay_at < HISTORY:
            return []
        worker = job.all_workers[self._shown_worker(job)]
        state = (other.run, other.job.num_iterations, worker)
        if state == self._overlay_of:
            return []
        self._overlay_of, self._overlay_at = state, now
        return [("other", {"key": self._other, **view.overlay(other.job, worker)})]

    def _changed(self, name: str, data: Any) -> list[tuple[str, Any]]:
        if name in self._sent and self._sent[name] == data:
            return []
        self._sent[name] = data
        return [(name, data)]


def _list(source: Source, entries: list[Entry], key: str | None) -> dict[str, Any]:
    problem = source.problem
    return {
        "title": readable(source.title, 200),
        "problem": None if problem is None else readable(problem, 300),
        "remedies": []
        if problem is None
        else [[words, readable(line, 300)] for words, line in source.remedies],
        "chosen": key,
        "jobs": [
            {
                **asdict(entry),
                "job": readable(entry.job, view.LONGEST_NAME),
                "place": readable(entry.place, view.LONGEST_NAME),
            }
            for entry in entries
        ],
    }
