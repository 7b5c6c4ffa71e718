"""What balancing costs where there is nothing to gain: two equal workers, quiet or not.

Measured on this machine with real training. Three balancers train in turn, in short blocks, so that
what else the machine does hits all of them: the default, `mode="observe"` (the same hooks and
decisions, but even sizes) and `mode="off"`. A neighbour, where there is one, is a process that is
always busy and moves from core to core; `--dwells` says for how long it stays on one.

    python -m benchmarks.ddp_equal [--milliseconds 5,20,50,200] [--dwells 0,0.1,1] [--blocks 20]
        [--json]
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks import ddp
from benchmarks.report import Row, progress, show
from evenstep.pytorch import Balancer

TO_REACH = 0.01
"""The share of the iteration time of even sizes that the default may cost."""
WITHIN = 0.2
"""The share of the even size within which sizes must stay."""
MODES = ("balanced", "observe", "off")
BLOCK_SECONDS = 0.6
TOTAL, WIDTH = 64, 8


def work(rank: int, milliseconds: int, blocks: int, policy: str | None) -> Row:
    data = ddp.images(8192)
    # Scale the work so that an iteration takes about the time asked for.
    each = ddp.solo_times(ddp.conv_net(WIDTH), data, [TOTAL // 2], repeat=20)[0]
    repeats: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(repeats, max(1, round(milliseconds / 1e3 / each)))
    runs = {mode: _Run(mode, data, min(repeats), policy) for mode in MODES}
    per_block = max(4, round(BLOCK_SECONDS * 1e3 / milliseconds))
    for _ in progress(range(blocks + 1), f"{milliseconds} ms") if rank == 0 else range(blocks + 1):
        for run in runs.values():
            run.block(per_block)
    return {
        "iteration, ms": 1e3 * float(np.median(runs["off"].medians[1:])),
        **_against(runs["balanced"], runs["observe"], "against even sizes"),
        **_against(runs["balanced"], runs["off"], "against off"),
        **runs["balanced"].size_figures(),
    }


class _Run:
    """A training in blocks, each with its own model; the first block is a warm-up."""

    def __init__(self, mode: str, data: Any, repeat: int, policy: str | None) -> None:
        self._model = DistributedDataParallel(_Repeated(ddp.conv_net(WIDTH), repeat))
        self.balancer = Balancer(
            self._model, TOTAL, mode=mode, summary=False, policy=None if mode == "off" else policy
        )
        self._batches = ddp.forever(self.balancer.loader(data))
        self.medians: list[float] = []
        self.means: list[float] = []
        self.sizes: list[Any] = []

    def block(self, iterations: int) -> None:
        watch = ddp.Stopwatch()
        for _ in range(iterations):
            ddp.run_iterations(self._model, self._batches, 1, watch)
            self.sizes.append(self.balancer.plan.sizes)
        # The first iteration of a block begins with what the other trainings left in the caches.
        self.medians.append(float(np.median(watch.times[1:])))
        self.means.append(float(np.mean(watch.times[1:])))

    def size_figures(self) -> dict[str, Any]:
        """Return how often, and in the median by how much, sizes were off even ones."""
        off = np.abs(np.array(self.sizes) * len(self.sizes[0]) / TOTAL - 1).max(axis=1)
        return {
            "sizes off even, median": float(np.median(off)),
            "within 20 %": float(np.mean(off <= WITHIN)),
            "last sizes": "/".join(map(str, self.sizes[-1].tolist())),
        }


def _against(run: _Run, other: _Run, name: str) -> dict[str, Any]:
    """Compare block by block; the error is that of the median of as many ratios."""
    ratios = np.array(run.medians[1:]) / np.array(other.medians[1:])
    low, high = np.percentile(ratios, (25, 75))
    # The standard error of a median, by the quartiles of a normal distribution.
    error = 1.2533 * (high - low) / 1.349 / np.sqrt(len(ratios))
    return {
        name: float(np.median(ratios)) - 1,
        f"{name}, +-": float(error),
        f"{name}, means": float(np.median(np.array(run.means[1:]) / np.array(other.means[1:]))) - 1,
    }


class _Repeated(nn.Module):
    """A net that computes the same several times, to take longer at the same size."""

    def __init__(self, net: nn.Module, repeat: int) -> None:
        super().__init__()
        self.net = net
        self.repeat = repeat

    def forward(self, inputs: Any) -> Any:
        return sum(self.net(inputs) for _ in range(self.repeat)) / self.repeat


@contextmanager
def neighbour(dwell: float) -> Iterator[None]:
    """Keep a process busy that changes its core every `dwell` seconds on average; none for 0."""
    if not dwell:
        yield
        return
    process = subprocess.Popen([sys.executable, "-m", __spec__.name, "--be-busy", str(dwell)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _be_busy(dwell: float, parent: int) -> None:
    """Compute on one core after the other, until killed or left alone."""
    draw = random.Random(0)
    cores = sorted(os.sched_getaffinity(0))
    while os.getppid() == parent:
        for core in cores:
            os.sched_setaffinity(0, {core})
            end = time.monotonic() + draw.expovariate(1 / dwell)
            while time.monotonic() < end and os.getppid() == parent:
                sum(range(10_000))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--milliseconds", default="5,20,50,200")
    parser.add_argument("--dwells", default="0,0.1,1", help="seconds on a core; 0: no neighbour")
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--policy", default=None, help="default: that of the library")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--be-busy", type=float, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.be_busy is not None:
        _be_busy(args.be_busy, os.getppid())
        return
    rows = []
    for dwell in map(float, args.dwells.split(",")):
        for milliseconds in map(int, args.milliseconds.split(",")):
            with neighbour(dwell):
                row = ddp.launch(work, 2, milliseconds, args.blocks, args.policy)
            reached = row["against even sizes"] <= TO_REACH and row["within 20 %"] >= 0.95
            rows.append(
                {
                    "neighbour stays, s": dwell or "none",
                    **row,
                    "reached": "yes" if reached else "NO",
                }
            )
    show(f"two equal workers, measured, {args.blocks} blocks in turn", rows, args.json)


if __name__ == "__main__":
    main()
