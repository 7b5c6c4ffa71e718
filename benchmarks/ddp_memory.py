"""A worker whose memory holds a quarter of its planned batch: how close to the optimum it comes.

The devices are EMULATED, as in benchmarks.ddp_emulated: every worker computes a tiny net and sleeps
until the curve of its GPU says that it would be finished, here for every micro-batch. Processes,
gradients, exchange and plans are real. The fastest of them is limited to a quarter of what it gets
without a limit, and runs more in micro-batches; the exact optimum knows that each of them has the
overhead of a batch.

    python -m benchmarks.ddp_memory [--workers 4] [--iterations 40] [--json]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import ddp
from benchmarks.report import Row, show
from evenstep.core import UNLIMITED
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.scenarios import make_scenario

SCALE = 0.5
"""Seconds of the emulated curve per second of scenario G."""
WITHIN = 0.10
FROM = 15

Curve = Callable[[int], float]
"""Batch size to seconds."""


def curve_of(cluster: Cluster, worker: int, limit: int) -> Curve:
    """Return how long a worker takes for a batch, in pieces of at most a limit."""
    at = cluster.conditions(0, now=0.0)

    def seconds(batch_size: int) -> float:
        pieces = -(-batch_size // limit)
        cuts = [piece * batch_size // pieces for piece in range(pieces + 1)]
        sizes = np.diff(cuts)
        each = (
            cluster.expected_times(np.full(cluster.num_workers, size), at)[worker] for size in sizes
        )
        return SCALE * float(sum(each))

    return seconds


def optimum(curves: list[Curve], total: int) -> tuple[float, list[int]]:
    """Return the shortest iteration time, and sizes that reach it, by trying all times there are.

    With micro-batches t(x) rises by steps, but it rises: by each deadline every worker has a
    largest size.
    """
    times = np.array([[curve(x) for x in range(1, total + 1)] for curve in curves])
    assert np.all(np.diff(times, axis=1) >= 0)
    for deadline in np.unique(times):
        sizes = (times <= deadline).sum(axis=1)
        if sizes.min() >= 1 and sizes.sum() >= total:
            return float(deadline), sizes.tolist()
    raise AssertionError("some deadline suffices for everything")


def work(rank: int, num_workers: int, iterations: int) -> Row:
    cluster = make_scenario("G", num_workers, seed=0, noisy=False)
    at = cluster.conditions(0, now=0.0)
    planned = cluster.optimum(at)
    limits = [UNLIMITED] * num_workers
    limits[int(np.argmax(planned))] = int(planned.max()) // 4
    curves = [curve_of(cluster, worker, limit) for worker, limit in enumerate(limits)]
    best, _ = optimum(curves, cluster.total)
    free = SCALE * float(cluster.expected_times(planned, at).max())
    one_piece = curve_of(cluster, rank, UNLIMITED)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(768, 10))
    watch = ddp.Stopwatch()
    pieces: list[int] = []
    with ddp.balanced(
        net, cluster.total, policy="equal_finish", maximum=limits, micro_batches=True
    ) as (model, balancer):

        def loss_of(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            start = time.perf_counter()
            pieces.append(len(inputs))
            loss = F.cross_entropy(model(inputs), labels)
            time.sleep(max(0.0, start + one_piece(len(inputs)) - time.perf_counter()))
            return loss

        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batches = ddp.forever(balancer.loader(ddp.images(cluster.total * 20)))
        watch.start()
        for _ in range(iterations):
            balancer.backward(loss_of, *next(batches))
            optimizer.step()
            optimizer.zero_grad()
            watch.lap()
        sizes = balancer.plan.sizes.tolist()
    took = float(np.median(watch.times[FROM:]))
    return {
        "workers": num_workers,
        "limit": min(limits),
        "largest piece": max(pieces),
        "optimum without limit, ms": 1e3 * free,
        "optimum under it, ms": 1e3 * best,
        "measured, ms": 1e3 * took,
        "above the optimum": took / best - 1,
        "to reach: at most": WITHIN,
        "reached": "yes" if took / best - 1 <= WITHIN else "NO",
        "sizes": "/".join(map(str, sizes)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows: list[Any] = [ddp.launch(work, args.workers, args.workers, args.iterations)]
    show("emulated GPUs, the fastest with memory for a quarter of its batch", rows, args.json)


if __name__ == "__main__":
    main()
