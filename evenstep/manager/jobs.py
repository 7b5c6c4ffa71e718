"""All jobs of a manager, isolated from each other, and the folder in which they are saved.

A new job may reuse the learned state of another one. Workers are matched by name. A worker whose
name the other job does not know starts like a newcomer there: with NARX, from the network that all
its workers share. Policies and plans are not reused, as they depend on the total of their job.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO

from evenstep.core import inner_arrays
from evenstep.core.short_form import parse_spec
from evenstep.errors import InvalidSetting, LimitReached, StateFileError, UnknownJob
from evenstep.manager import job_store
from evenstep.manager.job import Job
from evenstep.manager.job_settings import JobSettings, check_name
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
    ) -> None:
        self.notifications = notifications or Notifications()
        self.unwritten: set[str] = set()
        """The jobs whose last save failed."""
        self.num_write_failures = 0
        self._folder = folder
        self._max_jobs = max_jobs
        self._jobs: dict[str, Job] = {}
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
        job = self._jobs.get(check_name("job", name))
        if job is not None:
            if job.settings != settings:
                had, got = asdict(job.settings), asdict(settings)
                changed = [
                    f"{key} {had[key]}, got {got[key]}" for key in had if had[key] != got[key]
                ]
                raise InvalidSetting(
                    f"the settings of job {name} must stay as it was created: {'; '.join(changed)}"
                )
            return job
        if len(self._jobs) >= self._max_jobs:
            raise LimitReached(f"a manager must have at most {self._max_jobs} jobs")
        learned = inherited(settings, self._to_reuse(reuse)) if reuse else None
        job = self._jobs[str(name)] = Job(str(name), settings, learned, self.notifications)
        details = {"settings": asdict(settings)} | ({"reuse": reuse} if reuse else {})
        self.notifications.notify(Notification("created", job.name, details=details))
        return job

    def changed(self) -> list[job_store.Saved]:
        """Return the present state of the jobs that must be saved."""
        if self._folder is None:
            return []
        return [job.saved() for job in self if job.changed]

    def write(self, changed: list[job_store.Saved]) -> None:
        """Write jobs to the folder; any thread may call this."""
        if self._folder is not None:
            for job in changed:
                self._write(self._folder, job)

    def close(self) -> None:
        """Stop the predictors' trainings, and unlock the folder."""
        for job in self:
            job.close()
        if self._lock is not None:
            self._lock.close()

    def _to_reuse(self, name: str) -> Job:
        try:
            return self.find(name)
        except UnknownJob:
            raise UnknownJob(f"a job to reuse must exist, got {name}") from None

    def _recover(self, found: job_store.Saved, path: Path, now: float) -> None:
        try:
            job = self._jobs[found.job] = Job.restored(found, now, self.notifications)
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
            self._jobs[job.job].changed = True
        else:
            if job.job in self.unwritten:
                _log.warning("job %s could be saved again", job.job)
            self.unwritten.discard(job.job)


def inherited(settings: JobSettings, other: Job) -> LearnedState:
    """Return the first state of a job with these settings that reuses another job's."""
    ours, theirs = settings.predictor_in_use, other.settings.predictor_in_use
    if ours is None or theirs is None or parse_spec(ours)[0] != parse_spec(theirs)[0]:
        raise InvalidSetting(
            f"to reuse what job {other.name} has learned, the predictor must be of the kind of its "
            f"{theirs or 'none'}, got {ours or 'none'}"
        )
    learned = other.knowledge
    if learned is None:
        raise InvalidSetting(f"a job to reuse must have learned something, got {other.name}")
    planner = settings.planner(learned.workers)
    assert planner.predictor is not None
    try:
        planner.predictor.restore(inner_arrays(learned.state, "predictor"))
    except StateFileError as error:
        raise InvalidSetting(
            f"predictor {ours} must have the settings of {theirs}, to reuse what job {other.name} "
            f"has learned: {error}"
        ) from error
    return LearnedState(learned.workers, planner.state())
