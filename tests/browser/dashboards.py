"""Dashboards as processes of their own, run logs for them, and a browser."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, Playwright

from evenstep.runlog import Event, Header, IterationRow, RunLogWriter

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def chromium() -> str | None:
    """Return the path of a Chromium, or None; the variable CHROMIUM may name one."""
    given = os.environ.get("CHROMIUM")
    found = (shutil.which(name) for name in (given, *_NAMES) if name)
    return next(filter(None, found), None)


def launch(playwright: Playwright) -> Browser:
    return playwright.chromium.launch(executable_path=chromium(), args=_FLAGS)


class Dashboard:
    """A running `evenstep dashboard`; `url` is where it is."""

    def __init__(self, *words: object, listen: str = "127.0.0.1:0") -> None:
        command = [sys.executable, "-m", "evenstep", "dashboard", *map(str, words)]
        self._process = subprocess.Popen(
            [*command, "--listen", listen], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().removeprefix("evenstep dashboard: ").strip()
        assert self.url.startswith("http://127.0.0.1:")

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.communicate(timeout=20)


class LiveLog:
    """A run log that grows when it is told to; the last worker is the slowest."""

    def __init__(self, path: Path, workers: Sequence[str], source: str = "emulated", job="live"):
        self.workers = list(workers)
        self._rng = np.random.default_rng(0)
        self._k = 0
        self.last: IterationRow | None = None
        header = Header(source, job, workers, 32 * len(workers), "proportional", "ema")
        self.writer = RunLogWriter(path, header)

    def grow(self, iterations: int) -> IterationRow:
        """Run some iterations, and return the last."""
        n = len(self.workers)
        row = None
        for _ in range(iterations):
            sizes = 32 + np.round(np.linspace(8, -8, n)).astype(int)
            times = sizes * np.linspace(0.002, 0.005, n) * self._rng.lognormal(0, 0.05, n)
            speeds = sizes / times * self._rng.lognormal(0, 0.03, n)
            cpu, memory = self._rng.uniform(0.2, 0.9, (2, n))
            row = IterationRow(
                self._k, self._k // 50, 0.2 * self._k, sizes, times, times.max() - times,
                speeds, cpu, memory,
            )  # fmt: skip
            self.writer.iteration(row)
            self._k += 1
        assert row is not None
        self.last = row
        return row

    def leave(self, worker: str, reason: str = "its lease is over") -> None:
        self.workers.remove(worker)
        self.writer.event(
            Event("leave", self._k, worker=worker, workers=self.workers, reason=reason)
        )

    def event(self, kind: str, **fields) -> None:
        self.writer.event(Event(kind, self._k, **fields))

    def end(self) -> None:
        self.event("end", reason="all is done")
        self.writer.close()
