"""A training-like process of the soak: some workers, as threads, that may be killed at any time.

    python -m tests.manager.soak.trainer NAME MANAGER DATA_PLANE_PORT FOLDER

Every worker writes what it applies to a file of its own, a line per iteration:

    ITERATION NUMBER SIZES TIME ok     a plan is applied; `failed` where no manager could be asked
    ITERATION - - TIME failed          the worker does not hold the plan, and sits it out
"""

import contextlib
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

import evenstep
from evenstep import Plan, Report
from evenstep.errors import ManagerUnreachable, Unplanned
from evenstep.manager.client import ManagerClient
from tests.manager.soak.exchange import Member
from tests.manager.soak.jobs import JOBS, LEASE, TIMEOUT, Loop

STOP = "stop"
"""File that ends the loops without a data plane."""


class Worker:
    """One worker of a job: connects, trains until the soak ends, and leaves."""

    def __init__(self, loop: Loop, worker: str, manager: str, port: int, folder: Path) -> None:
        self._loop, self._worker, self._manager, self._port = loop, worker, manager, port
        self._stop = folder / STOP
        self._path = folder / f"{loop.job}.{worker}.applied"
        self._noise = random.Random(f"{loop.job} {worker}")
        self._speed = self._noise.uniform(500, 2000)

    def run(self) -> None:
        client = self._connect()
        with self._path.open("ab", buffering=0) as self._file:
            if self._loop.data_plane:
                self._with_data_plane(client)
            else:
                self._with_agreements(client)
        client.leave()

    def _with_data_plane(self, client: ManagerClient) -> None:
        """Train at the iteration, and with the plan, that the data plane chooses."""
        with contextlib.closing(Member(self._port, self._loop.job)) as member:
            k, report, last = member.iteration, self._silent(member.iteration), False
            while not last:
                everybody, last = member.exchange(client.show(report).tolist())
                plan = None
                with contextlib.suppress(Unplanned):
                    plan = client.choose(np.array(everybody))
                report = self._apply(client, k, plan)
                k += 1

    def _with_agreements(self, client: ManagerClient) -> None:
        """Continue at the iteration of this worker or its job, and agree through the manager."""
        k = client.iteration
        report = self._silent(k)
        while not self._stop.exists():
            plan = None
            with contextlib.suppress(Unplanned):
                plan = client.boundary(report)
            report = self._apply(client, k, plan)
            k += 1

    def _apply(self, client: ManagerClient, k: int, plan: Plan | None) -> Report:
        """Write down which plan is used in an iteration, train, and return the next report."""
        sizes = "-" if plan is None else ",".join(map(str, plan.sizes))
        number = "-" if plan is None else plan.number
        state = "ok" if client.failure is None else "failed"
        self._file.write(f"{k} {number} {sizes} {time.monotonic()} {state}\n".encode())
        size = 0 if plan is None else client.batch_size
        started = time.monotonic()
        time.sleep((self._loop.pace + size / self._speed) * self._noise.uniform(0.8, 1.25))
        if size == 0:
            return self._silent(k + 1)
        return Report(self._worker, k + 1, size, time.monotonic() - started)

    def _silent(self, k: int) -> Report:
        return Report(self._worker, k)

    def _connect(self) -> ManagerClient:
        while True:
            with contextlib.suppress(ManagerUnreachable):
                return evenstep.connect(
                    self._manager,
                    self._loop.job,
                    self._worker,
                    workers=self._loop.workers,
                    total=self._loop.total,
                    policy="proportional",
                    predictor="ema",
                    iteration=self._checkpoint(),
                    blocking=self._loop.blocking,
                    agree=not self._loop.data_plane,
                    lease=LEASE,
                    timeout=TIMEOUT,
                )

    def _checkpoint(self) -> int:
        """Return the iteration after the last one that this worker has applied."""
        if not self._path.exists():
            return 0
        lines = self._path.read_text().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        if whole != lines:
            # What was torn when it was killed must not be mixed up with what comes.
            with self._path.open("ab") as file:
                file.write(b" torn\n")
        return int(whole[-1].split()[0]) + 1 if whole else 0


def main() -> None:
    name, manager, port, folder = sys.argv[1:]
    workers = [
        Worker(loop, f"{name}.{i}", manager, int(port), Path(folder))
        for loop in JOBS
        for i in range(loop.per_trainer)
    ]
    threads = [threading.Thread(target=_guarded, args=(w.run, Path(folder))) for w in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _guarded(run: Callable[[], None], folder: Path) -> None:
    try:
        run()
    except Exception:
        with (folder / "errors").open("a") as file:
            file.write(traceback.format_exc())


if __name__ == "__main__":
    main()
