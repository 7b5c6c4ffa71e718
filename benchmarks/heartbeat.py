"""The cost of the signs of life: two workers train with and without them, in turn.

One training in blocks without signs, with one a second as usual, and with a hundred a second: one a
second is far below the noise, and costs a hundredth of the latter. The net is small, so that an
iteration takes some milliseconds and a cost would show. The CPU time of a sign is measured too, as
that hardly depends on what else the machine does.

    python -m benchmarks.heartbeat [--blocks 12] [--iterations 500] [--json]
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np

from benchmarks import ddp
from benchmarks.report import Row, show
from evenstep.training import heartbeat

TOTAL, WIDTH = 16, 8
INTERVALS = {"none": math.inf, "1 per second": 1.0, "100 per second": 0.01}


def work(rank: int, blocks: int, iterations: int) -> list[Row]:
    """Return a row for each interval, with the median ratio to the block without signs."""
    data = ddp.images(4096)
    medians: list[list[float]] = []
    with ddp.balanced(ddp.conv_net(WIDTH), TOTAL, mode="off", loss="mean") as (model, balancer):
        batches, beats = ddp.forever(balancer.loader(data)), balancer._loop.heartbeat
        assert beats is not None, "the process group has a TCP store"
        costs = _timed(beats)
        for _ in range(blocks + 1):
            medians.append([])
            for interval in INTERVALS.values():
                heartbeat.BEAT = min(interval, 1e6)
                beats._wake.set()
                time.sleep(0.05)
                watch, before = ddp.Stopwatch(), beats._num_beats
                ddp.run_iterations(model, batches, iterations, watch)
                assert (beats._num_beats == before) == math.isinf(interval)
                medians[-1].append(float(np.median(watch.times)))
        heartbeat.BEAT = 1.0
    table = np.array(medians[1:])
    rows: list[Row] = []
    for name, times, ratios in zip(INTERVALS, table.T, (table / table[:, :1]).T, strict=True):
        rows.append({
            "signs": name, "iteration, ms": 1e3 * float(np.median(times)),
            "slower by": f"{np.median(ratios) - 1:+.2%}",
            "CPU per sign, µs": f"{1e6 * np.median(costs):.0f}",
            "quartiles": "{:+.2%} {:+.2%}".format(*(np.percentile(ratios, (25, 75)) - 1)),
        })  # fmt: skip
    return rows


def _timed(beats: heartbeat.Heartbeat) -> list[float]:
    """Return a list that fills with the CPU seconds of each sign."""
    costs: list[float] = []
    beat = beats._beat

    def timed(now: float) -> None:
        start = time.thread_time()
        beat(now)
        costs.append(time.thread_time() - start)

    beats._beat = timed  # type: ignore[method-assign]
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = ddp.launch(work, 2, args.blocks, args.iterations)
    show(f"signs of life, two workers, {args.blocks} blocks in turn", rows, args.json)


if __name__ == "__main__":
    main()
