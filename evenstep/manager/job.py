"""A job of the manager: its session, and which of its workers are there. Times are given to it.

- A job begins when as many workers have joined as its settings say.
- The first worker to come while no other is connected says where the job goes on: after the manager
  was restarted, and when the workers went back to a checkpoint.
- A worker whose connection is lost stays a member until its lease is over. Who comes under its name
  meanwhile is taken for it; while it is connected, the name is taken for all but itself.
- When all workers have left, the run has ended, and what was learned waits for the next one. When
  the leases of all are over, it has broken off; whoever comes back first waits for the others for
  one lease and then goes on with those who are there.
"""

from __future__ import annotations

import contextlib

from evenstep.core import Plan, Report, Reports
from evenstep.core.agreement import Agreements, Outcome
from evenstep.core.planner import Planner
from evenstep.core.session import Session
from evenstep.errors import EvenstepError, LimitReached, MembershipError, NameTaken, OutOfTurn
from evenstep.manager.job_history import JobHistory
from evenstep.manager.job_settings import MAX_WORKERS, JobSettings, in_name_order
from evenstep.manager.job_store import LearnedState, Saved
from evenstep.manager.lease import DEFAULT_LEASE, Lease
from evenstep.manager.notifications import Notification, Notifications

UNSAVED = 1_000_000
"""Numbers left out after a restart: workers may hold plans that were made after the last save, and
no two plans may have one number."""


class Job:
    """The workers of a job and its session, once it runs."""

    def __init__(
        self,
        name: str,
        settings: JobSettings,
        learned: LearnedState | None = None,
        news: Notifications | None = None,
    ) -> None:
        self.name = name
        self.settings = settings
        self.course = JobHistory()
        self._news = news or Notifications()
        self.changed = True
        """Whether there is something new to be saved."""
        self._session: Session | None = None
        self._planner: Planner | None = None
        self._presence: dict[str, Lease] = {}
        self._gathering: dict[str, int] = {}
        self._early: dict[str, Report] = {}
        self._agreements = Agreements()
        self._learned = learned
        self._remembered_at = -1
        self._broken_off = False
        self._num_runs = 0
        self._held = -1
        self._least_number = 0

    @property
    def session(self) -> Session | None:
        return self._session

    @property
    def iteration(self) -> int:
        """k of the open boundary; while the job gathers, that at which it would begin."""
        if self._session is not None:
            return self._session.iteration
        return min(self._gathering.values(), default=0)

    @property
    def workers(self) -> tuple[str, ...]:
        """Members, and those who are about to be."""
        if self._session is None:
            return tuple(self._gathering)
        return (*self._session.members, *self._session.joining)

    @property
    def knowledge(self) -> LearnedState | None:
        """What was learned in this run, or else what the next one begins with."""
        return self._learning() or self._learned

    @property
    def progress(self) -> tuple[int, ...]:
        """Changes whenever somebody who waits may have an answer."""
        return self._num_runs, self.iteration, self._agreements.num_ended

    def is_connected(self, worker: str) -> bool:
        return worker in self._presence and self._presence[worker].connected

    @property
    def num_connected(self) -> int:
        return sum(presence.connected for presence in self._presence.values())

    def join(
        self, worker: str, iteration: int, lease: float, now: float, instance: str = ""
    ) -> int:
        """Let a worker come, or come back, and return the first boundary that it takes part in."""
        if self.is_connected(worker) and not self._is_same(worker, instance):
            raise NameTaken(f"worker {worker} of job {self.name} is there already, and connected")
        if len(self.workers) >= MAX_WORKERS and worker not in self.workers:
            raise LimitReached(f"a job must have at most {MAX_WORKERS} workers")
        came = "back" if worker in self._presence else "joined"
        first = self._enter(worker, iteration)
        self._agreements.forget(worker)
        self._presence[worker] = Lease(lease, since=now, heard=now, instance=instance)
        self.changed = True
        self._tell(came, worker, iteration=first)
        if self._session is None and len(self._gathering) >= self.settings.workers:
            self._begin()
        return first

    def report(self, report: Report, held: int | None, now: float) -> None:
        """Take a worker's report, and the number of the newest plan that it holds."""
        self.hear(report.worker, now)
        session = self._session
        if session is None:
            self._early[report.worker] = report
            self._held = max(self._held, -1 if held is None else held)
            return
        if held is not None:
            session.renumber(held)
        if report.worker in session.joining and report.iteration <= session.iteration:
            # Not yet its turn: it gets the plan of the others, and has no part in it.
            return
        session.report(report, in_order=True)
        self._agreements.go_on(report.worker, report.iteration)
        self._after_change()

    def plan_for(self, iteration: int) -> Plan | None:
        """Return the plan of an iteration, or None where it is not due yet."""
        session = self._session
        if session is None or iteration >= session.iteration:
            return None
        plan = session.plan_for(iteration)
        if plan is None:
            raise OutOfTurn(
                f"the plan of iteration {iteration} is forgotten, the job is at {session.iteration}"
            )
        return plan

    def agree(self, worker: str, iteration: int, number: int, now: float) -> None:
        """Take the number of the newest plan that a worker holds before an iteration."""
        self.hear(worker, now)
        self._agreements.say(worker, iteration, number)
        self._after_change()

    def agreed(self, iteration: int) -> Outcome | None:
        return self._agreements.outcome(iteration)

    def give_up_agreement(self, iteration: int) -> None:
        self._agreements.fail(iteration)

    def leave(self, worker: str, kind: str = "left") -> None:
        """Let a worker go; nobody waits for it any more."""
        if worker not in self.workers:
            raise MembershipError(f"worker {worker} is not a member of job {self.name}")
        if self._session is None:
            del self._gathering[worker]
            self._early.pop(worker, None)
        else:
            self._remember()
            # Where the others cannot go on without it, this is refused, and it stays.
            self._session.leave(worker)
        self._presence.pop(worker, None)
        self._agreements.forget(worker)
        self._tell(kind, worker)
        if not self._presence:
            self._end("all workers left")
        self._after_change()

    def hear(self, worker: str, now: float) -> None:
        """Note that a worker is alive."""
        if worker not in self._presence:
            raise MembershipError(f"worker {worker} is not a member of job {self.name}: join again")
        self._presence[worker].heard = now

    def disconnect(self, worker: str) -> None:
        """Note that a worker's connection is lost; it stays a member until its lease is over."""
        if worker in self._presence:
            self._presence[worker].connected = False
            self._agreements.forget(worker)

    def expire(self, now: float) -> list[str]:
        """Let those go whose lease is over, and return their names."""
        over = [worker for worker, presence in self._presence.items() if presence.is_over(now)]
        if over and len(over) == len(self._presence):
            self._break_off(over)
        else:
            over = [worker for worker in over if self._expel(worker, now)]
        self._begin_without_the_rest(now)
        return over

    def close(self) -> None:
        """End a training that may be going on."""
        if self._planner is not None:
            self._planner.close()

    def saved(self) -> Saved:
        """Return all that must outlive the manager."""
        self.changed = False
        leases = {worker: presence.lease for worker, presence in self._presence.items()}
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
    def restored(cls, saved: Saved, now: float, news: Notifications | None = None) -> Job:
        """Make a job of what was saved; its workers are taken to have been heard just now.

        It must be saved before it makes a plan: the numbers that it left out stay left out.
        """
        job = cls(saved.job, saved.settings, saved.learned, news)
        known = [int(learned.state["own.number"]) for learned in saved.known]
        job._least_number = max(saved.least_number, *known, -1) + UNSAVED
        if saved.running is not None:
            workers = saved.running.workers
            job._planner = saved.settings.planner(workers)
            job._planner.restore(saved.running.state)
            job._planner.number_from(job._least_number)
            job._session = job._session_of(job._planner, saved.iteration)
            job._presence = {
                worker: Lease(saved.leases.get(worker, DEFAULT_LEASE), now, now, connected=False)
                for worker in workers
            }
        return job

    def _is_same(self, worker: str, instance: str) -> bool:
        return bool(instance) and self._presence[worker].instance == instance

    def _enter(self, worker: str, iteration: int) -> int:
        if self._session is None:
            self._gathering[worker] = iteration
            return iteration
        others = (presence for name, presence in self._presence.items() if name != worker)
        if not any(presence.connected for presence in others):
            self._go_on_at(iteration)
        if worker in self._session.members:
            # While it was away, boundaries may have gone by that others still wait at. Where no
            # plan can be made without it, they go on waiting.
            with contextlib.suppress(EvenstepError):
                self._session.pass_by(worker, iteration)
            return self._session.iteration
        if worker in self._session.joining:
            return self._session.iteration + 1
        return self._session.join(worker)

    def _go_on_at(self, iteration: int) -> None:
        """Take up the session at another iteration, with the same members."""
        assert self._session is not None and self._planner is not None
        if iteration != self._session.iteration:
            self._session = self._session_of(self._planner, iteration)
            self._num_runs += 1
            self._tell("moved", iteration=iteration)
            self._agreements = Agreements()
            members = self._session.members
            self._presence = {w: p for w, p in self._presence.items() if w in members}

    def _begin(self) -> None:
        """Start the session with those who have gathered, and with what an earlier run learned."""
        start = self.iteration
        planner = self._taught(in_name_order(tuple(self._gathering)), start)
        planner.number_from(self._least_number)
        self._planner, self._session = planner, self._session_of(planner, start)
        self._tell("begun", iteration=start, workers=list(planner.workers))
        self._agreements = Agreements()
        self._broken_off = False
        self._remembered_at = -1
        self._num_runs += 1
        self._session.renumber(max(self._held, self._least_number - 1))
        self._gathering = {}
        early, self._early = self._early, {}
        for report in early.values():
            self._session.report(report, in_order=True)
        self._after_change()

    def _session_of(self, planner: Planner, iteration: int) -> Session:
        """Return a session whose every decision is seen."""

        def decide(reports: Reports) -> Plan:
            boundary = self.course.decide(planner, reports)
            self._news.tell(Notification("boundary", self.name, boundary=boundary))
            return boundary.plan

        return Session(planner, iteration, decide)

    def _tell(self, kind: str, worker: str | None = None, **details: object) -> None:
        self._news.tell(Notification(kind, self.name, worker, details=details))

    def _taught(self, workers: list[str], start: int) -> Planner:
        """Return a planner that knows what the last run learned, if that can be used."""
        planner = self.settings.planner(workers)
        if self._learned is None:
            return planner
        try:
            planner.restore(self._learned.state, self._learned.workers)
        except EvenstepError:
            self._learned = None
            return self.settings.planner(workers)
        planner.renumber(planner.plan.number + 1, start)
        return planner

    def _begin_without_the_rest(self, now: float) -> None:
        if self._session is None and self._broken_off and self._gathering:
            first = min((self._presence[w] for w in self._gathering), key=lambda p: p.since)
            if now - first.since > first.lease:
                # A policy that has no place for fewer workers goes on waiting for all.
                with contextlib.suppress(EvenstepError):
                    self._begin()

    def _expel(self, worker: str, now: float) -> bool:
        try:
            self.leave(worker, "lost")
        except EvenstepError:
            # The others cannot go on without it; it is asked for again after another lease.
            self._presence[worker].heard = now
            return False
        return True

    def _break_off(self, over: list[str]) -> None:
        self._remember()
        for worker in over:
            self._tell("lost", worker)
        self._broken_off |= self._session is not None
        self._end("the leases of all workers are over")

    def _end(self, reason: str) -> None:
        if self._session is not None:
            self._tell("ended", iteration=self.iteration, reason=reason)
        self.course.end()
        self.close()
        self._session = self._planner = None
        self._presence, self._gathering, self._early = {}, {}, {}
        self.changed = True

    def _remember(self) -> None:
        """Keep what was learned, before somebody leaves, for the next run.

        At the end of a run all leave at one boundary, and the next one needs what was known of
        them all: so this is done once per boundary.
        """
        if self._session is not None and self._session.iteration != self._remembered_at:
            self._remembered_at = self._session.iteration
            self._learned = self._learning()

    def _learning(self) -> LearnedState | None:
        if self._planner is None:
            return None
        return LearnedState(self._planner.workers, self._planner.state())

    def _after_change(self) -> None:
        self.changed = True
        if self._session is not None:
            self._agreements.settle(self._session.members)
