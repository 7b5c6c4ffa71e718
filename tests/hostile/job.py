"""A valid job of eight workers, whose rounds are measured while others attack its manager.

The workers are threads of this process. As in a training, an exchange between them decides which
plan is used (`show` and `choose`), so that no two of them may ever use different plans.
"""

import itertools
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from evenstep import Report
from evenstep.manager.client import ManagerClient
from tests.manager.managers import until

JOB = "valid"
WORKERS = tuple(f"w{i}" for i in range(8))
TOTAL = 256
PAUSE = 0.005
"""Seconds between two rounds."""


@dataclass(frozen=True)
class Round:
    """One iteration boundary: from the first report until every worker has the plan."""

    began: float
    seconds: float
    served: bool
    """Whether every worker got its plan from the manager, and none continued with the last one."""
    plans: frozenset[tuple[int, tuple[int, ...], tuple[str, ...]]]
    """The numbers, sizes and workers of the plans that were chosen: one plan, if all is well."""


class ValidJob:
    """Eight workers that report, choose a plan and pause, until they are closed."""

    def __init__(self, connect: Callable[[str], ManagerClient]) -> None:
        self.clients = [connect(worker) for worker in WORKERS]
        self.rounds: list[Round] = []
        self._noise = random.Random(0)
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(len(WORKERS))
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._train, daemon=True)
        self._thread.start()
        self.finish_rounds()

    def finish_rounds(self) -> None:
        """Wait until every round that has begun by now is over."""
        now = time.monotonic()
        until(self._is_past(now), "the end of a round of the valid job")

    def between(self, begin: float, end: float) -> list[Round]:
        """Return the rounds that began in a span of time."""
        return [one for one in self.rounds if begin <= one.began < end]

    def faults(self) -> list[str]:
        """Return what went wrong with the plans: nothing may, whatever happens to the manager."""
        found = [f"training failed: {self._failure!r}"] if self._failure else []
        numbers = [-1]
        for k, one in enumerate(self.rounds):
            if len(one.plans) > 1:
                found.append(f"the workers must use one plan in iteration {k}, got {one.plans}")
            for number, sizes, workers in one.plans:
                if sum(sizes) != TOTAL:
                    found.append(f"plan {number} must keep the total {TOTAL}, got {sizes}")
                if set(workers) != set(WORKERS):
                    found.append(f"plan {number} must be of the eight workers, got {workers}")
                numbers.append(number)
        falling = [pair for pair in itertools.pairwise(numbers) if pair[1] < pair[0]]
        if falling:
            found.append(f"plan numbers must not decrease, got {falling[:5]}")
        return [*found[:5], f"and {len(found) - 5} more"] if len(found) > 5 else found

    def close(self) -> None:
        """End the training, without leaving the job."""
        self._stop.set()
        self._thread.join()
        self._pool.shutdown()
        for client in self.clients:
            client.close()

    def _is_past(self, moment: float) -> Callable[[], bool]:
        def past() -> bool:
            assert self._failure is None, f"training failed: {self._failure!r}"
            return bool(self.rounds) and self.rounds[-1].began > moment

        return past

    def _train(self) -> None:
        try:
            for k in itertools.count():
                if self._stop.wait(PAUSE):
                    break
                self._round(k)
        except BaseException as error:
            self._failure = error

    def _round(self, iteration: int) -> None:
        reports = [self._report(i, iteration) for i in range(len(WORKERS))]
        began = time.monotonic()
        shown = list(self._pool.map(_show, self.clients, reports))
        seconds = time.monotonic() - began
        marks = np.stack([row for row, _ in shown])
        plans = [(client.choose(marks), client.workers) for client in self.clients]
        chosen = frozenset((p.number, tuple(p.sizes.tolist()), workers) for p, workers in plans)
        served = all(came for _, came in shown)
        self.rounds.append(Round(began, seconds, served, chosen))

    def _report(self, i: int, iteration: int) -> Report:
        size = self.clients[i].batch_size if iteration else 0
        if not size:
            return Report(WORKERS[i], iteration)
        # Another worker is the fastest every 50 iterations, so that there are always new plans.
        place = (i + iteration // 50) % len(WORKERS)
        speed = (10.0 + 5.0 * place) * self._noise.uniform(0.9, 1.1)
        return Report(WORKERS[i], iteration, size, size / speed)


def _show(client: ManagerClient, report: Report) -> tuple[np.ndarray, bool]:
    """Hand in a report, and return the marks and whether the manager answered with a plan."""
    before = client._membership.connection
    marks = client.show(report)
    came = before is not None and client._membership.connection is before
    return marks, came and client.failure is None
