"""A scheduler, a server and workers on this machine: MXNet's own way to train together."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NUM_WORKERS = 2


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def environment(num_workers: int) -> dict[str, str]:
    """Return the settings of a job that listens on loopback only."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": str(num_workers),
    }


class Job:
    """The processes of a job; the workers run a command, the others wait for them."""

    def __init__(self, *command: str, log: Path, num_workers: int = NUM_WORKERS) -> None:
        env = environment(num_workers)
        self.log = log
        self._processes: list[subprocess.Popen[bytes]] = []
        python = sys.executable
        with log.open("wb") as file:
            for role in ("scheduler", "server", *["worker"] * num_workers):
                words = [python, *command] if role == "worker" else [python, "-c", "import mxnet"]
                self._processes.append(
                    subprocess.Popen(
                        words, cwd=ROOT, env={**env, "DMLC_ROLE": role},
                        stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                    )
                )  # fmt: skip

    def wait(self, timeout: float) -> None:
        """Return when all have ended well; end them where one has failed, or time is up."""
        deadline = time.monotonic() + timeout
        try:
            while any(process.poll() is None for process in self._processes):
                failed = [process for process in self._processes if process.poll()]
                assert not failed and time.monotonic() < deadline, self.log.read_text()
                time.sleep(0.05)
            codes = [process.returncode for process in self._processes]
            assert codes == [0] * len(codes), self.log.read_text()
        finally:
            self.kill()

    def kill(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def run(folder: Path, timeout: float, **arguments: Any) -> list[dict[str, Any]]:
    """Run `tests/mxnet/scenarios.py` on all workers, and return what each of them returns."""
    given = json.dumps({"folder": str(folder), **arguments})
    job = Job("-m", "tests.mxnet.scenarios", given, log=folder / "log")
    job.wait(timeout)
    files = [folder / f"worker-{worker}.json" for worker in range(NUM_WORKERS)]
    return [json.loads(file.read_text()) for file in files]
