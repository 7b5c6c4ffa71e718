"""Two worker processes of one MultiWorkerMirroredStrategy for all tests: started once.

The strategy is made when a process starts, as TensorFlow wants it, and every job gets it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from multiprocessing.connection import Pipe
from typing import Any

from tests.distributed.workers import ROOT, Worker, Workers

NUM_WORKERS = 2


class Cluster(Workers):
    """Processes that train together under one strategy, on this machine only."""

    def _ensure(self, count: int) -> None:
        if not self._workers:
            self._ports = free_ports(NUM_WORKERS)
        super()._ensure(NUM_WORKERS)

    def _start(self, number: int) -> Worker:
        ours, theirs = Pipe()
        command = [sys.executable, "-m", "tests.tensorflow.worker", str(theirs.fileno())]
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
            env=environment(number, self._ports),
        )  # fmt: skip
        theirs.close()
        return Worker(process, ours)


def environment(number: int, ports: list[int]) -> dict[str, str]:
    """Return the environment of one of the workers that listen on these ports."""
    cluster: dict[str, Any] = {
        "cluster": {"worker": [f"127.0.0.1:{port}" for port in ports]},
        "task": {"type": "worker", "index": number},
    }
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    threads = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
    return {**os.environ, **quiet, **threads, "TF_CONFIG": json.dumps(cluster)}


def free_ports(count: int) -> list[int]:
    """Return free ports of this machine."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
