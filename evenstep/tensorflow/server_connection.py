"""The connection of a worker to its parameter server, which also exchanges small values."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from multiprocessing.connection import Client, Connection
from typing import Any

import numpy as np

from evenstep.core import Floats
from evenstep.errors import EngineFailed
from evenstep.tensorflow.vectors import Vector

_NOTHING: Vector = np.zeros(0)
_PAUSE = 0.1
"""Seconds between two tries to reach a server that is not up yet."""


class ServerConnection:
    """Sends requests to a parameter server at HOST:PORT, one after the other."""

    def __init__(self, address: str, token: str, worker: int, patience: float) -> None:
        self.worker = worker
        self._address = address
        self._connection = _reach(address, token, patience)
        self.num_workers = int(self._ask("join")[0]["workers"])

    def everybody(self, row: Floats) -> Floats:
        """Return the rows of all workers, one per worker."""
        return self._gather("meet", row)

    def settle(self, row: Floats) -> Floats:
        """End the iteration: return the rows of all workers, when the update has been made."""
        return self._gather("settle", row)

    def pull(self) -> Vector:
        """Return the parameters."""
        return self._ask("pull")[1]

    def push(self, gradient: Vector) -> None:
        """Send this worker's part of the gradient; it has arrived when this returns."""
        self._ask("push", gradient)

    def close(self) -> None:
        """Leave, if the connection is still open."""
        if not self._connection.closed:
            with contextlib.suppress(EngineFailed, OSError):
                self._ask("leave")
            self._connection.close()

    def _gather(self, verb: str, row: Floats) -> Floats:
        rows = self._ask(verb, np.asarray(row, np.float64))[1]
        return rows.reshape(self.num_workers, len(row))

    def _ask(self, verb: str, numbers: Vector | None = None) -> tuple[dict[str, Any], Vector]:
        try:
            send(self._connection, _NOTHING if numbers is None else numbers, verb=verb,
                 worker=self.worker)  # fmt: skip
            if verb == "leave":
                return {}, _NOTHING
            answer, vector = receive(self._connection)
            if "problem" in answer:
                raise EngineFailed(
                    f"the parameter server at {self._address} says: {answer['problem']}"
                )
            return answer, vector
        except (EOFError, ConnectionError) as problem:
            raise EngineFailed(
                f"the parameter server at {self._address} must run to the end, but the connection "
                f"to it is lost ({type(problem).__name__})"
            ) from None


def _reach(address: str, token: str, patience: float) -> Connection:
    host, _, port = address.rpartition(":")
    until = time.monotonic() + patience
    while time.monotonic() < until:
        with contextlib.suppress(ConnectionRefusedError):
            return without_delay(Client((host, int(port)), authkey=token.encode()))
        time.sleep(_PAUSE)
    raise EngineFailed(f"a parameter server must be at {address} within {patience:g} s, got none")


def send(connection: Connection, numbers: Vector, **fields: Any) -> None:
    """Send a message: some fields and a vector."""
    header = json.dumps({"dtype": numbers.dtype.name, **fields}).encode()
    connection.send_bytes(header + b"\n" + np.ascontiguousarray(numbers).tobytes())


def receive(connection: Connection) -> tuple[dict[str, Any], Vector]:
    """Return the fields and the vector of the next message."""
    header, _, numbers = connection.recv_bytes().partition(b"\n")
    fields = json.loads(header)
    return fields, np.frombuffer(numbers, fields["dtype"])


def without_delay(connection: Connection) -> Connection:
    """Return a connection that sends at once: TCP would wait 40 ms for an acknowledgement."""
    with socket.socket(fileno=os.dup(connection.fileno())) as tcp:
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
