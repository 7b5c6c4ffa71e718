"""Following a job of a manager: its events, as the records that a run log would have of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import ssl
import threading
from typing import Any
from urllib.parse import quote

import numpy as np

from evenstep.core.arrays import Floats
from evenstep.errors import ManagerUnreachable
from evenstep.manager.access import authorization
from evenstep.manager.settings import Settings
from evenstep.runlog import Event, Header, IterationRow, Record

_SILENCE = 40.0
"""Seconds without a line, though the manager sends one every 15, after which it is away."""
_AGAIN = 1.0
"""Seconds between two attempts to reach it."""


class ManagerFollower:
    """Reads the events of a manager on a thread; the first job that is told of is followed.

    Raises ManagerUnreachable where there is none from the beginning, or it refuses us; when it
    goes away later, `away` says why, and it is tried again.
    """

    behind = False
    """What has come is returned at once."""

    def __init__(
        self,
        address: tuple[str, int],
        job: str | None = None,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._address, self._tls = address, tls
        self._path = "/events" if job is None else f"/events?job={quote(job, safe='')}"
        self._headers = {} if token is None else {"Authorization": authorization(token)}
        self._job = job
        self._last = "0"
        self._records: queue.SimpleQueue[Record] = queue.SimpleQueue()
        self._workers: tuple[str, ...] = ()
        self._iteration = -1
        self._policies: dict[str, str] = {}
        self._stop = threading.Event()
        self.away: str | None = None
        """Why the manager cannot be heard at the moment; None while it can."""
        self._line, answer = self._connect()
        self._thread = threading.Thread(target=self._follow, args=(answer,), daemon=True)
        self._thread.start()

    def poll(self) -> list[Record]:
        """Return the new records."""
        records = []
        with contextlib.suppress(queue.Empty):
            while True:
                records.append(self._records.get_nowait())
        return records

    def close(self) -> None:
        self._stop.set()
        with contextlib.suppress(OSError):
            self._line.close()

    def _connect(self) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        host, port = self._address
        if self._tls is not None:
            line: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=_SILENCE, context=self._tls
            )
        else:
            line = http.client.HTTPConnection(host, port, timeout=_SILENCE)
        try:
            line.request("GET", self._path, headers=self._headers | {"Last-Event-ID": self._last})
            answer = line.getresponse()
        except (OSError, http.client.HTTPException) as problem:
            line.close()
            why = str(problem) or type(problem).__name__
            raise ManagerUnreachable(
                f"no manager shows its events on {host}:{port} ({why})"
            ) from None
        if answer.status != 200:
            said = answer.read(200).decode(errors="replace").strip()
            line.close()
            raise ManagerUnreachable(f"the manager on {host}:{port} refuses: {said}")
        return line, answer

    def _follow(self, answer: http.client.HTTPResponse) -> None:
        while not self._stop.is_set():
            try:
                self._read(answer)
                self.away = "it closed the connection"
            except (OSError, http.client.HTTPException) as problem:
                self.away = str(problem) or type(problem).__name__
            except (ValueError, LookupError, TypeError) as problem:
                # Anything may listen there, and say anything.
                self.away = f"it says what no manager says ({type(problem).__name__}: {problem})"
            while not self._stop.wait(_AGAIN):
                try:
                    self._line, answer = self._connect()
                except ManagerUnreachable as problem:
                    self.away = str(problem)
                    continue
                self.away = None
                break

    def _read(self, answer: http.client.HTTPResponse) -> None:
        data = b""
        while line := answer.readline():
            name, _, value = line.rstrip(b"\n").partition(b": ")
            if name == b"id":
                self._last = value.decode("latin-1")
            elif name == b"data":
                data = value
            elif not line.strip() and data:
                self._take(json.loads(data))
                data = b""

    def _take(self, told: dict[str, Any]) -> None:
        job = told.get("job")
        if not isinstance(job, str):
            return
        if told["event"] == "created":
            self._policies[job] = str(told["settings"]["policy"])
        if self._job is None and told["event"] == "iteration":
            self._job = job
        if job != self._job:
            return
        if told["event"] == "iteration":
            self._iterated(told)
        elif told["event"] == "begun":
            # The next iteration begins a run log of its own.
            self._workers = ()
        elif told["event"] == "ended" and self._workers:
            self._records.put(Event("end", self._iteration + 1, reason=told.get("reason")))
            self._workers = ()

    def _iterated(self, told: dict[str, Any]) -> None:
        workers = tuple(told["workers"])
        self._iteration = told["iteration"]
        if workers != self._workers:
            self._workers = workers
            total = sum(told["batch_sizes"])
            policy = self._policies.get(told["job"], Settings.policy)
            self._records.put(Header("measured", told["job"], workers, total, policy, ""))
        self._records.put(
            IterationRow(
                self._iteration,
                plan=max(0, told["next_plan"]),
                start=np.nan,
                batch_sizes=np.array(told["batch_sizes"]),
                times=_numbers(told["times"]),
                waiting=_numbers(told["waiting"]),
                cpu=_numbers(told["cpu"]) if "cpu" in told else None,
            )
        )


def _numbers(values: list[float | None]) -> Floats:
    return np.array(values, dtype=np.float64)
