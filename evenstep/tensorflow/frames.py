"""Frames: what goes over the line between a worker and its parameter server."""

from __future__ import annotations

import json
import os
import socket
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from evenstep.tensorflow.vectors import Vector


def send(connection: Connection, numbers: Vector, **said: Any) -> None:
    """Send some words and a vector, in one piece."""
    words = json.dumps({"dtype": numbers.dtype.name, **said}).encode()
    connection.send_bytes(words + b"\n" + np.ascontiguousarray(numbers).tobytes())


def receive(connection: Connection) -> tuple[dict[str, Any], Vector]:
    """Return the words and the vector that come next."""
    words, _, numbers = connection.recv_bytes().partition(b"\n")
    said = json.loads(words)
    return said, np.frombuffer(numbers, said["dtype"])


def without_delay(connection: Connection) -> Connection:
    """Return a connection that sends at once: TCP would wait 40 ms for the other side's word."""
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
