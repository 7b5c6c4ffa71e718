"""Two JAX workers on a core each, one really throttled: how much of the ideal speedup is reached.

Measured on this machine with real training, in the environment of `scripts/install jax`. The
ideal comes from each worker's own solo times (no exchange), measured in the same run at whole
buckets: the best split of the total over those. Plain and balanced training run in turns.

    python -m benchmarks.throttled_jax [--quota 0.5] [--total 512] [--bucket 32] [--blocks 8]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.throttled import (
    FEWEST_BLOCKS,
    figures_of,
    free_addresses,
    in_groups,
    run_workers,
    show,
)
from evenstep.simulator.load.throttle import join, set_share

WIDTH = 512
FEATURES = 256
SAMPLES = 4096
ITERATIONS = 10
"""Of a block; its first ones are not looked at."""
DEADLINE = 900.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quota", type=float, default=0.5)
    parser.add_argument("--total", type=int, default=512)
    parser.add_argument("--bucket", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.total % (2 * args.bucket):
        parser.error(
            f"--total must be a multiple of two buckets of {args.bucket}, got {args.total}"
        )
    if args.blocks < FEWEST_BLOCKS:
        parser.error(f"--blocks must be at least {FEWEST_BLOCKS}, got {args.blocks}")
    if args.work is not None:
        _work(args, *args.work)
        return
    figures = in_groups(_launch)
    if figures is not None:
        show("JAX", figures, args.json)


def _launch(groups: list[str]) -> dict[str, Any]:
    """Run this file as two workers, and return what worker 0 found."""
    [address] = free_addresses(1)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "benchmarks.throttled_jax", *sys.argv[1:], "--work"]
        # Small matrices on several threads cost more than they gain.
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
        commands = [
            [*command, str(worker), address, group, str(result)]
            for worker, group in enumerate(groups)
        ]
        run_workers(commands, [threads] * len(groups), DEADLINE)
        figures: dict[str, Any] = json.loads(result.read_text())
        return figures


def _work(
    args: argparse.Namespace, worker_text: str, address: str, group: str, result: str
) -> None:
    # Before JAX is loaded, which makes a thread for every core that it may use.
    worker = int(worker_text)
    os.sched_setaffinity(0, {worker % (os.cpu_count() or 1)})
    join(group)
    import jax

    jax.distributed.initialize(address, 2, worker)
    bench = _Bench(args.total, args.bucket)
    bench.solo_times()
    if worker == 1:
        set_share(group, args.quota)
    figures = bench.run(args.quota, args.blocks)
    if worker == 0:
        Path(result).write_text(json.dumps(figures))
    set_share(group, None)


class _Bench:
    """A training by plain BSP and a balanced one, in alternating blocks."""

    def __init__(self, total: int, bucket: int) -> None:
        import jax
        import jax.numpy as jnp

        from evenstep.jax import Balancer

        def losses(params: Any, inputs: Any, targets: Any) -> Any:
            for weights in params[:-1]:
                inputs = jnp.tanh(inputs @ weights)
            return ((inputs @ params[-1])[:, 0] - targets) ** 2

        shapes = [(FEATURES, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, 1)]
        keys = jax.random.split(jax.random.key(0), len(shapes))
        self._params = [
            jax.random.normal(key, shape) / np.sqrt(shape[0])
            for key, shape in zip(keys, shapes, strict=True)
        ]
        rng = np.random.default_rng(0)
        self._inputs = rng.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
        self._targets = np.sin(self._inputs.sum(axis=1))
        self._total, self._bucket = total, bucket
        self._sizes = list(range(bucket, total, bucket))
        self._solo = jax.jit(jax.grad(lambda *arguments: losses(*arguments).mean()))
        self._ready = jax.block_until_ready
        self._balancers, self._runs = {}, {}
        for mode in ("off", "balanced"):
            balancer = Balancer(total, bucket=bucket, mode=mode, summary=False)
            gradient = balancer.value_and_grad(losses)
            loader = balancer.loader((self._inputs, self._targets))
            self._balancers[mode] = balancer
            self._runs[mode] = self._trained(loader, gradient)

    def run(self, quota: float, blocks: int) -> dict[str, Any]:
        from jax.experimental import multihost_utils

        sizes = self._sizes
        solos: list[list[float]] = []
        times: dict[str, list[float]] = {mode: [] for mode in self._runs}
        for _ in range(blocks):
            # Both at once: cores slow each other down when both work, as they do in training.
            multihost_utils.sync_global_devices("solo")
            solos.append(self.solo_times())
            for mode, run in self._runs.items():
                multihost_utils.sync_global_devices(mode)
                times[mode].append(float(np.median([next(run) for _ in range(ITERATIONS)][2:])))
        own = np.median(solos[1:], axis=0)
        both = multihost_utils.process_allgather(own)
        joined = np.maximum(both[0], both[1][::-1])
        even, best = float(joined[len(sizes) // 2]), float(joined.min())
        plain, balanced = (float(np.median(times[mode][2:])) for mode in ("off", "balanced"))
        sizes_now = self._balancers["balanced"].plan.sizes.tolist()
        return {
            "quota": quota,
            "total": self._total,
            "bucket": self._bucket,
            "even solo, ms": 1e3 * even,
            **figures_of(plain, balanced, even, best),
            "sizes": "/".join(map(str, sizes_now)),
            "best sizes": f"{sizes[int(joined.argmin())]}/{sizes[-1 - int(joined.argmin())]}",
        }

    def solo_times(self) -> list[float]:
        """Return how long this worker takes for each size; the first time, they are compiled."""
        return [self._solo_time(size) for size in self._sizes]

    def _solo_time(self, size: int, repeat: int = 3) -> float:
        """Return how long this worker takes for a batch without any exchange."""
        taken = []
        for _ in range(repeat):
            begun = time.perf_counter()
            batch = self._inputs[:size].copy(), self._targets[:size].copy()
            self._ready(self._solo(self._params, *batch))
            taken.append(time.perf_counter() - begun)
        return float(np.median(taken))

    def _trained(self, loader: Any, value_and_grad: Any) -> Iterator[float]:
        """Train for ever; yield how long each iteration took."""
        params, begun = self._params, time.perf_counter()
        while True:
            for batch in loader:
                _, gradient = value_and_grad(params, *batch)
                params = [a - 1e-3 * b for a, b in zip(params, gradient, strict=True)]
                self._ready(params)
                now = time.perf_counter()
                yield now - begun
                begun = time.perf_counter()


if __name__ == "__main__":
    main()
