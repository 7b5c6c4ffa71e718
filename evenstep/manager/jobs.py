"""All jobs of a manager, isolated from each other, and the folder in which they are saved.

A new job may reuse the learned state of another one. Workers are matched by name. A worker whose
name the other job does not know starts like a newcomer there: with NARX, from the network that all
its workers share. Policies and plans are not reused, as they depend on the total of their job.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO

from evenstep.core import inner_arrays
from evenstep.core.short_form import parse_spec
from evenstep.errors import InvalidSetting, LimitReached, StateFileError, UnknownJob
from evenstep.manager import job_store
from evenstep.manager.background import Background, at_once
from evenstep.manager.job import Job
from evenstep.manager.job_settings import MAX_WORKERS, JobSettings, check_name
from evenstep.manager.job_store import LearnedState
from evenstep.manager.notifications import Notification, Notifications

MAX_JOBS = 1_000

_log = logging.getLogger(__name__)


class Jobs:
    """The jobs by name."""

    def __init__(
        self,
        folder: Path | None = None,
        max_jobs: int = MAX_JOBS,
        notifications: Notifications | None = None,
        background: Background = at_once,
        max_workers: int = MAX_WORKERS,
    ) -> None:
        self.notifications = notifications or Notifications()
        self.background = background
        self._max_workers = max_workers
        self.unwritten: set[str] = set()
        """The jobs whose last save failed."""
        self.num_write_failures = 0
        self._folder = folder
        self._max_jobs = max_jobs
        self._jobs: dict[str, Job] = {}
        self._used: dict[Job, int] = {}
        """When jobs changed last, by the number of the save."""
        self._num_saves = 0
        self._forgotten: list[str] = []
        self._lock: IO[str] | None = None

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def __len__(self) -> int:
        return len(self._jobs)

    def recover(self, now: float) -> None:
        """Restore the jobs of an earlier manager; files that cannot be used are set aside."""
        if self._folder is not None:
            self._lock = job_store.lock(self._folder)
            job_store.clear_scratch(self._folder)
            for found in job_store.load_all(self._folder, _log.error):
                self._recover(found, job_store.path_of(self._folder, found.job), now)
            self.write(self.changed())

    def find(self, name: object) -> Job:
        job = self._jobs.get(check_name("job", name))
        if job is None:
            raise UnknownJob(f"there is no job {name}; create it, or join with settings")
        return job

    def create(self, name: object, settings: JobSettings, reuse: str | None = None) -> Job:
        """Return the job of this name, creating it unless it exists with the same settings.

        A new one begins with the learned state of the job called `reuse`.
        """
        job = self.get(name, settings)
        return job or self.add(name, settings, self.preparation(settings, reuse)(), reuse)

    def get(self, name: object, settings: JobSettings) -> Job | None:
        """Return the job of this name, if there is one; its settings must be these."""
        job = self._jobs.get(check_name("job", name))
        if job is None or job.settings == settings:
            return job
        had, got = asdict(job.settings), asdict(settings)
        changed = [f"{key} {had[key]}, got {got[key]}" for key in had if had[key] != got[key]]
        raise InvalidSetting(
            f"the settings of job {name} must stay as it was created: {'; '.join(changed)}"
        )

    def preparation(
        self, settings: JobSettings, reuse: str | None
    ) -> Callable[[], LearnedState | None]:
        """Return a function that checks settings and returns a new job's learned state.

        It may take a while; any thread may call it.
        """
        if not reuse:
            return partial(_checked, settings)
        other = self._to_reuse(reuse)
        return partial(inherited, settings, other.name, other.settings, other.knowledge)

    def add(
        self, name: object, settings: JobSettings, learned: LearnedState | None, reuse: str | None
    ) -> Job:
        """Make a new job; if there are too many, the one that was idle longest is forgotten."""
        if len(self._jobs) >= self._max_jobs:
            self._make_room()
        job = Job(
            str(name), settings, learned, self.notifications, self.background, self._max_workers
        )
        self._jobs[job.name] = job
        details = {"settings": asdict(settings)} | ({"reuse": reuse} if reuse else {})
        self.notifications.notify(Notification("created", job.name, details=details))
        return job

    def changed(self) -> list[job_store.Saved | str]:
        """Return what must be saved: the state of changed jobs, and the names of forgotten ones."""
        changed = [job for job in self if job.changed]
        self._num_saves += 1
        self._used |= dict.fromkeys(changed, self._num_saves)
        forgotten, self._forgotten = self._forgotten, []
        saved = [job.saved() for job in changed]
        return [] if self._folder is None else [*forgotten, *saved]

    def write(self, changed: list[job_store.Saved | str]) -> None:
        """Write jobs to the folder, or remove forgotten ones; any thread may call this."""
        if self._folder is not None:
            for job in changed:
                if isinstance(job, str):
                    try:
                        job_store.path_of(self._folder, job).unlink(missing_ok=True)
                    except OSError as error:
                        _log.error("the file of job %s cannot be removed: %s", job, error)
                else:
                    self._write(self._folder, job)

    def close(self) -> None:
        """Stop the predictors' trainings, and unlock the folder."""
        for job in self:
            job.close()
        if self._lock is not None:
            self._lock.close()

    def _make_room(self) -> None:
        """Forget the job that was idle longest, with what it learned."""
        idle = [job for job in self if not job.workers]
        if not idle:
            raise LimitReached(f"a manager must have at most {self._max_jobs} jobs with workers")
        oldest = min(idle, key=lambda job: self._used.get(job, self._num_saves))
        del self._jobs[oldest.name]
        self._used.pop(oldest, None)
        self._forgotten.append(oldest.name)
        self.unwritten.discard(oldest.name)
        self.notifications.notify(Notification("forgotten", oldest.name))

    def _to_reuse(self, name: str) -> Job:
        try:
            return self.find(name)
        except UnknownJob:
            raise UnknownJob(f"a job to reuse must exist, got {name}") from None

    def _recover(self, found: job_store.Saved, path: Path, now: float) -> None:
        try:
            job = Job.restored(found, now, self.notifications, self.background, self._max_workers)
            self._jobs[job.name] = job
        except Exception as error:
            # One bad file must not keep the manager from starting with the other jobs.
            aside = job_store.set_aside(path)
            _log.error("%s cannot be used and is now %s: %r", path, aside.name, error)
            return
        details = {"iteration": job.iteration, "workers": list(job.workers)}
        self.notifications.notify(Notification("recovered", job.name, details=details))

    def _write(self, folder: Path, job: job_store.Saved) -> None:
        try:
            job_store.save(folder, job)
        except OSError as error:
            self.num_write_failures += 1
            if job.job not in self.unwritten:
                # Logged once, not every second while the disk is full.
                _log.error("job %s cannot be saved, and is tried again: %s", job.job, error)
            self.unwritten.add(job.job)
            if (unsaved := self._jobs.get(job.job)) is not None:
                unsaved.changed = True
        else:
            if job.job in self.unwritten:
                _log.warning("job %s could be saved again", job.job)
            self.unwritten.discard(job.job)


def _checked(settings: JobSettings) -> None:
    settings.check()


def inherited(
    settings: JobSettings, other: str, its: JobSettings, learned: LearnedState | None
) -> LearnedState:
    """Return the first state of a job with these settings that reuses another job's."""
    ours, theirs = settings.predictor_in_use, its.predictor_in_use
    if ours is None or theirs is None or parse_spec(ours)[0] != parse_spec(theirs)[0]:
        raise InvalidSetting(
            f"to reuse what job {other} has learned, the predictor must be of the kind of its "
            f"{theirs or 'none'}, got {ours or 'none'}"
        )
    if learned is None:
        raise InvalidSetting(f"a job to reuse must have learned something, got {other}")
    settings.check()
    planner = settings.planner(learned.workers)
    assert planner.predictor is not None
    try:
        planner.predictor.restore(inner_arrays(learned.state, "predictor"))
    except StateFileError as error:
        raise InvalidSetting(
            f"predictor {ours} must have the settings of {theirs}, to reuse what job {other} "
            f"has learned: {error}"
        ) from error
    return LearnedState(learned.workers, planner.state())
