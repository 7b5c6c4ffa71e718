"""The line to a manager: its event stream, read on a thread of its own, over broken connections."""

from __future__ import annotations

import http.client
import json
import queue
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any

from evenstep.manager.access import authorization

PATIENCE = 40.0
"""Seconds of silence after which a line counts as dead: the manager says something every 15."""
PAUSE = 1.0
"""Seconds before a lost line is tried again."""
MOST_WAITING = 5_000
"""Events that wait to be looked at; with more, the line waits too."""
LONGEST = 2**24
"""Bytes of the longest line that is believed."""


class ManagerLine:
    """Gets the events of a manager from where it was last, again and again until it is closed."""

    def __init__(self, url: str, token: str | None, context: ssl.SSLContext | None) -> None:
        self._url = f"{url}/events"
        self._token = token
        # No proxy: the manager is named by its address, and a token is nobody else's business.
        # No redirection either: it would take the token along.
        handlers = [
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=context),
            _NoRedirection(),
        ]
        self._opener = urllib.request.build_opener(*handlers)
        self._last = "0"
        self._closed = threading.Event()
        self.events: queue.Queue[dict[str, Any]] = queue.Queue(MOST_WAITING)
        self.problem: str | None = "not connected yet"

    def start(self) -> None:
        threading.Thread(target=self._work, name="evenstep-manager-line", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _work(self) -> None:
        while not self._closed.is_set():
            try:
                self._listen()
                self.problem = "the manager has ended the stream"
            except urllib.error.HTTPError as error:
                hint = "; its token is needed" if error.code == 401 else ""
                self.problem = f"the manager answers {error.code} {error.reason}{hint}"
            except (OSError, ValueError, http.client.HTTPException) as error:
                # Also where something else listens there, or dies in the middle of an event.
                self.problem = f"the manager cannot be reached: {_why(error)}"
            self._closed.wait(PAUSE)

    def _listen(self) -> None:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": self._last}
        if self._token is not None:
            headers["Authorization"] = authorization(self._token)
        request = urllib.request.Request(self._url, headers=headers)
        with self._opener.open(request, timeout=PATIENCE) as answer:
            self.problem = None
            lines = iter(lambda: answer.readline(LONGEST), b"")
            for number, data in parse(lines):
                self._last = number or self._last
                self.events.put(data)
                if self._closed.is_set():
                    return


def _why(error: Exception) -> object:
    return getattr(error, "reason", str(error)) or type(error).__name__


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    """Takes a redirection for the error that it is: a manager never sends one."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def parse(lines: Iterable[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
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
