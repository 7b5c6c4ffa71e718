"""The cost of observing a run: recording it in the training process, and reporting a long one.

- recording: what worker 0 spends on the run log of an iteration, per worker, alone and while
  another process follows the log as `evenstep watch` does: following costs it nothing
- report: `evenstep report` on 100,000 iterations of 32 workers, seconds and memory, in a process
  of its own; writing the log for it takes half a minute, and 160 MB of disk

    python -m benchmarks.seeing [--iterations 100000] [--workers 32] [--json]
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import subprocess
import sys
import tempfile
import time
from multiprocessing.synchronize import Event as Flag
from pathlib import Path

import numpy as np

from benchmarks.report import Row, show
from evenstep.runlog import Event, Header, IterationRow, RunLogWriter
from evenstep.runlog.follower import FileFollower

WRITING_TO_REACH = 50.0
"""Microseconds per iteration and worker."""
REPORT_TO_REACH = 20.0, 1024.0
"""Seconds, and MiB."""
_ROWS = 2_000
_POLL = 0.2


def header(num_workers: int) -> Header:
    workers = [f"worker-{i}" for i in range(num_workers)]
    return Header("simulated", "benchmark", workers, 128 * num_workers, "proportional", "ema")


def rows(num_workers: int, count: int, seed: int = 0) -> list[IterationRow]:
    """Make iterations in which everything is known: even sizes at first, then balanced."""
    rng = np.random.default_rng(seed)
    speeds = rng.uniform(50, 150, num_workers)
    even = np.full(num_workers, 128)
    balanced = np.maximum(1, np.round(even.sum() * speeds / speeds.sum())).astype(np.int64)
    made = []
    start = 0.0
    for k in range(count):
        sizes = even if k < 50 else balanced
        times = sizes / speeds * np.exp(0.03 * rng.standard_normal(num_workers))
        cpu, memory = rng.uniform(0.5, 1.0, (2, num_workers))
        waiting = times.max() - times
        made.append(
            IterationRow(k, int(k >= 50), start, sizes, times, waiting, speeds, cpu, memory)
        )
        start += float(times.max())
    return made


def recording(num_workers: int, followed: bool) -> Row:
    """Return what writing an iteration takes, per worker, followed by another process or not."""
    made = rows(num_workers, _ROWS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.jsonl")
        stop = multiprocessing.get_context("spawn").Event()
        process = multiprocessing.get_context("spawn").Process(target=_follow, args=(path, stop))
        if followed:
            process.start()
        spent = []
        with RunLogWriter(path, header(num_workers)) as log:
            for row in made:
                began = time.perf_counter()
                log.iteration(row)
                spent.append(1e6 * (time.perf_counter() - began) / num_workers)
            log.event(Event("end", len(made)))
        if followed:
            stop.set()
            process.join()
    median = float(np.median(spent))
    return {
        "workers": num_workers,
        "followed": "yes" if followed else "no",
        "µs per worker, median": median,
        "95th percentile": float(np.percentile(spent, 95)),
        f"within {WRITING_TO_REACH:g} µs": "yes" if median <= WRITING_TO_REACH else "NO",
    }


def _follow(path: Path, stop: Flag) -> None:
    follower = FileFollower(path)
    while not stop.wait(_POLL):
        follower.poll()


def report(num_workers: int, num_iterations: int) -> Row:
    """Return what the report of a long run takes, as a command."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.jsonl")
        piece = 5_000
        with RunLogWriter(path, header(num_workers)) as log:
            cycle = rows(num_workers, piece)
            for k in range(num_iterations):
                row = cycle[k % piece] if k < piece else cycle[50 + k % (piece - 50)]
                log.iteration(_renumbered(row, k))
            log.event(Event("end", num_iterations))
        size = path.stat().st_size / 2**20
        began = time.perf_counter()
        command = [sys.executable, "-m", "evenstep", "report", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    memory = used.ru_maxrss / 1024
    within = seconds <= REPORT_TO_REACH[0] and memory <= REPORT_TO_REACH[1]
    return {
        "workers": num_workers,
        "iterations": num_iterations,
        "log, MiB": size,
        "seconds": seconds,
        "of it, CPU": used.ru_utime + used.ru_stime,
        "memory, MiB": memory,
        "within 20 s and 1 GiB": "yes" if within else "NO",
    }


def _renumbered(row: IterationRow, k: int) -> IterationRow:
    return IterationRow(
        k, row.plan, float(k), row.batch_sizes, row.times, row.waiting, row.predicted_speeds,
        row.cpu, row.memory,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=100_000, metavar="K")
    parser.add_argument("--workers", type=int, default=32, metavar="N")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    # Before anything else is started: what children took at most is the report's.
    long_run = report(args.workers, args.iterations)
    written = [recording(n, followed) for n in (1, 4, 32) for followed in (False, True)]
    show("recording an iteration (on this machine, with its other load)", written, args.json)
    show("evenstep report", [long_run], args.json)


if __name__ == "__main__":
    main()
