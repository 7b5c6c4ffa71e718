"""A data plane for the soak: carries the marks of every worker's plans to all workers.

Like a parameter server, it detects by the closed connection that a worker is gone, and continues
with the others; a new worker takes part in the open exchange.
"""

import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from typing import Any

Marks = list[float]


class Exchange:
    """The exchanges of one job, an iteration at a time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._present: set[object] = set()
        self._said: dict[object, Marks] = {}
        self._iteration = 0
        self._everybody: list[Marks] = []
        self._stopping = False

    def enter(self, worker: object) -> int:
        with self._changed:
            self._present.add(worker)
            return self._iteration

    def exchange(self, worker: object, marks: Marks) -> tuple[list[Marks], bool]:
        """Return the marks of all, and whether this is the last iteration."""
        with self._changed:
            mine = self._iteration
            self._said[worker] = marks
            self._settle()
            self._changed.wait_for(lambda: self._iteration > mine)
            return self._everybody, self._stopping

    def leave(self, worker: object) -> None:
        with self._changed:
            self._present.discard(worker)
            self._settle()

    def stop(self) -> None:
        """Make the next exchange the last one."""
        with self._changed:
            self._stopping = True

    def _settle(self) -> None:
        if self._said and self._present <= self._said.keys():
            self._everybody = list(self._said.values())
            self._said = {}
            self._iteration += 1
            self._changed.notify_all()


class DataPlane(socketserver.ThreadingTCPServer):
    """The exchanges of all jobs on a port of loopback, one thread per worker."""

    daemon_threads = True

    def __init__(self, jobs: list[str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.jobs = {job: Exchange() for job in jobs}
        self._thread = threading.Thread(target=self.serve_forever)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Handler(socketserver.StreamRequestHandler):
    server: DataPlane

    def handle(self) -> None:
        # Known by its connection: the worker of the same name that was killed may not be gone yet.
        lines = self._lines()
        exchange = self.server.jobs[next(lines)]
        try:
            self._say(exchange.enter(self))
            for marks in lines:
                self._say(exchange.exchange(self, marks))
        except OSError:
            pass
        finally:
            exchange.leave(self)

    def _lines(self) -> Iterator[Any]:
        for line in self.rfile:
            yield json.loads(line)

    def _say(self, answer: object) -> None:
        self.wfile.write(json.dumps(answer).encode() + b"\n")


class Member:
    """A worker's side of the data plane."""

    def __init__(self, port: int, job: str) -> None:
        self._line = socket.create_connection(("127.0.0.1", port))
        self._file = self._line.makefile("rwb")
        self.iteration = int(self._ask(job))
        """The iteration that it takes part in first."""

    def exchange(self, marks: Marks) -> tuple[list[Marks], bool]:
        everybody, last = self._ask(marks)
        return everybody, last

    def close(self) -> None:
        self._file.close()
        self._line.close()

    def _ask(self, what: object) -> Any:
        self._file.write(json.dumps(what).encode() + b"\n")
        self._file.flush()
        return json.loads(self._file.readline())
