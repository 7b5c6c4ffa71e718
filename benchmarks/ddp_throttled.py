"""Two DDP workers on a core each, one really throttled: how much of the ideal speedup is reached.

Measured on this machine with real training. The ideal comes from each worker's own solo times (no
exchange), measured in the same run: the best split of the total over two lines fitted to them. A
second part throttles in mid-run and looks how soon the new optimum is reached.

    python -m benchmarks.ddp_throttled [--quotas 0.5,0.25] [--rounds 3] [--json]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks import ddp
from benchmarks.report import Row, show
from evenstep.errors import EvenstepError
from evenstep.measure.throttle import Throttles, set_share

TOTAL = 64
SIZES = [8, 24, 40, 56]
WIDTH = 96
TO_REACH = 0.9
WITHIN = 0.10


def work(
    rank: int, groups: list[str], quotas: list[float], rounds: int, iterations: int
) -> dict[str, Any]:
    os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})
    group = groups[rank]
    (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    data = ddp.images(4096)
    steady = [
        _steady(rank, data, group, quota, iterations) for quota in quotas for _ in range(rounds)
    ]
    sudden = [_sudden(rank, data, group, quota) for quota in quotas for _ in range(rounds)]
    return {"steady": steady, "sudden": sudden}


def _limit(rank: int, group: str, quota: float | None) -> None:
    set_share(group, quota if rank == 1 else None)
    dist.barrier()


def _lines(data: Any) -> list[tuple[float, float]]:
    """Return (intercept, slope) of both workers' solo times: without any exchange, but at once.

    Cores slow each other down when both work, as they do in training; measured one after the
    other, the ideal would be one that no split can reach.
    """
    times = ddp.solo_times(ddp.conv_net(WIDTH), data, SIZES, repeat=8)
    slope, intercept = np.polyfit(SIZES, times, 1)
    both: list[Any] = [None, None]
    dist.all_gather_object(both, (float(intercept), float(slope)))
    return both


def _optimum(lines: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the iteration times of the even and of the best split."""
    times = np.array([[a + b * x for x in range(1, TOTAL)] for a, b in lines])
    joined = np.maximum(times[0], times[1][::-1])
    return float(joined[TOTAL // 2 - 1]), float(joined.min())


def _steady(rank: int, data: Any, group: str, quota: float, iterations: int) -> Row:
    _limit(rank, group, quota)
    even, best = _optimum(_lines(data))
    plain = ddp.Stopwatch()
    model = DistributedDataParallel(ddp.conv_net(WIDTH))
    ddp.run_iterations(model, ddp.forever(ddp.plain_loader(data, TOTAL)), iterations, plain)
    watch = ddp.Stopwatch()
    with ddp.balanced(ddp.conv_net(WIDTH), TOTAL) as (wrapped, balancer):
        loader = balancer.loader(data)
        ddp.run_iterations(wrapped, ddp.forever(loader), iterations, watch)
        sizes = balancer.plan.sizes.tolist()
    _limit(rank, group, None)
    skip = iterations // 3
    speedup = float(np.median(plain.times[skip:]) / np.median(watch.times[skip:]))
    return {
        "quota": quota,
        "plain, ms": 1e3 * float(np.median(plain.times[skip:])),
        "balanced, ms": 1e3 * float(np.median(watch.times[skip:])),
        "speedup": speedup,
        "ideal": even / best,
        "share of ideal": speedup / (even / best),
        "sizes": "/".join(map(str, sizes)),
    }


def _sudden(rank: int, data: Any, group: str, quota: float) -> Row:
    """Throttle after 20 iterations; compare iterations 10 to 40 after it with the late ones."""
    _limit(rank, group, quota)
    _, best = _optimum(_lines(data))
    _limit(rank, group, None)
    watch = ddp.Stopwatch()
    with ddp.balanced(ddp.conv_net(WIDTH), TOTAL) as (wrapped, balancer):
        batches = ddp.forever(balancer.loader(data))
        ddp.run_iterations(wrapped, batches, 20, watch)
        _limit(rank, group, quota)
        after = ddp.Stopwatch()
        ddp.run_iterations(wrapped, batches, 60, after)
    _limit(rank, group, None)
    soon, late = (float(np.median(after.times[part])) for part in (slice(10, 25), slice(35, None)))
    return {
        "quota": quota,
        "10-25 after, ms": 1e3 * soon,
        "35-60 after, ms": 1e3 * late,
        "ideal by solo lines, ms": 1e3 * best,
        "soon / late": soon / late,
    }


def _medians(rows: list[Row], quotas: list[float]) -> Iterator[dict[str, Any]]:
    for quota in quotas:
        of_quota = [row for row in rows if row["quota"] == quota]
        yield {
            name: value if isinstance(value, str) else float(np.median([r[name] for r in of_quota]))
            for name, value in of_quota[-1].items()
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quotas", default="0.5,0.25")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=45)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    quotas = [float(quota) for quota in args.quotas.split(",")]
    try:
        with Throttles([1.0, 1.0]) as throttles:
            result = ddp.launch(work, 2, throttles.groups, quotas, args.rounds, args.iterations)
    except EvenstepError as error:
        print(f"skipped: {error}")
        return
    steady = list(_medians(result["steady"], quotas))
    for row in steady:
        row["reached"] = "yes" if row["share of ideal"] >= TO_REACH else "NO"
    show(f"one of two workers throttled, measured, medians of {args.rounds} (to reach: 0.9)",
         steady, args.json)  # fmt: skip
    sudden = list(_medians(result["sudden"], quotas))
    for row in sudden:
        row["reached"] = "yes" if row["soon / late"] <= 1 + WITHIN else "NO"
    show("throttled in mid-run, measured (to reach: within 10 % after 10 iterations)",
         sudden, args.json)  # fmt: skip


if __name__ == "__main__":
    main()
