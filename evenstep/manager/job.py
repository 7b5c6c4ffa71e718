"""A job of the manager: its session and the leases of its workers. It reads no clock.

- A job begins when the number of workers in its settings have joined. From then on it is closed to
  others, unless it is elastic: a newcomer needs a place that a worker has left.
- The first worker that joins while no other is connected sets the iteration at which the job
  continues: after a restart of the manager, or after the workers restored a checkpoint.
- A worker whose connection is lost stays a member until its lease is over, at most `AWAY` seconds.
  Until then, a client that joins under its name replaces it; while it is connected, only its own
  client can do so.
- When all workers have left, the run has ended, and the next run begins with the learned state.
  When the leases of all workers are over, the run was interrupted; the first worker to return
  waits for the others for one lease, then the job continues with the workers present.
"""

from __future__ import annotations

import contextlib
import logging
import math
from dataclasses import dataclass
from functools import partial

from evenstep.core import Plan, Report, Reports
from evenstep.core.agreement import Agreements
from evenstep.core.planner import Planner
from evenstep.core.session import Session
from evenstep.errors import (
    EvenstepError,
    InvalidReport,
    InvalidSetting,
    LimitReached,
    MembershipError,
    NameTaken,
    OutOfTurn,
)
from evenstep.manager.background import Background, at_once
from evenstep.manager.job_history import JobHistory
from evenstep.manager.job_settings import MAX_WORKERS, JobSettings, in_name_order
from evenstep.manager.job_store import LARGEST_NUMBER, LearnedState, Saved
from evenstep.manager.notifications import Notification, Notifications

DEFAULT_LEASE = 10.0
LONGEST_LEASE = 86_400.0
LONGEST_WAIT = 3_600.0
AWAY = 10.0
"""Seconds that a worker without a connection stays a member, however long its lease."""
UNSAVED = 1_000_000
"""Plan numbers skipped after a restart: workers may hold plans that were made after the last save,
and no two plans may have the same number."""


_log = logging.getLogger(__name__)


@dataclass
class Lease:
    """The lease of a worker, and whether the worker is connected."""

    length: float
    """Seconds that the worker may be silent."""
    since: float
    """When the worker joined, or joined again."""
    heard: float
    """When the worker made its last call."""
    lost: float | None = None
    """When the worker lost its connection; None while it has one."""
    instance: str = ""
    """Random text of the worker's client, to tell it from another worker of the same name."""

    @property
    def connected(self) -> bool:
        return self.lost is None

    def is_over(self, now: float) -> bool:
        away = 0.0 if self.lost is None else now - self.lost
        return now - self.heard > self.length or away > AWAY


def check_seconds(what: str, seconds: object, longest: float = LONGEST_LEASE) -> float:
    """Return a number of seconds after checking its range."""
    number = isinstance(seconds, float | int) and not isinstance(seconds, bool)
    if not (number and math.isfinite(seconds) and 0 < seconds <= longest):  # type: ignore[arg-type, operator]
        raise InvalidSetting(f"{what} must be from 0 to {longest:g} s, got {seconds!r}")
    return float(seconds)  # type: ignore[arg-type]


class Job:
    """The workers of a job, and its session while it runs."""

    def __init__(
        self,
        name: str,
        settings: JobSettings,
        learned: LearnedState | None = None,
        notifications: Notifications | None = None,
        background: Background = at_once,
        max_workers: int = MAX_WORKERS,
    ) -> None:
        self.name = name
        self._max_workers = max_workers
        self.settings = settings
        self.history = JobHistory()
        self._notifications = notifications or Notifications()
        self._background = background
        self.changed = True
        """Whether the job changed since it was last saved."""
        self.session: Session | None = None
        self._planner: Planner | None = None
        self._leases: dict[str, Lease] = {}
        self._gathering: dict[str, int] = {}
        self._early_reports: dict[str, Report] = {}
        self.agreements = Agreements()
        self._learned = learned
        self._remembered_at = -1
        self._interrupted = False
        self._is_making = False
        """Whether a planner is being made."""
        self._hopeless: list[str] = []
        """The workers for which none can be made."""
        self._num_runs = 0
        self._held = -1
        self._least_number = 0

    @property
    def iteration(self) -> int:
        """k of the open boundary, or the first one while the job waits for its workers."""
        if self.session is not None:
            return self.session.iteration
        return min(self._gathering.values(), default=0)

    @property
    def workers(self) -> tuple[str, ...]:
        """The members, and the workers that become members at the next boundary."""
        if self.session is None:
            return tuple(self._gathering)
        return (*self.session.members, *self.session.joining)

    @property
    def knowledge(self) -> LearnedState | None:
        """The learned state of this run, or else the one that the next run begins with."""
        return self._learning() or self._learned

    @property
    def progress(self) -> tuple[int, ...]:
        """A value that changes whenever a waiting call may have an answer."""
        return self._num_runs, self.iteration, self.agreements.num_ended

    def is_connected(self, worker: str) -> bool:
        return worker in self._leases and self._leases[worker].connected

    @property
    def num_connected(self) -> int:
        return sum(lease.connected for lease in self._leases.values())

    def join(
        self, worker: str, iteration: int, lease: float, now: float, instance: str = ""
    ) -> int:
        """Add a worker, or one that returns; return the first boundary that it takes part in."""
        if self.is_connected(worker) and not self._is_same(worker, instance):
            raise NameTaken(f"worker {worker} of job {self.name} is already connected")
        if len(self.workers) >= self._max_workers and worker not in self.workers:
            raise LimitReached(f"a job must have at most {self._max_workers} workers here")
        if worker not in self.workers and self._is_closed():
            raise LimitReached(
                f"job {self.name} has its {self.settings.workers} workers and is not elastic, "
                f"got {worker}"
            )
        came = "back" if worker in self._leases else "joined"
        first = self._enter(worker, iteration)
        self.agreements.forget(worker)
        self._leases[worker] = Lease(lease, since=now, heard=now, instance=instance)
        self.changed = True
        self._notify(came, worker, iteration=first)
        if self.session is None and len(self._gathering) >= self.settings.workers:
            self._begin()
        return first

    def report(self, report: Report, held: int | None, now: float) -> None:
        """Accept a worker's report, with the number of the newest plan that it holds."""
        self._check_held(report.worker, held)
        self.renew(report.worker, now)
        session = self.session
        if session is None:
            self._early_reports[report.worker] = report
            self._held = max(self._held, -1 if held is None else held)
            return
        if held is not None:
            session.renumber(held)
        if report.worker in session.joining and report.iteration <= session.iteration:
            # Not a member yet: it gets the plan of the others, which does not include it.
            return
        session.report(report, in_order=True)
        self.agreements.go_on(report.worker, report.iteration)
        self._after_change()

    def plan_for(self, iteration: int) -> Plan | None:
        """Return the plan of an iteration, or None if it is not due yet."""
        session = self.session
        if session is None or iteration >= session.iteration:
            return None
        plan = session.plan_for(iteration)
        if plan is None:
            raise OutOfTurn(
                f"the plan of iteration {iteration} is forgotten, the job is at {session.iteration}"
            )
        return plan

    def agree(self, worker: str, iteration: int, number: int, now: float) -> None:
        """Accept the number of the newest plan that a worker holds before an iteration."""
        self.renew(worker, now)
        self.agreements.say(worker, iteration, number)
        self._after_change()

    def leave(self, worker: str, kind: str = "left") -> None:
        """Remove a worker; the others no longer wait for it."""
        if worker not in self.workers:
            raise MembershipError(f"worker {worker} is not a member of job {self.name}")
        if self.session is None:
            del self._gathering[worker]
            self._early_reports.pop(worker, None)
        else:
            self._remember()
            # Refused if no plan is possible without this worker; it then stays a member.
            self.session.leave(worker)
        self._leases.pop(worker, None)
        self.agreements.forget(worker)
        self._notify(kind, worker)
        if not self._leases:
            self._end("all workers left")
        self._after_change()

    def renew(self, worker: str, now: float) -> None:
        """Renew the lease of a worker."""
        if worker not in self._leases:
            raise MembershipError(f"worker {worker} is not a member of job {self.name}: join again")
        self._leases[worker].heard = now

    def disconnect(self, worker: str, now: float) -> None:
        """Record that a worker lost its connection; it stays a member until its lease is over."""
        if worker in self._leases:
            self._leases[worker].lost = now
            self.agreements.forget(worker)

    def expire(self, now: float) -> list[str]:
        """Remove the workers whose lease is over, and return their names."""
        over = [worker for worker, lease in self._leases.items() if lease.is_over(now)]
        if over and len(over) == len(self._leases):
            self._interrupt(over)
        else:
            over = self._expel_all(over, now)
        self._begin_without_the_rest(now)
        return over

    def close(self) -> None:
        """Stop a predictor's training, if one is running."""
        if self._planner is not None:
            self._planner.close()

    def saved(self) -> Saved:
        """Return the state to be saved."""
        self.changed = False
        leases = {worker: lease.length for worker, lease in self._leases.items()}
        return Saved(
            self.name,
            self.settings,
            self.iteration,
            leases,
            self._learning(),
            self._learned,
            self._least_number,
        )

    @classmethod
    def restored(
        cls,
        saved: Saved,
        now: float,
        notifications: Notifications | None = None,
        background: Background = at_once,
        max_workers: int = MAX_WORKERS,
    ) -> Job:
        """Restore a job from its saved state; the leases of its workers begin now.

        The job must be saved before it makes a plan, so that skipped numbers stay skipped.
        """
        job = cls(saved.job, saved.settings, saved.learned, notifications, background, max_workers)
        known = [int(learned.state["own.number"]) for learned in saved.known]
        job._least_number = max(saved.least_number, *known, -1) + UNSAVED
        if saved.running is not None:
            workers = saved.running.workers
            job._planner = saved.settings.planner(workers)
            job._planner.restore(saved.running.state)
            job._planner.number_from(job._least_number)
            job.session = job._session_of(job._planner, saved.iteration)
            job._leases = {
                worker: Lease(saved.leases.get(worker, DEFAULT_LEASE), now, now, lost=now)
                for worker in workers
            }
        return job

    def _is_closed(self) -> bool:
        return not self.settings.elastic and len(self.workers) >= self.settings.workers

    def _check_held(self, worker: str, held: int | None) -> None:
        newest = -1 if self.session is None else self.session.plan.number
        if held is not None and held > max(newest, LARGEST_NUMBER):
            raise InvalidReport(
                f"the plan of worker {worker} must be one that a manager made, with a number up to "
                f"{max(newest, LARGEST_NUMBER)}, got {held}"
            )

    def _is_same(self, worker: str, instance: str) -> bool:
        return bool(instance) and self._leases[worker].instance == instance

    def _enter(self, worker: str, iteration: int) -> int:
        if self.session is None:
            self._gathering[worker] = iteration
            return iteration
        others = (lease for name, lease in self._leases.items() if name != worker)
        if not any(lease.connected for lease in others):
            self._move_to(iteration)
        if worker in self.session.members:
            # The worker may have passed boundaries while it was away, at which others still wait.
            # If no plan is possible without it, they keep waiting.
            with contextlib.suppress(EvenstepError):
                self.session.pass_by(worker, iteration)
            return self.session.iteration
        if worker in self.session.joining:
            return self.session.iteration + 1
        return self.session.join(worker)

    def _move_to(self, iteration: int) -> None:
        """Continue the session at another iteration, with the same members."""
        assert self.session is not None and self._planner is not None
        if iteration != self.session.iteration:
            self.session = self._session_of(self._planner, iteration)
            self._num_runs += 1
            self._notify("moved", iteration=iteration)
            self.agreements = Agreements()
            members = self.session.members
            self._leases = {w: lease for w, lease in self._leases.items() if w in members}

    def _begin(self) -> None:
        """Make a planner for the workers that joined, and then start the session."""
        workers = in_name_order(tuple(self._gathering))
        if not self._is_making and workers != self._hopeless:
            self._is_making = True
            make = partial(first_planner, self.settings, workers, self._learned)
            self._background(make, partial(self._start, workers))

    def _start(self, workers: list[str], made: tuple[Planner, bool] | Exception) -> None:
        """Start the session with a planner that has the state of earlier runs, if it was usable."""
        self._is_making = False
        if in_name_order(tuple(self._gathering)) != workers:
            # Some came or went meanwhile.
            if len(self._gathering) >= self.settings.workers:
                self._begin()
            return
        if isinstance(made, Exception):
            if isinstance(made, EvenstepError):
                # A policy that needs the full number of workers keeps waiting for all.
                self._hopeless = workers
            _log.warning("job %s cannot begin: %r", self.name, made)
            return
        planner, learned = made
        start = self.iteration
        if learned:
            planner.renumber(planner.plan.number + 1, start)
        else:
            self._learned = None
        planner.number_from(self._least_number)
        self._planner, self.session = planner, self._session_of(planner, start)
        self._notify("begun", iteration=start, workers=list(planner.workers))
        self.agreements = Agreements()
        self._interrupted = False
        self._remembered_at = -1
        self._num_runs += 1
        self.session.renumber(max(self._held, self._least_number - 1))
        gathered, self._gathering = self._gathering, {}
        for worker, iteration in gathered.items():
            # They continued without a manager, each at its own pace: nobody waits for a boundary
            # that another has passed.
            with contextlib.suppress(EvenstepError):
                self.session.pass_by(worker, iteration)
        early, self._early_reports = self._early_reports, {}
        for report in early.values():
            with contextlib.suppress(EvenstepError):
                self.session.report(report, in_order=True)
        self._after_change()

    def _session_of(self, planner: Planner, iteration: int) -> Session:
        """Return a session whose decisions are recorded and announced."""

        def decide(reports: Reports) -> Plan:
            boundary = self.history.decide(planner, reports)
            self._notifications.notify(Notification("boundary", self.name, boundary=boundary))
            return boundary.plan

        return Session(planner, iteration, decide)

    def _notify(self, kind: str, worker: str | None = None, **details: object) -> None:
        self._notifications.notify(Notification(kind, self.name, worker, details=details))

    def _begin_without_the_rest(self, now: float) -> None:
        if self.session is None and len(self._gathering) >= self.settings.workers:
            # It could not be made before, for lack of memory, say.
            self._begin()
        elif self.session is None and self._interrupted and self._gathering:
            first = min((self._leases[w] for w in self._gathering), key=lambda lease: lease.since)
            if now - first.since > min(first.length, AWAY):
                self._begin()

    def _expel_all(self, workers: list[str], now: float) -> list[str]:
        """Remove workers, together if possible, and return those that are gone."""
        if self.session is not None and len(workers) > 1:
            self._remember()
            with contextlib.suppress(EvenstepError):
                self.session.leave(*workers)
                for worker in workers:
                    del self._leases[worker]
                    self.agreements.forget(worker)
                    self._notify("lost", worker)
                self._after_change()
                return workers
        return [worker for worker in workers if self._expel(worker, now)]

    def _expel(self, worker: str, now: float) -> bool:
        try:
            self.leave(worker, "lost")
        except EvenstepError:
            # No plan is possible without this worker: check again after another lease.
            lease = self._leases[worker]
            lease.heard, lease.lost = now, None if lease.connected else now
            return False
        return True

    def _interrupt(self, over: list[str]) -> None:
        self._remember()
        for worker in over:
            self._notify("lost", worker)
        self._interrupted |= self.session is not None
        self._end("the leases of all workers are over")

    def _end(self, reason: str) -> None:
        if self.session is not None:
            self._notify("ended", iteration=self.iteration, reason=reason)
        self.history.end()
        self.close()
        self.session = self._planner = None
        self._leases, self._gathering, self._early_reports = {}, {}, {}
        self.changed = True

    def _remember(self) -> None:
        """Keep the learned state for the next run, before a worker leaves.

        At the end of a run all workers leave at one boundary, and the next run needs the state of
        all of them: so this happens once per boundary.
        """
        if self.session is not None and self.session.iteration != self._remembered_at:
            self._remembered_at = self.session.iteration
            self._learned = self._learning()

    def _learning(self) -> LearnedState | None:
        if self._planner is None:
            return None
        return LearnedState(self._planner.workers, self._planner.state())

    def _after_change(self) -> None:
        self.changed = True
        if self.session is not None:
            self.agreements.settle(self.session.members)


def first_planner(
    settings: JobSettings, workers: list[str], learned: LearnedState | None
) -> tuple[Planner, bool]:
    """Return a planner, and whether it has the learned state of the last run."""
    planner = settings.planner(workers)
    if learned is None:
        return planner, False
    try:
        planner.restore(learned.state, learned.workers)
    except EvenstepError:
        return settings.planner(workers), False
    return planner, True
