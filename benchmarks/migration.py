"""The cost of a running migration for a training: a ratio, with its standard error.

A training-like loop (batches from the giver's partition, a small network's forward and backward
pass in numpy) runs in this process; the agents of giver and receiver and the manager run next to it
on the same machine, and move samples back and forth at a limited bandwidth. Between real machines
the receiver's share of the cost is somewhere else.

Others on the machine disturb more than a migration does, so windows of half a second with it and
without it (its processes are stopped by signals) take turns, in pairs of random order; a pair gives
one ratio of mean iteration times, and one of their CPU times, which shows what caches and memory
contribute, without waiting. The standard error says how far off their mean may
be, if what others do lasts shorter than a window; it may not, so run it several times, and believe
all. After a stop the bandwidth that was saved up is used: the cost is overstated.

    OMP_NUM_THREADS=1 python -m benchmarks.migration [--bandwidth 5000000] [--pairs 30] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import psutil

from benchmarks.report import Row, progress, show
from evenstep.core import Floats
from evenstep.manager.connection import Where
from evenstep.partitions import Partition, create_partitions
from evenstep.partitions.agents.driver import Migration
from evenstep.partitions.agents.remote_agent import RemoteAgent
from evenstep.partitions.agents.settings import BANDWIDTH, AgentSettings

TO_REACH = 1.05
WINDOW = 0.5
"""Seconds with, or without, a migration."""
FEATURES, HIDDEN, BATCH = 3072, 128, 128
_ROW_BYTES = FEATURES + 12


class Training:
    """A training-like loop over the samples of a partition."""

    def __init__(self, folder: Path) -> None:
        self._partition = Partition.open(folder)
        self._rng = np.random.default_rng(0)
        self._inner = self._rng.standard_normal((FEATURES, HIDDEN), dtype=np.float32) / 50
        self._outer = self._rng.standard_normal((HIDDEN, 10), dtype=np.float32) / 10

    def mean_for(self, seconds: float) -> Floats:
        """Train for some time; return how long an iteration took, and how much CPU time of it."""
        begun, count = _clocks(), 0
        while _clocks()[0] < begun[0] + seconds or not count:
            self._iterate()
            count += 1
        return (_clocks() - begun) / count

    def _iterate(self) -> None:
        positions = self._rng.integers(0, len(self._partition), BATCH)
        images = self._partition.take(positions).astype(np.float32) / np.float32(255)
        hidden = np.maximum(images @ self._inner, 0)
        error = hidden @ self._outer - np.float32(0.1)
        back = (error @ self._outer.T) * (hidden > 0)
        self._outer -= np.float32(1e-6) * hidden.T @ error
        self._inner -= np.float32(1e-6) * images.T @ back


def measure(folder: Path, bandwidth: float, num_pairs: int) -> Row:
    """Return the figures of a training during endless migrations."""
    folders = _partitions(folder, bandwidth)
    order = np.random.default_rng(0).random(num_pairs) < 0.5
    with contextlib.ExitStack() as stack:
        agents = [stack.enter_context(_agent(one, bandwidth)) for one in folders]
        addresses = [address for _, address in agents]
        manager = stack.enter_context(_manager(addresses))
        every = [*(process for process, _ in agents), manager]
        training = Training(folders[0])
        training.mean_for(WINDOW)
        cpu, sent = _cpu(every), _sent(addresses)
        pairs = [_pair(training, every, first) for first in progress(order.tolist(), "pairs")]
        cpu, sent = _cpu(every) - cpu, _sent(addresses) - sent
    seconds = num_pairs * WINDOW
    ratios, of_cpu = np.array(pairs).T
    mean = float(np.exp(np.mean(np.log(ratios))))
    error = float(np.std(np.log(ratios), ddof=1) / np.sqrt(num_pairs))
    return {
        "ratio": mean,
        "standard error": error,
        "median of the pairs": float(np.median(ratios)),
        "of CPU time, median": float(np.median(of_cpu)),
        f"within {TO_REACH}": "yes" if mean <= TO_REACH else "NO",
        "can be told": "yes" if abs(mean - TO_REACH) > 2 * error else "NO, too noisy",
        "MB/s": sent / seconds / 1e6,
        "CPU of agents and manager, % of a core": 100 * cpu / seconds,
        "CPU, ms per MB": 1e3 * cpu / (sent / 1e6),
        "pairs": num_pairs,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }


def _pair(training: Training, processes: list[psutil.Process], migration_first: bool) -> Floats:
    """Return the ratios of iteration times with and without the migration, in this order or not."""
    found = {}
    for runs in (migration_first, not migration_first):
        for process in processes:
            process.send_signal(signal.SIGCONT if runs else signal.SIGSTOP)
        found[runs] = training.mean_for(WINDOW)
    for process in processes:
        process.send_signal(signal.SIGCONT)
    return found[True] / found[False]


def _partitions(folder: Path, bandwidth: float) -> list[Path]:
    """Make two partitions; a quarter of all samples, which moves at once, takes five seconds."""
    num_samples = 4 * max(64, int(bandwidth * 5 / _ROW_BYTES))
    images = np.random.default_rng(1).integers(0, 256, (num_samples, FEATURES), dtype=np.uint8)
    folders = [folder / "w0", folder / "w1"]
    create_partitions(folders, images, np.array_split(np.arange(num_samples), 2))
    return folders


@contextlib.contextmanager
def _agent(folder: Path, bandwidth: float) -> Iterator[tuple[psutil.Process, str]]:
    settings = AgentSettings(str(folder), "127.0.0.1:0", bandwidth)
    arguments = ["serve", json.dumps(asdict(settings))]
    with subprocess.Popen(
        [sys.executable, "-m", "evenstep.partitions.agents", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            listening = json.loads(process.stdout.readline())["listening"]
            yield psutil.Process(process.pid), listening["address"]
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()


@contextlib.contextmanager
def _manager(addresses: list[str]) -> Iterator[psutil.Process]:
    """Let samples go back and forth, until the context is left."""
    context = multiprocessing.get_context("spawn")
    begun = context.Event()
    process = context.Process(target=_drive, args=(addresses, begun), daemon=True)
    process.start()
    try:
        assert begun.wait(60.0), "the manager must begin"
        yield psutil.Process(process.pid)
    finally:
        process.kill()
        process.join()


def _drive(addresses: list[str], begun: Event) -> None:
    with Migration([RemoteAgent(Where(address)) for address in addresses]) as manager:
        number = 0
        while True:
            tasks = manager.plan([1, 3] if number % 2 == 0 else [1, 1], f"bench-{number}")
            begun.set()
            failed = [one.reason for one in manager.carry_out(tasks) if one.phase != "done"]
            assert not failed, failed
            number += 1


def _clocks() -> Floats:
    return np.array([time.perf_counter(), time.process_time()])


def _cpu(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def _sent(addresses: list[str]) -> int:
    """Return how many bytes of rows agents have sent so far."""
    remotes = [RemoteAgent(Where(address)) for address in addresses]
    try:
        return sum(int(remote.describe().sent) for remote in remotes)
    finally:
        for remote in remotes:
            remote.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--bandwidth",
        type=float,
        default=BANDWIDTH,
        help="bytes/s, default: an agent's, %(default)g",
    )
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        row = measure(Path(folder), args.bandwidth, args.pairs)
    show("training beside a migration", [row], args.json)


if __name__ == "__main__":
    main()
