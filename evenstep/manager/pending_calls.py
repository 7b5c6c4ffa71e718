"""Calls that wait for their reply: a report for its plan, an agreement for its outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from evenstep.errors import EvenstepError, Unplanned
from evenstep.manager.job import Job


@dataclass(eq=False)
class PendingCall:
    """A call of a worker that has no answer yet."""

    worker: str
    deadline: float
    ready: Callable[[], bytes | None]
    """Returns the reply, or None if there is none yet; raises the error that ends the call."""
    answer: Callable[[bytes | EvenstepError], None]
    give_up: Callable[[], EvenstepError]
    """Called at the deadline; returns the error to reply with."""


class PendingCalls:
    """The waiting calls of all jobs; those of one job are checked when that job changes."""

    def __init__(self) -> None:
        self._calls: dict[Job, list[PendingCall]] = {}
        self._seen: WeakKeyDictionary[Job, tuple[int, ...]] = WeakKeyDictionary()

    def add(self, job: Job, call: PendingCall) -> None:
        """Answer a call at once, if possible, or let it wait."""
        if not _answered(call):
            self._calls.setdefault(job, []).append(call)

    def remove(self, job: Job, worker: str) -> None:
        """Forget the calls of a worker whose connection was closed."""
        left = [call for call in self._calls.get(job, ()) if call.worker != worker]
        self._keep(job, left)

    def release(self, job: Job) -> None:
        """Answer the calls of a job that now have an answer."""
        # Most reports answer none of the waiting calls, of which there may be a thousand.
        if self._seen.get(job) == job.progress:
            return
        self._seen[job] = job.progress
        self._keep(job, [call for call in self._calls.get(job, ()) if not _answered(call)])

    def expire(self, now: float) -> None:
        """Fail the calls past their deadline, and renew the leases of workers that wait."""
        for job, calls in list(self._calls.items()):
            late = [call for call in calls if call.deadline <= now]
            for call in late:
                call.answer(call.give_up())
            self._keep(job, [call for call in calls if call not in late])
            for call in calls:
                if job.is_connected(call.worker):
                    job.renew(call.worker, now)
            if late:
                self.release(job)

    def fail_all(self) -> None:
        """Fail all waiting calls, as the manager stops."""
        for calls in self._calls.values():
            for call in calls:
                call.answer(Unplanned("the manager stops: continue with the last plan"))
        self._calls.clear()

    def _keep(self, job: Job, calls: list[PendingCall]) -> None:
        if calls:
            self._calls[job] = calls
        else:
            self._calls.pop(job, None)


def _answered(call: PendingCall) -> bool:
    try:
        answer = call.ready()
    except EvenstepError as error:
        call.answer(error)
        return True
    if answer is None:
        return False
    call.answer(answer)
    return True
