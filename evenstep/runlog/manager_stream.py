"""Reads the event stream of a manager (docs/manager.md) over HTTP; reconnects after failures."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import re
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from evenstep.errors import ManagerUnreachable

Data = Mapping[str, Any]

SILENCE = 40.0
"""Seconds without a line after which a connection is dead: the manager sends one every 15."""
PAUSE = 1.0
"""Seconds before the next attempt to connect."""
MOST_WAITING = 5_000
"""Events in the queue. When it is full, reading pauses, and the manager reports a gap."""
HTTP_PORT_HEADER = "Evenstep-HTTP-Port"
"""The port of the events, in the answer of a manager's other port."""
LONGEST = 2**24
"""Bytes of the longest line that is accepted."""


class ManagerStream:
    """Reads the events of a manager on a thread; a new connection resumes after the last event.

    The address is the manager's, whose answer says on which of its ports the events are, or that
    port itself.

    http.client follows neither proxies nor redirections: the token reaches this host alone.
    """

    def __init__(
        self,
        address: tuple[str, int],
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        job: str | None = None,
    ) -> None:
        self._address, self._tls = address, tls
        self._path = "/events" if job is None else f"/events?job={quote(job, safe='')}"
        self._headers: dict[str, str | bytes] = {"Accept": "text/event-stream"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}".encode()
        self._last = "0"
        self._closed = threading.Event()
        self._events: queue.Queue[Data] = queue.Queue(MOST_WAITING)
        self._answer: http.client.HTTPResponse | None = None
        self._connection = self._new_connection(address[1])
        self._socket: socket.socket | None = None
        self.problem: str | None = "not connected yet"
        """Why there are no events at the moment; None while connected."""

    def connect(self) -> None:
        """Connect before `start` does; raises ManagerUnreachable on failure."""
        self._answer = self._request()

    def start(self) -> None:
        """Start reading; attempts to connect are repeated until `close`."""
        threading.Thread(target=self._work, name="evenstep-manager-stream", daemon=True).start()

    def close(self) -> None:
        """Stop reading, and end the connection."""
        self._closed.set()
        if self._socket is not None:
            # This wakes the reading thread; a connection that has ended needs no shutdown.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        if self._answer is not None:
            self._answer.close()
            self._connection.close()

    def next(self) -> Data | None:
        """Return the next event, or None while there is none."""
        try:
            return self._events.get_nowait()
        except queue.Empty:
            return None

    def put(self, data: Data) -> None:
        """Append an event to the queue; waits while it is full."""
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._events.put(data, timeout=PAUSE)
                return

    def _work(self) -> None:
        while not self._closed.is_set():
            try:
                answer, self._answer = self._answer or self._request(), None
                self._read(answer)
                self.problem = f"{self._manager} has ended the stream"
            except ManagerUnreachable as error:
                self.problem = str(error)
            except (OSError, ValueError, http.client.HTTPException) as error:
                # Also if another program listens there, or dies in the middle of an event.
                self.problem = f"{self._manager} cannot be reached: {_reason(error)}"
            self._closed.wait(PAUSE)

    @property
    def _manager(self) -> str:
        host, port = self._address
        return f"the manager on {f'[{host}]' if ':' in host else host}:{port}"

    def _new_connection(self, port: int) -> http.client.HTTPConnection:
        host = self._address[0]
        if self._tls is None:
            return http.client.HTTPConnection(host, port, timeout=SILENCE)
        return http.client.HTTPSConnection(host, port, timeout=SILENCE, context=self._tls)

    def _request(self, http_port: int | None = None) -> http.client.HTTPResponse:
        """Ask for the events, at the given port or at the one that the manager has named."""
        connection = self._connection = self._new_connection(http_port or self._address[1])
        headers = self._headers | {"Last-Event-ID": self._last}
        try:
            connection.request("GET", self._path, headers=headers)
            self._socket = connection.sock
            answer = connection.getresponse()
            if answer.status == 200:
                self.problem = None
                return answer
            with answer:
                body = answer.read(200).decode(errors="replace").strip()
        except ConnectionRefusedError:
            connection.close()
            raise ManagerUnreachable(self._refused(http_port)) from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            message = f"{self._manager} cannot be reached: {_reason(error)}"
            raise ManagerUnreachable(message) from None
        connection.close()
        port = answer.headers.get(HTTP_PORT_HEADER, "")
        if http_port is None and re.fullmatch(r"[1-9][0-9]{0,4}", port) and int(port) < 65536:
            return self._request(int(port))
        message = f"{self._manager} answers {answer.status} {answer.reason}"
        raise ManagerUnreachable(f"{message}: {body}" if body else message)

    def _refused(self, http_port: int | None) -> str:
        refused = f"{self._manager} cannot be reached: Connection refused"
        if http_port is None:
            return f"{refused}; start one with `evenstep manager`"
        return f"{refused} on port {http_port}, which has its events; open it with --http"

    def _read(self, answer: http.client.HTTPResponse) -> None:
        with contextlib.closing(self._connection), answer:
            for number, data in parse(iter(lambda: answer.readline(LONGEST), b"")):
                self.put(data)
                self._last = number or self._last
                if self._closed.is_set():
                    return


def parse(lines: Iterable[bytes]) -> Iterator[tuple[str, Data]]:
    """Yield the number and the data of each server-sent event.

    >>> list(parse([b": hello", b"", b"id: 7", b"event: left", b'data: {"worker":"w0"}', b""]))
    [('7', {'worker': 'w0'})]
    """
    number, texts = "", []
    for line in lines:
        name, _, value = line.decode("utf-8", "replace").rstrip("\r\n").partition(":")
        value = value.removeprefix(" ")
        if name == "id" and value.isdecimal():
            number = value
        elif name == "data":
            texts.append(value)
        elif not name and not value and texts:
            data = json.loads("\n".join(texts))
            if isinstance(data, dict):
                yield number, data
            texts = []


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
