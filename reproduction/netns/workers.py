"""The workers of a run: processes in network namespaces, each with its line.

A worker pulls parameters, computes a gradient, sleeps until its GPU would be done, and pushes it.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection

import numpy as np

from evenstep.errors import EvenstepError
from evenstep.manager.connection import ServiceConnection, Where
from evenstep.simulator.engine.replica import Replica
from evenstep.simulator.workloads.workload import Workload
from reproduction.netns.flat import pack, unpack
from reproduction.netns.idl import PARAMETER_SERVER
from reproduction.netns.isolation import end_with_parent, leave_network
from reproduction.netns.link import Link
from reproduction.netns.training import SEED

WAIT = 60.0
"""Seconds after which a call has failed."""
_START = 30.0
"""Seconds that a worker has to make its namespace."""
_GRACE = 10.0
"""Seconds that workers have to end by themselves when the training is over."""
# Forked, as PyTorch takes seconds to load, and is there already.
_FORK = multiprocessing.get_context("fork")


class Member:
    """One worker, its process and its line."""

    def __init__(self, number: int, name: str, workload: Workload) -> None:
        self.name = name
        self._pipe, theirs = _FORK.Pipe()
        self._process = _FORK.Process(target=work, args=(number, workload, theirs), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self.link = self._lay_line(number)
        except BaseException:
            self.stop()
            raise

    @property
    def sentinel(self) -> int:
        """A file descriptor that can be read when the process has ended."""
        return self._process.sentinel

    def connect(self, address: str) -> None:
        """Tell the worker where the parameter server is."""
        self._pipe.send(address)

    def complaint(self) -> EvenstepError:
        """Return why the worker ended, as far as it said so."""
        self._process.join(_GRACE)
        code = f"exit code {self._process.exitcode}"
        try:
            said = self._pipe.recv() if self._pipe.poll() else code
        except EOFError:
            said = code
        return EvenstepError(f"worker {self.name} must stay to the end, it ended: {said or code}")

    def leave(self) -> None:
        """Wait until the worker has ended by itself."""
        self._process.join(_GRACE)

    def stop(self) -> None:
        """End the process, however far it is."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _lay_line(self, number: int) -> Link:
        pid = self._process.pid
        assert pid is not None
        try:
            problem = self._pipe.recv() if self._pipe.poll(_START) else "it took too long"
        except EOFError:
            raise self.complaint() from None
        if problem is not None:
            raise EvenstepError(f"worker {self.name} must have a network of its own: {problem}")
        return Link(number, pid)


@contextmanager
def started_workers(names: Sequence[str], workload: Workload) -> Iterator[list[Member]]:
    """Start a worker of each name, behind its line, and end them."""
    with ExitStack() as stack:
        members = []
        for number, name in enumerate(names):
            members.append(Member(number, name, workload))
            stack.callback(members[-1].stop)
        yield members
        for member in members:
            member.leave()


def work(number: int, workload: Workload, pipe: Connection) -> None:
    """Run in a process of its own.

    The worker sends None through the pipe once it has a network namespace, receives an address
    then, and sends what goes wrong.
    """
    # Ctrl-C is the parent's to hear.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        end_with_parent()
        leave_network()
        pipe.send(None)
        train(number, workload, pipe.recv())
    except Exception as problem:
        pipe.send(str(problem) or type(problem).__name__)
        sys.exit(1)


def train(number: int, workload: Workload, address: str) -> None:
    """Train with the others until it is over."""
    replica = Replica(workload, SEED)
    server = ServiceConnection(Where(address), WAIT, PARAMETER_SERVER)
    t = 0.0
    while True:
        batch = server.call("report", WAIT, worker=number, batch_processing_time=t)
        if not batch.samples:
            return
        begin = time.perf_counter()
        pulled = unpack(server.call("pull", WAIT), replica.parameters)
        until = time.perf_counter() + batch.computation
        gradient = pack(replica.gradients(pulled, np.array(batch.samples)))
        time.sleep(max(0.0, until - time.perf_counter()))
        server.call("push", WAIT, worker=number, gradient=gradient)
        t = time.perf_counter() - begin
