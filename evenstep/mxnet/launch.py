"""Launch a training on this machine: a scheduler, a server, and workers that run a command.

    python -m evenstep.mxnet.launch [--workers 2] [--servers 1] script.py [arguments]

All of them listen on the loopback interface only. On several machines, use MXNet's own launcher.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import IO

from evenstep.errors import EvenstepError

_LOCAL = "127.0.0.1"


class LocalJob:
    """The processes of a job: workers that run a command, scheduler and servers."""

    def __init__(
        self,
        command: Sequence[str],
        num_workers: int = 2,
        num_servers: int = 1,
        output: IO[bytes] | None = None,
    ) -> None:
        env = _environment(num_workers, num_servers)
        roles = ["scheduler", *["server"] * num_servers, *["worker"] * num_workers]
        # Scheduler and servers only import MXNet: the import returns when the job ends.
        serve = [sys.executable, "-c", "import mxnet"]
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for role in roles:
                started = subprocess.Popen(
                    command if role == "worker" else serve, env={**env, "DMLC_ROLE": role},
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output and subprocess.STDOUT,
                )  # fmt: skip
                self._processes.append(started)
        except OSError:
            self.kill()
            raise

    def wait(self, timeout: float | None = None) -> None:
        """Return when all have succeeded; end all if one fails, or at the timeout."""
        begun = time.monotonic()
        try:
            while any(process.poll() is None for process in self._processes):
                self._check()
                if timeout is not None and time.monotonic() - begun > timeout:
                    raise EvenstepError(f"a training must end within {timeout:g} s, and has not")
                time.sleep(0.05)
            self._check()
        finally:
            self.kill()

    def kill(self) -> None:
        """End all processes that still run."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def _check(self) -> None:
        for process in self._processes:
            if process.poll():
                raise EvenstepError(
                    f"a process of the training failed with exit code {process.returncode}"
                )


def _environment(num_workers: int, num_servers: int) -> dict[str, str]:
    """Return the settings by which MXNet's processes find each other."""
    with socket.socket() as listener:
        listener.bind((_LOCAL, 0))
        port = listener.getsockname()[1]
    return {
        **os.environ,
        "DMLC_PS_ROOT_URI": _LOCAL,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": _LOCAL,
        "DMLC_NUM_SERVER": str(num_servers),
        "DMLC_NUM_WORKER": str(num_workers),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m evenstep.mxnet.launch", description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    # A SIGTERM to this process must end the others, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    command = [sys.executable, args.script, *args.arguments]
    try:
        LocalJob(command, args.workers, args.servers).wait()
    except EvenstepError as error:
        sys.exit(f"evenstep.mxnet.launch: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
