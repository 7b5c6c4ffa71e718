"""Real manager processes for tests, on ports that the operating system chooses."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import evenstep
from evenstep import Plan, Report, Usage
from evenstep.manager.client import ManagerClient

PATIENCE = 20.0


class Manager:
    """A manager process; `restart` starts it again on the same port."""

    def __init__(
        self, *options: object, log: Path, code: str | None = None, http: bool = True
    ) -> None:
        self._options = [str(option) for option in options]
        self._run = ["-m", "evenstep"] if code is None else ["-c", code]
        if http and "--http" not in self._options:
            self._options += ["--http", "127.0.0.1:0"]
        self._log = log
        self.address = "127.0.0.1:0"
        self.url = ""
        self.start()

    def start(self) -> None:
        listen = [] if "--listen" in self._options else ["--listen", self.address]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self._run, "manager", *listen, *self._options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        assert "listening on" in self.said, self.log
        self.address = self.said.split("listening on ")[1].split(",")[0].strip()
        if "--http" in self._options and "off" not in self._options:
            self.url = self.process.stdout.readline().split("seen on ")[1].strip()

    def kill(self) -> None:
        """Kill it, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self, number: int = signal.SIGTERM) -> str:
        """Stop it, and return its last line."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        said, _ = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, self.log
        return said

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Return the status and the text of a page on the HTTP port."""
        request = urllib.request.Request(self.url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def status(self) -> dict[str, Any]:
        """Return the jobs by name, as the command line prints them."""
        done = self.command("status", "--json")
        return {job["job"]: job for job in json.loads(done)}

    def command(self, *arguments: object) -> str:
        words = [sys.executable, "-m", "evenstep", "manager", *map(str, arguments)]
        words += ["--manager", self.address]
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def connect(self, job: str, worker: str, **options) -> ManagerClient:
        options = {"timeout": PATIENCE, **options}
        return evenstep.connect(self.address, job, worker, **options)

    @property
    def log(self) -> str:
        return self._log.read_text()


@contextlib.contextmanager
def running(*options: object, log: Path, **how: Any) -> Iterator[Manager]:
    manager = Manager(*options, log=log, **how)
    try:
        yield manager
    finally:
        manager.kill()


def refused(*options: object) -> str:
    """Return the error message of a manager that refuses to start."""
    words = [sys.executable, "-m", "evenstep", "manager", *map(str, options)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (2, ""), done
    return done.stderr


def said(worker: str, iteration: int, speed: float | None = None, size: int = 10) -> Report:
    """Return a report of a worker that processed `size` samples at a speed, or nothing."""
    if speed is None:
        return Report(worker, iteration)
    return Report(worker, iteration, size, size / speed, Usage())


def together(*actions: Callable[[], object]) -> list[Any]:
    """Call functions at the same time, and return their results or exceptions."""
    results: list[Any] = [None] * len(actions)

    def act(i: int) -> None:
        try:
            results[i] = actions[i]()
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=act, args=(i,)) for i in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    return results


def boundary(clients: list[ManagerClient], iteration: int, *speeds: float | None) -> list[Plan]:
    """Let all workers report for a boundary, and return their plans."""
    speeds = speeds or (None,) * len(clients)
    actions = [
        lambda c=client, v=speed: c.boundary(said(c.worker, iteration, v))
        for client, speed in zip(clients, speeds, strict=True)
    ]
    plans = together(*actions)
    for plan in plans:
        assert isinstance(plan, Plan), plan
    return plans


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until something has happened."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what} must happen within {PATIENCE:g} s"
        time.sleep(0.01)
