"""Workers of a job that use the public client, `evenstep.connect`, each in its own thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from threading import Barrier, BrokenBarrierError
from typing import TYPE_CHECKING

import numpy as np

import evenstep
from evenstep.core import Floats, Report
from evenstep.errors import EvenstepError
from reproduction.synthetic_workers import SAMPLES, USAGE, draw_speeds, draw_times

if TYPE_CHECKING:
    from evenstep.manager.client import ManagerClient

_WAIT = 60.0


class _Counted:
    """What happens while all workers wait for each other: a reading before and after what counts.

    Called once before each round, and once after the last.
    """

    def __init__(self, read: Callable[[], Floats], first: int, last: int) -> None:
        self._read, self._at = read, (first, last)
        self._iteration = 0
        self.readings: list[Floats] = []
        self._is_over = False

    def end(self) -> None:
        """Start no further round, for any worker."""
        self._is_over = True

    def __call__(self) -> None:
        if self._is_over:
            raise BrokenBarrierError
        if self._iteration in self._at:
            self.readings.append(self._read())
        self._iteration += 1


def client_rounds(
    address: str,
    job: str,
    num_workers: int,
    predictor: str,
    uncounted: int,
    num_rounds: int,
    read: Callable[[], Floats],
) -> tuple[Floats, Floats]:
    """Return the seconds of rounds, and how far a reading went on within them.

    A round is from the first report until the last worker has its plan; the first few do not count.
    """
    connect = partial(
        evenstep.connect,
        address,
        job,
        workers=num_workers,
        total=SAMPLES * num_workers,
        policy="proportional",
        predictor=predictor,
        lease=_WAIT,
        timeout=_WAIT,
    )
    speeds = draw_speeds(num_workers, np.random.default_rng(0))
    counted = _Counted(read, uncounted, uncounted + num_rounds)
    together = Barrier(num_workers, counted, timeout=_WAIT)
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(f"w{i}")) for i in range(num_workers)]
        pool = stack.enter_context(ThreadPoolExecutor(num_workers))
        # If this thread is interrupted, those of the pool would continue to the last round.
        stack.callback(counted.end)
        taking_part = [
            pool.submit(_take_part, client, speed, i, together, uncounted + num_rounds)
            for i, (client, speed) in enumerate(zip(clients, speeds, strict=True))
        ]
        spans = np.array(_results(job, taking_part))[:, uncounted:]
    begun, ended = spans[:, :, 0].min(axis=0), spans[:, :, 1].max(axis=0)
    before, after = counted.readings
    return ended - begun, after - before


def _take_part(
    client: ManagerClient, speed: float, seed: int, together: Barrier, num_rounds: int
) -> Floats:
    """Return when each boundary of a worker began and ended, (iteration, 2)."""
    rng = np.random.default_rng((0, seed))
    spans = np.empty((num_rounds, 2))
    try:
        for k in range(num_rounds):
            report = _report(client, k, speed, rng)
            together.wait()
            begin = time.perf_counter()
            client.boundary(report)
            spans[k] = begin, time.perf_counter()
            if client.failure is not None:
                raise client.failure
        together.wait()
    except BaseException:
        together.abort()
        raise
    return spans


def _report(client: ManagerClient, k: int, speed: float, rng: np.random.Generator) -> Report:
    if k == 0:
        return Report(client.worker, k, usage=USAGE)
    x = client.batch_size
    t = draw_times(np.array([x]), np.array([speed]), rng)
    return Report(client.worker, k, x, float(t[0]), USAGE)


def _results(job: str, taking_part: list[Future[Floats]]) -> list[Floats]:
    """Return the results of all workers, or raise the first error, not the errors it caused."""
    wait(taking_part)
    problems = [problem for each in taking_part if (problem := each.exception()) is not None]
    for problem in problems:
        if not isinstance(problem, BrokenBarrierError):
            raise problem
    if problems:
        rule = f"all {len(taking_part)} workers must be done with an iteration within {_WAIT:g} s"
        raise EvenstepError(f"job {job}: {rule}, got one that was not")
    return [each.result() for each in taking_part]
