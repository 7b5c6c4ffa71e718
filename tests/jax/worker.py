"""One worker process of JAX: one of two that jax.distributed has joined, for all jobs."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import jax

from tests.distributed.workers import START, Job, outcome, serve

NUM_WORKERS = 2


def main() -> None:
    # Small matrices on several threads cost more than they gain.
    os.environ["NPROC"] = "1"
    serve(_do)


def _do(job: Job, number: int) -> Any:
    if not jax.distributed.is_initialized():
        address = _offer(Path(job.store)) if number == 0 else _wait_for(Path(job.store))
        jax.distributed.initialize(address, NUM_WORKERS, number, initialization_timeout=40)
    return outcome(job)


def _offer(path: Path) -> str:
    """Write down, for the other worker, an address that is free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    path.with_suffix(".new").write_text(address)
    path.with_suffix(".new").rename(path)
    return address


def _wait_for(path: Path) -> str:
    until = time.monotonic() + START
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.01)
    return path.read_text()


if __name__ == "__main__":
    main()
