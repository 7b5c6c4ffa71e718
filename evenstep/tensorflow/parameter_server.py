"""A synchronous parameter server: holds the parameters, and makes one update per iteration.

The paper's workflow (Alg. 3): workers pull w, compute a gradient on their x_i samples, and push it
weighted by x_i / X; when all have pushed, the server sums and makes the update. TensorFlow's own
ParameterServerStrategy is asynchronous, and its workers know no iterations.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener
from typing import Any

import numpy as np

from evenstep.core import Floats
from evenstep.core.short_form import require_whole
from evenstep.errors import EngineFailed, EvenstepError, InvalidSetting, MalformedMessage
from evenstep.tensorflow.server_connection import receive, send, without_delay
from evenstep.tensorflow.vectors import Vector, VectorLayout


class ParameterServer:
    """The parameters of a model and their optimizer, for so many workers."""

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
        self._meeting = Gathering(num_workers)
        self._settling = Gathering(num_workers, self._update)
        self._joined: set[int] = set()

    def serve(self, address: str, token: str) -> None:
        """Serve workers at HOST:PORT that know the token, until all of them have left.

        Raises EngineFailed where one was lost: what it had pushed is not there for the others.
        """
        host, _, port = address.rpartition(":")
        with Listener((host, int(port)), authkey=token.encode()) as listener:
            threads = [self._attend_next(listener) for _ in range(self.num_workers)]
            for thread in threads:
                thread.join()
        if self._settling.is_broken:
            raise EngineFailed("all workers must stay to the end, but one was lost")

    def _attend_next(self, listener: Listener) -> threading.Thread:
        """Attend to the next worker that comes and knows the token, in a thread of its own."""
        while True:
            with contextlib.suppress(AuthenticationError, EOFError, OSError):
                worker = threading.Thread(
                    target=self._attend, args=(without_delay(listener.accept()),)
                )
                worker.start()
                return worker

    def _attend(self, connection: Connection) -> None:
        """Do what one worker asks for, until it leaves."""
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
        self._meeting.break_up()
        self._settling.break_up()

    def _answer(self, connection: Connection) -> bool:
        """Answer one question; say whether there may be more."""
        question, numbers = receive(connection)
        verb, worker = question["verb"], int(question["worker"])
        if verb == "join":
            self._join(worker)
            send(connection, np.zeros(0), workers=self.num_workers, length=self._layout.length)
        elif verb == "pull":
            send(connection, self._parameters)
        elif verb == "push":
            self._pushed[worker] = numbers
            send(connection, np.zeros(0))
        elif verb in ("meet", "settle"):
            gathering = self._meeting if verb == "meet" else self._settling
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
        """Make the update of an iteration; in the order of workers, whoever came first."""
        gradient = np.sum([self._pushed[worker] for worker in sorted(self._pushed)], axis=0)
        self._pushed = {}
        self._optimizer.apply(self._layout.split(gradient), self._variables)
        self._parameters = self._layout.parameters()
        self.updates += 1


_LONGEST = 600.0
"""Seconds: who is silent for longer is not coming."""


class Gathering:
    """Everybody's rows, once all are there; what `act` does has been done by then."""

    def __init__(self, num_workers: int, act: Callable[[], None] | None = None) -> None:
        self._rows: dict[int, Floats] = {}
        self._heard: Floats = np.zeros((0, 0))
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
                f"{worker} cannot go on"
            ) from None
        # The next rows are gathered when this worker has come again, so these are still here.
        return self._heard

    def break_up(self) -> None:
        """Let nobody wait any longer, now or later."""
        self._barrier.abort()

    def _gather(self) -> None:
        self._heard = np.stack([self._rows[worker] for worker in sorted(self._rows)])
        self._rows = {}
        if self._act is not None:
            self._act()
