"""Simulated workers of a job, whose messages one thread writes and reads, and their manager."""

from __future__ import annotations

import contextlib
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import psutil
from thriftpy2.thrift import TMessageType

from evenstep.core import Report
from evenstep.manager import wire
from evenstep.manager.connection import ServiceConnection, Where
from evenstep.manager.job_settings import JobSettings
from evenstep.manager.messages import from_report, from_settings
from evenstep.manager.wire import types
from reproduction.experiment import Skipped
from reproduction.synthetic_workers import SAMPLES, USAGE, draw_speeds, draw_times

WAIT = 60.0


class Workers:
    """All workers of a job, simulated by one thread: their messages without their clients."""

    def __init__(self, address: str, job: str, num_workers: int, predictor: str) -> None:
        settings = JobSettings(num_workers, SAMPLES * num_workers, "proportional", predictor)
        self._rng = np.random.default_rng(0)
        self._speeds = draw_speeds(num_workers, self._rng)
        self.lines = [ServiceConnection(Where(address), WAIT) for _ in range(num_workers)]
        self._sizes = [0] * num_workers
        self._times = [0.0] * num_workers
        for i, line in enumerate(self.lines):
            entry = types().Entry(
                job=job,
                worker=f"w{i}",
                iteration=0,
                lease=WAIT,
                settings=from_settings(settings),
            )
            line.call("join", WAIT, entry=entry)

    def prepare(self) -> None:
        """Draw the time of the last iteration; not part of a round."""
        self._times = draw_times(np.array(self._sizes), self._speeds, self._rng).tolist()

    def report(self, iteration: int, num_silent: int = 0) -> None:
        """Report for all workers but the last few."""
        for i, line in enumerate(self.lines[: len(self.lines) - num_silent]):
            line._socket.sendall(self._frame(i, iteration))

    def read(self, i: int) -> None:
        """Read the plan of a worker, which has arrived."""
        reply = wire.parse_header(self.lines[i].receive(time.monotonic() + WAIT))
        result = wire.decode_body(types().BatchSizeManager.report_result(), reply.body)
        assert result.refused is None, result.refused
        self._sizes[i] = result.success.sizes[i]

    def close(self) -> None:
        """Let all leave."""
        for line in self.lines:
            line.call("leave", WAIT)
            line.close()

    def _frame(self, i: int, iteration: int) -> bytes:
        x = self._sizes[i] or None
        report = Report(f"w{i}", iteration, x, self._times[i] if x else None, USAGE)
        arguments = types().BatchSizeManager.report_args(
            report=from_report(report, None), wait=WAIT
        )
        return wire.encode_frame("report", TMessageType.CALL, 1, wire.encode_body(arguments))


class Rounds:
    """Rounds of some jobs at once."""

    def __init__(self, jobs: list[Workers], iteration: int = 0) -> None:
        self._jobs = jobs
        self._selector = selectors.DefaultSelector()
        self.iteration = iteration
        """k of the next round."""
        for job in jobs:
            for i, line in enumerate(job.lines):
                self._selector.register(line._socket, selectors.EVENT_READ, (job, i))

    def round(self) -> list[float]:
        """Report and read the plan for all workers, and return the seconds of each job."""
        for job in self._jobs:
            job.prepare()
        started, ended = {}, {}
        for job in self._jobs:
            started[job] = time.perf_counter()
            job.report(self.iteration)
        missing = {job: len(job.lines) for job in self._jobs}
        while missing:
            for key, _ in self._selector.select(WAIT):
                job, i = key.data
                job.read(i)
                missing[job] -= 1
                if not missing[job]:
                    del missing[job]
                    ended[job] = time.perf_counter()
        self.iteration += 1
        return [ended[job] - started[job] for job in self._jobs]

    def rounds(self, num_rounds: int) -> list[float]:
        """Return the seconds of all jobs in a number of rounds."""
        return [seconds for _ in range(num_rounds) for seconds in self.round()]

    def close(self) -> None:
        self._selector.close()


@contextlib.contextmanager
def playing(
    address: str, job: str, num_workers: int, predictor: str, uncounted: int = 5
) -> Iterator[Rounds]:
    """Play one job, whose first plans are made."""
    with contextlib.ExitStack() as stack:
        workers = Workers(address, job, num_workers, predictor)
        for line in workers.lines:
            stack.callback(line.close)
        rounds = Rounds([workers])
        stack.callback(rounds.close)
        rounds.rounds(uncounted)
        yield rounds
        # Only then: in the middle of a round, the next answer is not that to leaving.
        workers.close()


@contextlib.contextmanager
def manager() -> Iterator[tuple[psutil.Process, str]]:
    """Run a manager, and return it and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "evenstep", "manager", "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline().strip()
        if "listening on " not in said:
            raise Skipped(f"evenstep manager must listen, got {said!r} and no address")
        yield psutil.Process(process.pid), said.split("listening on ")[1]
    finally:
        process.terminate()
        process.communicate()
