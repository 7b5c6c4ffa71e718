"""The cost of Evenstep where there is nothing to gain: two equal workers, against plain DDP.

Measured on this machine with real training, plain and balanced blocks in turn, so that what else
the machine does hits both. The balanced policy is the default; per iteration, the parts of
Evenstep's own work are timed too.

    python -m benchmarks.ddp_overhead [--milliseconds 50,200] [--blocks 6] [--json]
"""

from __future__ import annotations

import argparse
import functools
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks import ddp
from benchmarks.report import Row, show
from evenstep.pytorch.exchange import GradientExchange
from evenstep.training.loop import Loop
from evenstep.training.reporter import Reporter

TO_REACH = {50: 0.02, 200: 0.01}
"""Share of the iteration that balancing may cost, by milliseconds per iteration."""
BLOCK_SECONDS = 2.5
PARTS: dict[str, tuple[type, str]] = {
    "begin (decide, log, timer)": (Loop, "begin"),
    "row (usage, predict)": (Reporter, "row"),
    "hook (all of it)": (GradientExchange, "hook"),
}


class Costs:
    """Adds up the time spent in some methods."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def watch(self, part: str, owner: type, name: str) -> None:
        method: Callable[..., Any] = getattr(owner, name)

        # DDP inspects the signature of a hook, which the wrapper takes over.
        @functools.wraps(method)
        def timed(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*args)
            finally:
                self.seconds[part].append(time.perf_counter() - start)

        setattr(owner, name, timed)


def work(rank: int, milliseconds: list[int], blocks: int) -> dict[str, Any]:
    costs = Costs()
    for part, (owner, name) in PARTS.items():
        costs.watch(part, owner, name)
    rows = [_compare(rank, target, blocks) for target in milliseconds]
    return {
        "rows": rows,
        "parts": {part: 1e6 * float(np.median(s)) for part, s in costs.seconds.items()},
    }


def _compare(rank: int, target: int, blocks: int) -> Row:
    total, width = 64, 32
    data = ddp.images(8192)
    net = ddp.conv_net(width)
    # Scale the work so that an iteration takes about the time asked for.
    each = ddp.solo_times(net, data, [total // 2], repeat=6)[0]
    repeat = max(1, round(target / 1e3 / each))
    plain_model = DistributedDataParallel(_Repeated(ddp.conv_net(width), repeat))
    plain_batches = ddp.forever(ddp.plain_loader(data, total))
    plain, even = ddp.Stopwatch(), ddp.Stopwatch()
    per_block = max(5, round(BLOCK_SECONDS * 1e3 / target))
    ratios = []
    with ddp.balanced(_Repeated(ddp.conv_net(width), repeat), total) as (model, balancer):
        batches = ddp.forever(balancer.loader(data))
        for _ in range(blocks + 1):
            plain.times.clear()
            even.times.clear()
            ddp.run_iterations(plain_model, plain_batches, per_block, plain)
            ddp.run_iterations(model, batches, per_block, even)
            ratios.append(float(np.median(even.times) / np.median(plain.times)))
        sizes = balancer.plan.sizes.tolist()
    slower = float(np.median(ratios[1:])) - 1
    return {
        "iteration, ms": 1e3 * float(np.median(plain.times)),
        "target, ms": target,
        "slower by": slower,
        "quartiles": "{:+.2%} {:+.2%}".format(*(np.percentile(ratios[1:], (25, 75)) - 1)),
        "to reach: at most": TO_REACH.get(target, 0.02),
        "reached": "yes" if slower <= TO_REACH.get(target, 0.02) else "NO",
        "sizes": "/".join(map(str, sizes)),
    }


class _Repeated(nn.Module):
    """A net that computes the same several times, to take longer at the same size."""

    def __init__(self, net: nn.Module, repeat: int) -> None:
        super().__init__()
        self.net = net
        self.repeat = repeat

    def forward(self, inputs: Any) -> Any:
        return sum(self.net(inputs) for _ in range(self.repeat)) / self.repeat


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--milliseconds", default="50,200")
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    milliseconds = [int(ms) for ms in args.milliseconds.split(",")]
    result = ddp.launch(work, 2, milliseconds, args.blocks)
    show(f"two equal workers, measured, {args.blocks} blocks in turn", result["rows"], args.json)
    parts = [{"part": part, "microseconds": us} for part, us in result["parts"].items()]
    show("Evenstep's own work per call, measured on worker 0", parts, args.json)


if __name__ == "__main__":
    main()
