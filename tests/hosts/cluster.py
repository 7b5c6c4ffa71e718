"""Two hosts that train and a third for a manager, as the tests use them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from tests.hosts.job import CERTIFICATE, KEY, TOKEN
from tests.hosts.network import Host, Network

NAMES = ("a", "b")
"""The hosts that train."""
PATIENCE = 90.0
"""Seconds in which anything must happen, also on a busy machine."""


class Cluster:
    """The hosts and the processes on them, whose output goes to files."""

    def __init__(self, folder: Path, found: Network, stack: ExitStack) -> None:
        self.folder, self.network, self._stack = folder, found, stack
        self._started: list[subprocess.Popen[str]] = []
        (folder / TOKEN).write_text("correct-horse-battery-staple")
        make_certificate(folder)

    @property
    def hosts(self) -> dict[str, Host]:
        return self.network.hosts

    def start(self, name: str, *words: object, **variables: str) -> subprocess.Popen[str]:
        """Start a program on a host."""
        out = self._stack.enter_context((self.folder / f"out-{name}").open("a"))
        process = self.hosts[name].start(*words, out=out, **variables)
        if name in NAMES:
            self._started.append(process)
        return process

    def torchrun(
        self, name: str, job: str, *options: str, workers: int = 1, timeout: float = 60.0
    ) -> subprocess.Popen[str]:
        """Start torchrun on a host; the rendezvous is on host `a`."""
        return self.start(
            name, sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={workers}",
            "--rdzv-backend=c10d", "--rdzv-endpoint=a:29400", "--rdzv-id=job",
            "--monitor-interval=0.1", *options,
            "-m", "tests.hosts.job", job, self.folder, timeout,
            GLOO_SOCKET_IFNAME="eth0", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
        )  # fmt: skip

    def notes(self, name: str) -> list[dict[str, Any]]:
        """Return what a worker wrote down, iteration by iteration."""
        path = self.folder / f"notes-{name}"
        whole, _, _ = (path.read_text() if path.exists() else "").rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until something has happened."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            running = any(process.poll() is None for process in self._started)
            assert running and time.monotonic() < deadline, f"{what} must come\n{self.out()}"
            time.sleep(0.05)

    def until_noted(self, condition: Callable[[dict[str, Any]], object], what: str) -> int:
        """Wait until an iteration that begins after this is like that on `a`; return its place."""
        before = len(self.notes("a0"))

        def place() -> int | None:
            later = enumerate(self.notes("a0")[before:], start=before)
            return next((at for at, note in later if condition(note)), None)

        self.until(lambda: place() is not None, what)
        found = place()
        assert found is not None
        return found

    def ends(self, process: subprocess.Popen[str]) -> int:
        """Return the exit code of a process, which must end by itself."""
        self.until(lambda: process.poll() is not None, "the end of a process")
        return process.returncode

    def parameters(self, name: str) -> torch.Tensor:
        """Return the parameters that a worker ended with."""
        found: torch.Tensor = torch.load(self.folder / f"parameters-{name}")
        return found

    def out(self) -> str:
        """Return the end of what was printed on each host."""
        files = sorted(self.folder.glob("out-*"))
        return "\n".join(f"{file.name}:\n{file.read_text()[-3000:]}" for file in files)


def make_certificate(folder: Path) -> None:
    """Make a self-signed certificate for the names of the hosts, as most are: without addresses."""
    names = ",".join(f"DNS:{name}" for name in ("m", "a-direct", "b-direct"))
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", "/CN=m", "-addext", f"subjectAltName={names}",
         "-keyout", folder / KEY, "-out", folder / CERTIFICATE],
        check=True, capture_output=True, timeout=30,
    )  # fmt: skip
