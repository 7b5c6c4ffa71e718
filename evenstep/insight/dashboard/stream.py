"""The stream to one page: server-sent events about the list of jobs, and about the job it shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import asdict
from typing import Any

from evenstep.insight.dashboard import view
from evenstep.insight.dashboard.source import Entry, Reading, Source
from evenstep.insight.plots.plot_data import readable
from evenstep.manager.events import encode

TICK = 0.25
"""Seconds between two looks at what is new, at least."""
PER_WORKER = 0.0002
"""Seconds between two messages about iterations for every worker of a large job, at least."""
COURSE = 1.0
"""Seconds between two courses, at least: they are the largest."""
HEARTBEAT = 5.0
"""Seconds without news after which a line is sent, so that the page knows that we live."""


async def stream(
    source: Source, key: str | None, worker: int | None, is_over: Callable[[], bool]
) -> AsyncGenerator[bytes, None]:
    """Yield events until it is over.

    Without a key about the newest job, and without a worker with more of the one that is slowest.
    """
    loop = asyncio.get_running_loop()
    page = Page(source, key, worker)
    heard = loop.time()
    yield b": the events of an evenstep dashboard\n\n"
    while not is_over():
        for name, data in page.news(loop.time()):
            yield encode(name, data)
            heard = loop.time()
        if loop.time() - heard >= HEARTBEAT:
            yield b": nothing new\n\n"
            heard = loop.time()
        await asyncio.sleep(TICK)


class Page:
    """Knows what a page has been told, and says what it has not."""

    def __init__(self, source: Source, key: str | None, worker: int | None) -> None:
        self._source = source
        self._key = key
        self._worker = worker
        self._is_chosen = key is not None
        self._told: dict[str, Any] = {}
        self._run = -1
        self._rows = self._events = 0
        self._state: tuple[object, ...] = ()
        self._now_at = self._course_at = float("-inf")
        self._course_of = -1

    def news(self, now: float) -> list[tuple[str, Any]]:
        """Return the events that are due at this time, which is in seconds."""
        entries = self._source.entries()
        self._choose(entries)
        news = self._changed("jobs", _list(self._source, entries, self._key))
        reading = None if self._key is None else self._source.read(self._key)
        return news if reading is None else [*news, *self._about(reading, now)]

    def _choose(self, entries: list[Entry]) -> None:
        """Where nobody chose a job, show the newest, and go on to the next when it is over."""
        running = any(entry.key == self._key and entry.state == "running" for entry in entries)
        if self._is_chosen or running or not entries or entries[0].key == self._key:
            return
        if self._key is None or entries[0].state == "running":
            # Who is the slowest of the next job is found out when it is there.
            self._worker = self._worker if self._key is None else None
            self._key, self._run, self._state = entries[0].key, -1, ()

    def _about(self, reading: Reading, now: float) -> list[tuple[str, Any]]:
        job = reading.job
        if reading.run != self._run:
            self._run = reading.run
            self._rows = self._events = 0
            self._now_at = self._course_at = float("-inf")
            self._course_of = -1
        about = {"run": reading.run, "key": self._key, **view.about(job)}
        news = self._changed("job", about)
        base = {"run": reading.run, "progress": round(reading.progress, 3), "every": reading.every}
        state = (base, job.num_iterations, job.num_events, job.problem)
        if state != self._state and now - self._now_at >= PER_WORKER * len(job.everybody):
            self._state, self._now_at = state, now
            news.append(("now", {**base, **view.now(job, self._rows, self._events)}))
            self._rows, self._events = job.num_iterations, job.num_events
        if job.num_iterations != self._course_of and now - self._course_at >= COURSE:
            self._course_at, self._course_of = now, job.num_iterations
            if self._worker is None:
                self._worker = view.slowest(job)
            news.append(("course", view.course(job, min(self._worker, len(job.everybody) - 1))))
        return news

    def _changed(self, name: str, data: Any) -> list[tuple[str, Any]]:
        if name in self._told and self._told[name] == data:
            return []
        self._told[name] = data
        return [(name, data)]


def _list(source: Source, entries: list[Entry], key: str | None) -> dict[str, Any]:
    problem = source.problem
    return {
        "title": readable(source.title, 200),
        "problem": None if problem is None else readable(problem, 300),
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
