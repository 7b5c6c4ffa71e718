"""Two DDP workers on a core each, one really throttled: how much of the ideal speedup is reached.

Measured on this machine with real training. The ideal comes from each worker's own solo times (no
exchange), measured in the same run: the best split of the total over two lines fitted to them. As a
witness, plain DDP with that best split set by hand: what it loses to the ideal is the exchange's.
A second part throttles in mid-run and looks how soon the new optimum is reached.

    python -m benchmarks.ddp_throttled [--quotas 0.5,0.25] [--totals 64,256] [--rounds 2] [--json]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import ddp
from benchmarks.report import Row, show
from benchmarks.throttled import PARTS, Line, line_through, optimum
from evenstep.errors import EvenstepError
from evenstep.simulator.load.throttle import Throttles, join, set_share

WIDTH = 96
TO_REACH = 0.9
WITHIN = 0.10


def work(
    rank: int,
    groups: list[str],
    quotas: list[float],
    totals: list[int],
    rounds: int,
    blocks: int,
) -> dict[str, Any]:
    os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})
    join(groups[rank])
    jobs = [
        _Job(rank, ddp.images(4096), groups[rank], quota, total)
        for quota in quotas for total in totals for _ in range(rounds)
    ]  # fmt: skip
    steady = [_steady(job, blocks) for job in jobs]
    sudden = [_sudden(job) for job in jobs if job.total == totals[0]]
    return {"steady": steady, "sudden": sudden}


@dataclass(frozen=True)
class _Job:
    rank: int
    data: TensorDataset
    group: str
    quota: float
    total: int

    def throttle(self, quota: float | None) -> None:
        set_share(self.group, quota if self.rank == 1 else None)
        dist.barrier()


class _Solo:
    """Solo times of this worker: without any exchange, but of both workers at once.

    Cores slow each other down when both work, as they do in training; measured one after the
    other, the ideal would be one that no split can reach.
    """

    def __init__(self, job: _Job) -> None:
        self._job = job
        self._net = ddp.conv_net(WIDTH)
        self._sizes = [round(part * job.total) for part in PARTS]
        self._times: list[list[float]] = []

    def measure(self, repeat: int = 3) -> None:
        self._times.append(ddp.solo_times(self._net, self._job.data, self._sizes, repeat))
        dist.barrier()

    def lines(self) -> list[Line]:
        """Return (intercept, slope) of both workers."""
        both: list[Any] = [None, None]
        dist.all_gather_object(both, line_through(self._sizes, np.median(self._times, axis=0)))
        return both


def _steady(job: _Job, blocks: int) -> Row:
    """Compare in alternating blocks: the machine is faster at times, for all of them."""
    job.throttle(job.quota)
    solo = _Solo(job)
    solo.measure(repeat=8)
    _, _, first = optimum(solo.lines(), job.total)
    by_hand = DataLoader(job.data, first if job.rank == 0 else job.total - first, shuffle=True)
    runs = {
        "plain": _Run(_plain_model(), ddp.plain_loader(job.data, job.total)),
        "by hand": _Run(_plain_model(), by_hand),
    }
    with ddp.balanced(ddp.conv_net(WIDTH), job.total) as (wrapped, balancer):
        runs["balanced"] = _Run(wrapped, balancer.loader(job.data))
        for _ in range(blocks):
            solo.measure()
            for run in runs.values():
                run.block()
        sizes = balancer.plan.sizes.tolist()
    job.throttle(None)
    even, best, _ = optimum(solo.lines(), job.total)
    times = {name: run.time() for name, run in runs.items()}
    speedups = {name: times["plain"] / time for name, time in times.items()}
    return {
        "quota": job.quota,
        "total": job.total,
        **{f"{name}, ms": 1e3 * time for name, time in times.items()},
        "ideal, ms": 1e3 * best,
        "speedup": speedups["balanced"],
        "ideal speedup": even / best,
        "by hand of ideal": speedups["by hand"] * best / even,
        "share of ideal": speedups["balanced"] * best / even,
        "sizes": "/".join(map(str, sizes)),
    }


def _plain_model() -> DistributedDataParallel:
    return DistributedDataParallel(ddp.conv_net(WIDTH))


class _Run:
    """A training in blocks; the first block is a warm-up."""

    def __init__(self, model: DistributedDataParallel, loader: Any) -> None:
        self._model = model
        self._batches = ddp.forever(loader)
        self._medians: list[float] = []

    def block(self, iterations: int = 8) -> None:
        watch = ddp.Stopwatch()
        ddp.run_iterations(self._model, self._batches, iterations, watch)
        self._medians.append(float(np.median(watch.times[1:])))

    def time(self) -> float:
        return float(np.median(self._medians[1:]))


def _sudden(job: _Job) -> Row:
    """Throttle after 20 iterations; compare iterations 10 to 40 after it with the late ones."""
    job.throttle(job.quota)
    solo = _Solo(job)
    solo.measure(repeat=8)
    _, best, _ = optimum(solo.lines(), job.total)
    job.throttle(None)
    watch = ddp.Stopwatch()
    with ddp.balanced(ddp.conv_net(WIDTH), job.total) as (wrapped, balancer):
        batches = ddp.forever(balancer.loader(job.data))
        ddp.run_iterations(wrapped, batches, 20, watch)
        job.throttle(job.quota)
        after = ddp.Stopwatch()
        ddp.run_iterations(wrapped, batches, 60, after)
    job.throttle(None)
    soon, late = (float(np.median(after.times[part])) for part in (slice(10, 25), slice(35, None)))
    return {
        "quota": job.quota,
        "total": job.total,
        "10-25 after, ms": 1e3 * soon,
        "35-60 after, ms": 1e3 * late,
        "ideal by solo lines, ms": 1e3 * best,
        "soon / late": soon / late,
    }


def _medians(rows: list[Row]) -> Iterator[dict[str, Any]]:
    for case in dict.fromkeys((row["quota"], row["total"]) for row in rows):
        alike = [row for row in rows if (row["quota"], row["total"]) == case]
        yield {
            name: value if isinstance(value, str) else float(np.median([r[name] for r in alike]))
            for name, value in alike[-1].items()
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quotas", default="0.5,0.25")
    parser.add_argument("--totals", default="64,256")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    quotas = [float(quota) for quota in args.quotas.split(",")]
    totals = [int(total) for total in args.totals.split(",")]
    try:
        with Throttles([1.0, 1.0], signals=True) as throttles:
            result = ddp.launch(work, 2, throttles.groups, quotas, totals, args.rounds, args.blocks)
    except EvenstepError as error:
        print(f"skipped: {error}")
        return
    steady = list(_medians(result["steady"]))
    for row in steady:
        row["reached"] = "yes" if row["share of ideal"] >= TO_REACH else "NO"
    show(f"one of two workers throttled, measured, medians of {args.rounds} (to reach: 0.9)",
         steady, args.json)  # fmt: skip
    sudden = list(_medians(result["sudden"]))
    for row in sudden:
        row["reached"] = "yes" if row["soon / late"] <= 1 + WITHIN else "NO"
    show("throttled in mid-run, measured (to reach: within 10 % after 10 iterations)",
         sudden, args.json)  # fmt: skip


if __name__ == "__main__":
    main()
