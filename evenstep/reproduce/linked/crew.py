"""The workers of a linked run: processes in network namespaces, each with its line."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from evenstep.errors import EvenstepError
from evenstep.reproduce.linked.link import Link
from evenstep.reproduce.linked.worker import work
from evenstep.workloads.workload import Workload

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
def crew(names: Sequence[str], workload: Workload) -> Iterator[list[Member]]:
    """Start a worker of each name, behind its line, and end them."""
    with ExitStack() as stack:
        members = []
        for number, name in enumerate(names):
            members.append(Member(number, name, workload))
            stack.callback(members[-1].stop)
        yield members
        for member in members:
            member.leave()
