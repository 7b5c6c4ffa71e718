"""A synchronous parameter server: holds the parameters, and makes one update per iteration.

The paper's workflow (Alg. 3): workers pull w, compute a gradient on their x_i samples, and push it
weighted by x_i / X; when all have pushed, the server sums and makes the update. TensorFlow's own
ParameterServerStrategy is asynchronous, and its workers have no common iterations.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener
from typing import Any

import numpy as np

from evenstep.core import Floats, require_whole
from evenstep.errors import EngineFailed, EvenstepError, InvalidSetting, MalformedMessage
from evenstep.tensorflow.server_connection import receive, send, without_delay
from evenstep.tensorflow.vectors import Vector, VectorLayout


class ParameterServer:
    """The parameters of a model and their optimizer, for a fixed number of workers."""

    def __init__(self, optimizer: Any, variables: Sequence[Any], num_workers: int) -> None:
        require_whole("the number of workers", num_workers)
        self.num_workers = num_workers
        self.updates = 0
        self._optimizer = optimizer
        self._variables = list(variables)
        self._layout = VectorLayout(variables)
        if not optimizer.built:
            optimizer.build(self._variables)
        self._parameters = self._layout.parameters()
        self._pushed: dict[int, Vector] = {}
        self._collective = Gathering(num_workers)
        self._settling = Gathering(num_workers, self._update)
        self._joined: set[int] = set()

    def serve(self, address: str, token: str) -> None:
        """Serve workers at HOST:PORT that know the token, until all of them have left.

        Raises EngineFailed if one was lost: the update would lack its gradient.
        """
        host, _, port = address.rpartition(":")
        with Listener((host, int(port)), authkey=token.encode()) as listener:
            threads = [self._serve_next(listener) for _ in range(self.num_workers)]
            for thread in threads:
                thread.join()
        if self._settling.is_broken:
            raise EngineFailed("all workers must stay to the end, but one was lost")

    def _serve_next(self, listener: Listener) -> threading.Thread:
        """Serve the next worker that connects and knows the token, in a thread of its own."""
        while True:
            with contextlib.suppress(AuthenticationError, EOFError, OSError):
                worker = threading.Thread(
                    target=self._serve, args=(without_delay(listener.accept()),)
                )
                worker.start()
                return worker

    def _serve(self, connection: Connection) -> None:
        """Answer the requests of one worker, until it leaves."""
        with contextlib.closing(connection):
            try:
                while self._answer(connection):
                    pass
            except EvenstepError as problem:
                self._break_up()
                with contextlib.suppress(OSError):
                    send(connection, np.zeros(0), problem=str(problem))
            except (EOFError, OSError, ValueError, KeyError):
                self._break_up()

    def _break_up(self) -> None:
        self._collective.break_up()
        self._settling.break_up()

    def _answer(self, connection: Connection) -> bool:
        """Answer one request; return whether there may be more."""
        request, numbers = receive(connection)
        verb, worker = request["verb"], int(request["worker"])
        if verb == "join":
            self._join(worker)
            send(connection, np.zeros(0), workers=self.num_workers, length=self._layout.length)
        elif verb == "pull":
            send(connection, self._parameters)
        elif verb == "push":
            self._pushed[worker] = numbers
            send(connection, np.zeros(0))
        elif verb in ("meet", "settle"):
            gathering = self._collective if verb == "meet" else self._settling
            send(connection, gathering.everybody(worker, numbers))
        elif verb != "leave":
            raise MalformedMessage(f"a question must be one that a worker has, got {verb!r}")
        return bool(verb != "leave")

    def _join(self, worker: int) -> None:
        if not 0 <= worker < self.num_workers or worker in self._joined:
            raise InvalidSetting(
                f"worker must be another for each, from 0 to {self.num_workers - 1}, got {worker}"
            )
        self._joined.add(worker)

    def _update(self) -> None:
        """Make the update of an iteration; gradients are summed in the order of workers."""
        gradient = np.sum([self._pushed[worker] for worker in sorted(self._pushed)], axis=0)
        self._pushed = {}
        self._optimizer.apply(self._layout.split(gradient), self._variables)
        self._parameters = self._layout.parameters()
        self.updates += 1


_LONGEST = 600.0
"""Seconds after which a silent worker counts as lost."""


class Gathering:
    """Gathers the rows of all workers, and calls `act` before any of them gets the rows."""

    def __init__(self, num_workers: int, act: Callable[[], None] | None = None) -> None:
        self._rows: dict[int, Floats] = {}
        self._gathered: Floats = np.zeros((0, 0))
        self._act = act
        self._barrier = threading.Barrier(num_workers, self._gather, _LONGEST)

    @property
    def is_broken(self) -> bool:
        return self._barrier.broken

    def everybody(self, worker: int, row: Floats) -> Floats:
        """Return the rows of all workers, one after the other."""
        self._rows[worker] = row
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise EngineFailed(
                f"all workers must come to the end of an iteration, but one did not, and worker "
                f"{worker} cannot continue"
            ) from None
        # The next rows are gathered when this worker has called again, so these are still valid.
        return self._gathered

    def break_up(self) -> None:
        """Release all waiting workers, with an error, now and later."""
        self._barrier.abort()

    def _gather(self) -> None:
        self._gathered = np.stack([self._rows[worker] for worker in sorted(self._rows)])
        self._rows = {}
        if self._act is not None:
            self._act()
