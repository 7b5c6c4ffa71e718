"""Real DDP training on workers that emulate GPUs: how close iterations come to the exact optimum.

The devices are EMULATED: every worker computes a tiny net and then sleeps, as part of its own
work, until the curve of its GPU says that it would be finished. Processes, gradients, exchange and
plans are real.

    python -m benchmarks.ddp_emulated [--workers 4,8] [--iterations 30] [--json]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import ddp
from benchmarks.report import Row, show
from evenstep.simulator.clusters.scenarios import make_scenario

SCALE = 1.0
"""Seconds of the emulated curve per second of scenario G: iterations of 1.25 s at the optimum,
as the exchange among 8 processes on 2 cores takes 40 ms."""
WITHIN = 0.05
FROM = 10


def work(rank: int, num_workers: int, iterations: int) -> Row:
    cluster = make_scenario("G", num_workers, seed=0, noisy=False)
    at = cluster.conditions(0, now=0.0)
    optimum = SCALE * float(cluster.expected_times(cluster.optimum(at), at).max())
    even = SCALE * float(
        cluster.expected_times(np.full(num_workers, cluster.total // num_workers), at).max()
    )
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(768, 10))
    times, watch = [], ddp.Stopwatch()
    with ddp.balanced(net, cluster.total, policy="equal_finish") as (model, balancer):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches = ddp.forever(balancer.loader(ddp.images(cluster.total * 20)))
        watch.start()
        for _ in range(iterations):
            start = time.perf_counter()
            inputs, labels = next(batches)
            loss = F.cross_entropy(model(inputs), labels)
            sizes = np.full(num_workers, len(inputs))
            seconds = SCALE * float(cluster.expected_times(sizes, at)[rank])
            # Before the backward pass, so that it is over when the last gradient is ready.
            time.sleep(max(0.0, start + seconds - time.perf_counter()))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.lap()
        times = watch.times[FROM:]
        final = balancer.plan.sizes.tolist()
    above = np.array(times) / optimum - 1
    return {
        "workers": num_workers,
        "plain BSP, ms": 1e3 * even,
        "optimum, ms": 1e3 * optimum,
        "balanced, ms": 1e3 * float(np.median(times)),
        "above the optimum": float(np.median(above)),
        "worst from iteration 10": float(above.max()),
        "to reach: at most": WITHIN,
        "reached": "yes" if float(np.median(above)) <= WITHIN else "NO",
        "sizes": "/".join(map(str, final)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", default="4,8")
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows: list[Any] = [
        ddp.launch(work, int(n), int(n), args.iterations) for n in args.workers.split(",")
    ]
    show("emulated GPUs, really trained, from iteration 10 on", rows, args.json)


if __name__ == "__main__":
    main()
