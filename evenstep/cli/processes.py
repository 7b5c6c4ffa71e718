"""Worker processes on this machine, started with torchrun, and ended with their parent."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

import psutil

from evenstep.errors import EvenstepError

LOCAL = "127.0.0.1"

_GRACE = 3.0
"""Seconds that processes get to end by themselves."""


class Torchrun:
    """Runs a module in several processes that train together over the loopback interface."""

    def __init__(
        self, num_workers: int, module: str, arguments: Sequence[str], output: Path
    ) -> None:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--local-addr", LOCAL, "--nproc-per-node", str(num_workers)]
        self._output = output
        # Workers have sessions of their own; a unique argument identifies them all.
        self._mark = f"evenstep-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                [*command, "-m", module, *arguments, self._mark],
                env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": _loopback()},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                # Only the parent gets Ctrl-C, and ends the workers.
                start_new_session=True,
            )

    def is_running(self) -> bool:
        """Return whether they still run; raises EvenstepError if they failed."""
        code = self._process.poll()
        if code:
            raise EvenstepError(f"the training failed (exit code {code}): {self._complaint()}")
        return code is None

    def stop(self) -> None:
        """End all remaining processes, and wait for their end."""
        # torchrun is first: it would take the end of a worker for a failure.
        if self._process.poll() is None:
            self._process.terminate()
        for end in (psutil.Process.terminate, psutil.Process.kill):
            left = self._left()
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    end(process)
            psutil.wait_procs(left, timeout=_GRACE)
        self._process.wait()

    def __enter__(self) -> Torchrun:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _left(self) -> list[psutil.Process]:
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if self._mark in (process.info["cmdline"] or ())
        ]

    def _complaint(self) -> str:
        """Return the most useful line of the output: the last one that names an error."""
        lines = self._output.read_text(errors="replace").splitlines()
        errors = [line for line in lines if "Error: " in line or "evenstep.errors" in line]
        ours = [line for line in errors if "ChildFailedError" not in line]
        return f"{(ours or lines or ['no output'])[-1].strip()} (all of it in {self._output})"


def _loopback() -> str:
    """Return the name of the loopback interface."""
    addresses = psutil.net_if_addrs()
    names = [name for name, own in addresses.items() for a in own if a.address == LOCAL]
    return names[0] if names else "lo"
