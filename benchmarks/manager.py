"""The cost of the manager: a blocking round, in which all report and all get the plan.

A manager process and one process that simulates all workers share the cores of this machine. A
round takes from the first report until the last worker has read its plan; it is given as per cent
of an iteration of one second. It includes the workers' own part (writing and reading messages), on
one core for all.

- alone, and next to a process that applies gradients all the time, as a parameter server would
- how it grows from 32 to 96 workers
- of 20 jobs at once, with and without one of them that waits for a lost worker
- what a non-blocking worker spends in `boundary`
- --training: while networks (NARX) are trained, against when none are
- --memory: what the manager takes after 10,000 and after 100,000 iterations; some minutes

    python -m benchmarks.manager [--rounds 1000] [--workers 32 64 96 1000] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event

import numpy as np
import psutil

import evenstep
from benchmarks.report import Row, progress, show
from evenstep.core import Report
from reproduction.manager_workers import Rounds, Workers, manager, playing

WORKERS = (32, 64, 96, 1_000)
TO_REACH = 1.0
"""Per cent of an iteration of one second, mean, at 96 workers (at most)."""
JOBS, WORKERS_EACH = 20, 50
ITERATIONS = (10_000, 100_000)
"""After which the memory is looked at."""


def rounds(
    process: psutil.Process, address: str, num_workers: int, num_rounds: int, beside: str
) -> Row:
    with playing(address, f"bench-{num_workers}", num_workers, "best_of") as job:
        before = process.cpu_times()
        spent = 100 * np.array(job.rounds(num_rounds))
        after = process.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    mean = float(spent.mean())
    return {
        "workers": num_workers,
        "beside": beside,
        "mean, % of 1 s": mean,
        "5th percentile": float(np.percentile(spent, 5)),
        "95th percentile": float(np.percentile(spent, 95)),
        "manager's CPU, % of 1 s": 100 * cpu / num_rounds,
        "rounds": num_rounds,
        "96 within 1 %": ("yes" if mean <= TO_REACH else "NO") if num_workers == 96 else "",
    }


def table(workers: list[int], num_rounds: int, address: str, process: psutil.Process) -> list[Row]:
    rows = []
    for n in progress(workers, "rounds"):
        num = num_rounds if n < 1000 else max(10, num_rounds // 20)
        rows.append(rounds(process, address, n, num, "nothing"))
        with parameter_server():
            rows.append(rounds(process, address, n, num, "a parameter server"))
    return rows


def growth(rows: list[Row]) -> list[Row]:
    """Return how many times longer a round of 96 workers takes than one of 32."""
    means = {(row["beside"], row["workers"]): row["mean, % of 1 s"] for row in rows}
    return [
        {"beside": beside, "96 workers / 32 workers": means[beside, 96] / means[beside, 32]}
        for beside, n in means
        if n == 96 and (beside, 32) in means
    ]


@contextlib.contextmanager
def parameter_server() -> Iterator[None]:
    """Keep a core busy with what a parameter server does: gradients are applied without a pause."""
    context = multiprocessing.get_context("spawn")
    begun = context.Event()
    process = context.Process(target=_apply_gradients, args=(begun,), daemon=True)
    process.start()
    begun.wait()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _apply_gradients(begun: Event) -> None:
    rng = np.random.default_rng(0)
    parameters = rng.standard_normal(1_000_000, dtype=np.float32)
    gradients = rng.standard_normal((4, 1_000_000), dtype=np.float32)
    begun.set()
    while True:
        parameters -= np.float32(1e-3) * gradients.mean(axis=0)


def many_jobs(address: str, num_rounds: int) -> list[Row]:
    """Return the rounds of all jobs but the first, while that is idle, and while it waits."""
    jobs = [Workers(address, f"many-{j}", WORKERS_EACH, "ema") for j in range(JOBS)]
    first, *others = jobs
    together = Rounds(jobs)
    together.rounds(3)
    apart = Rounds(others, together.iteration)
    idle = float(np.median(apart.rounds(num_rounds)))
    first.prepare()
    first.report(together.iteration, num_silent=1)
    waits = float(np.median(apart.rounds(num_rounds)))
    for rounds_of in (together, apart):
        rounds_of.close()
    for job in jobs:
        for line in job.lines:
            line.close()
    return [
        {
            "the first job": what,
            "jobs": JOBS,
            "workers of each": WORKERS_EACH,
            "median of the other jobs, ms": 1e3 * median,
            "ratio": median / idle,
            "rounds": num_rounds,
        }
        for what, median in (("is idle", idle), ("waits for a lost worker", waits))
    ]


def own_cost(address: str, num_iterations: int) -> Row:
    """Return the time that a non-blocking worker's training thread spends in `boundary`."""
    client = evenstep.connect(address, "own", "w", workers=1, total=64, blocking=False)
    spent = []
    for k in range(num_iterations):
        start = time.perf_counter()
        client.boundary(Report("w", k, 64, 0.1) if k else Report("w", 0))
        spent.append(1e6 * (time.perf_counter() - start))
        time.sleep(0.002)
    client.leave()
    return {
        "non-blocking worker": "boundary()",
        "median, us": float(np.median(spent[1:])),
        "95th percentile, us": float(np.percentile(spent[1:], 95)),
        "iterations": num_iterations,
    }


def training(address: str, num_workers: int, num_rounds: int) -> Iterator[Row]:
    """Yield rounds while networks are trained all the time, and with networks that never are."""
    start = 300
    kinds = {"never": "narx:start=10000,history=10000", "always": f"narx:start={start},retrain=1"}
    base = None
    for which, predictor in kinds.items():
        with playing(address, f"training-{which}", num_workers, predictor) as job:
            job.rounds(start)
            spent = 100 * np.array(job.rounds(num_rounds))
        base = float(spent.mean()) if base is None else base
        yield {
            "networks are trained": which,
            "workers": num_workers,
            "mean, % of 1 s": float(spent.mean()),
            "95th percentile": float(np.percentile(spent, 95)),
            "ratio of the means": float(spent.mean()) / base,
            "rounds": num_rounds,
        }


def memory(process: psutil.Process, address: str) -> Iterator[Row]:
    """Yield the manager's memory after some numbers of iterations of a small job."""
    base = None
    with playing(address, "memory", 4, "best_of") as job:
        done = 0
        for target in ITERATIONS:
            for _ in progress(range((target - done) // 1_000), f"{target:,} iterations"):
                job.rounds(1_000)
            done, megabytes = target, process.memory_info().rss / 2**20
            base = base or megabytes
            yield {
                "iterations": target,
                "memory of the manager, MiB": megabytes,
                "ratio": megabytes / base,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1_000)
    parser.add_argument("--workers", type=int, nargs="*", default=list(WORKERS))
    parser.add_argument("--training", action="store_true", help="also while networks are trained")
    parser.add_argument("--memory", action="store_true", help="also 100,000 iterations")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with manager() as (process, address):
        rows = table(args.workers, args.rounds, address, process)
        if rows:
            show("a blocking round through the manager, measured", rows, args.json)
        if found := growth(rows):
            show("how a round grows, measured", found, args.json)
        show("a non-blocking worker, measured", [own_cost(address, 1_000)], args.json)
        jobs = many_jobs(address, max(10, args.rounds // 20))
        show("many jobs at once, measured", jobs, args.json)
        if args.training:
            trained = list(training(address, 96, max(20, args.rounds // 10)))
            show("rounds while networks are trained, measured", trained, args.json)
        if args.memory:
            show("memory, measured", list(memory(process, address)), args.json)


if __name__ == "__main__":
    main()
