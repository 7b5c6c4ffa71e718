"""Worker processes for tests: started once, given one job after the other.

A job is a function of a module, called on every worker with the same keyword arguments; the test
gets what they return. Each job has a process group of its own, so that nothing of a job that
failed is left for the next one. A worker that does not answer in time ends all of them, by their
process ids; the next job starts new ones.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent.parent
START = 60.0
"""Seconds until a worker must be up: importing torch on a busy machine takes long."""
FEWEST = 3
"""Workers to start at once, as many as most tests need: they start side by side."""
GRACE = 5.0
"""Seconds that the others have to come to an end after one has failed."""


class Job(NamedTuple):
    """What a worker is asked to do."""

    module: str
    function: str
    arguments: dict[str, Any]
    store: str
    """File of the job's process group."""
    num_workers: int


class Failure(NamedTuple):
    """An exception of a worker: exceptions themselves do not all travel."""

    kind: str
    message: str
    traceback: str


class Worker(NamedTuple):
    """A process, and the connection to it."""

    process: subprocess.Popen[bytes]
    connection: Connection


class Workers:
    """Processes that train together, on this machine only."""

    def __init__(
        self, folder: Path, module: str = "tests.distributed.worker", fewest: int = FEWEST
    ) -> None:
        self._folder = folder
        self._module = module
        self._fewest = fewest
        self._workers: list[Worker] = []
        self._num_jobs = 0

    def run(
        self, job: Callable[..., Any], *, count: int = 2, timeout: float = 60.0, **arguments: Any
    ) -> list[Any]:
        """Return what `job` returns on each of `count` workers; a failure fails the test."""
        answers = self.answers(job, count=count, timeout=timeout, **arguments)
        for worker, answer in enumerate(answers):
            if isinstance(answer, Failure):
                raise AssertionError(f"worker {worker} failed:\n{answer.traceback}")
        return answers

    def failures(
        self, job: Callable[..., Any], *, count: int = 2, timeout: float = 60.0, **arguments: Any
    ) -> list[Failure]:
        """Return with what `job` fails on each worker; that it does not fails the test."""
        answers = self.answers(job, count=count, timeout=timeout, **arguments)
        for worker, answer in enumerate(answers):
            assert isinstance(answer, Failure), f"worker {worker} did not fail, but said {answer}"
        return answers

    def answers(
        self, job: Callable[..., Any], *, count: int = 2, timeout: float = 60.0, **arguments: Any
    ) -> list[Any]:
        """Return what `job` returns, or the Failure it ends in, on each of `count` workers."""
        self._ensure(max(count, self._fewest))
        self._num_jobs += 1
        store = self._folder / f"job-{os.getpid()}-{self._num_jobs}"
        todo = Job(job.__module__, job.__qualname__, arguments, str(store), count)
        for worker in self._workers[:count]:
            worker.connection.send(todo)
        return self._collect(count, timeout)

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.connection.close()
            worker.process.terminate()
        for worker in self._workers:
            _end(worker.process)
        self._workers = []

    @property
    def processes(self) -> list[int]:
        """The ids of the processes."""
        return [worker.process.pid for worker in self._workers]

    def _ensure(self, count: int) -> None:
        new = [self._start(number) for number in range(len(self._workers), count)]
        self._workers += new
        for worker in new:
            if not worker.connection.poll(START):
                self.close()
                raise AssertionError(f"a worker must be up after {START} seconds")
            assert worker.connection.recv() == "ready"

    def _start(self, number: int) -> Worker:
        ours, theirs = Pipe()
        command = [sys.executable, "-m", self._module]
        process = subprocess.Popen(
            [*command, str(number), str(theirs.fileno())],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        )
        theirs.close()
        return Worker(process, ours)

    def _collect(self, count: int, timeout: float) -> list[Any]:
        until = time.monotonic() + timeout
        missing = {self._workers[i].connection: i for i in range(count)}
        answers: list[Any] = [Failure("Silence", f"no answer in {timeout} s", "")] * count
        while missing:
            ready = wait(list(missing), max(0.0, until - time.monotonic()))
            if not ready:
                self.close()
                break
            for connection in ready:
                assert isinstance(connection, Connection)
                worker = missing.pop(connection)
                answers[worker] = _answer(connection)
                if isinstance(answers[worker], Failure):
                    until = min(until, time.monotonic() + GRACE)
        if any(isinstance(answer, Failure) and answer.kind == "Death" for answer in answers):
            self.close()
        return answers


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _answer(connection: Connection) -> Any:
    try:
        return pickle.loads(connection.recv_bytes())
    except (EOFError, ConnectionResetError):
        return Failure("Death", "the process has ended", "the process has ended")


def serve(do: Callable[[Job, int], Any]) -> None:
    """Be a worker process: do the jobs that come over its connection, until that is closed."""
    number, descriptor = map(int, sys.argv[1:])
    connection: Connection[Any, Any] = Connection(descriptor)
    connection.send("ready")
    while True:
        try:
            job = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        # Pickled by hand: a connection would send tensors as handles of shared memory.
        connection.send_bytes(pickle.dumps(do(job, number)))


def outcome(job: Job) -> Any:
    """Return what a job returns, or the Failure it ends in."""
    try:
        return getattr(import_module(job.module), job.function)(**job.arguments)
    except Exception as error:
        return Failure(type(error).__name__, str(error), traceback.format_exc())
