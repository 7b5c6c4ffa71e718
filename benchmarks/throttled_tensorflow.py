"""Two TensorFlow workers on a core each, one really throttled: how much of the ideal is reached.

Measured on this machine with real training under MultiWorkerMirroredStrategy. The ideal comes from
each worker's own solo times (no exchange), measured in the same run: the best split of the total
over two lines fitted to them. Plain and balanced trainings alternate in blocks.

    python -m benchmarks.throttled_tensorflow [--quota 0.5] [--total 256] [--blocks 6] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.throttled import (
    FEWEST_BLOCKS,
    PARTS,
    Line,
    figures_of,
    free_addresses,
    in_groups,
    line_through,
    optimum,
    run_workers,
    show,
)
from evenstep.simulator.load.throttle import join, set_share

WIDTH = 32
ITERATIONS = 8
"""Per block; the first one of each is left out."""


def work(worker: int, group: str, quota: float, total: int, blocks: int) -> dict[str, Any]:
    """Be one of the two workers, and return what was measured."""
    os.sched_setaffinity(0, {worker % (os.cpu_count() or 1)})
    join(group)

    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    runs = {mode: _Run(strategy, total, mode) for mode in ("off", "balanced")}
    collective = runs["off"].balancer._loop.collective
    set_share(group, quota if worker == 1 else None)
    solo = _Solo(runs["off"], total)
    solo.measure(8)
    for _ in range(blocks):
        collective.everybody(np.zeros(1))
        solo.measure(3)
        for run in runs.values():
            run.block()
    line = collective.everybody(np.array(solo.line()))
    set_share(group, None)
    even, best, _ = optimum([(a, b) for a, b in line.tolist()], total)
    plain, balanced = (run.time() for run in runs.values())
    return {
        "quota": quota,
        "total": total,
        **figures_of(plain, balanced, even, best),
        "sizes": "/".join(map(str, runs["balanced"].balancer.plan.sizes.tolist())),
    }


class _Run:
    """A training in blocks; the first block is a warm-up."""

    def __init__(self, strategy: Any, total: int, mode: str) -> None:
        import keras
        import tensorflow as tf

        from evenstep.tensorflow import Balancer

        with strategy.scope():
            self.model = _conv_net(keras)
            self._optimizer = keras.optimizers.SGD(0.01)
        self.balancer = Balancer(strategy, total, mode=mode, summary=False)
        self.samples = _images(4096)
        self._dataset = self.balancer.dataset(self.samples)
        self.gradients = _gradients(tf, keras, self.model, self._dataset.element_spec)
        self._batches = self._forever()
        self._medians: list[float] = []

    def block(self) -> None:
        times = []
        for _ in range(ITERATIONS):
            begun = time.perf_counter()
            gradients = self.gradients(*next(self._batches))
            self.balancer.apply(self._optimizer, gradients, self.model.trainable_variables)
            times.append(time.perf_counter() - begun)
        self._medians.append(float(np.median(times[1:])))

    def time(self) -> float:
        return float(np.median(self._medians[1:]))

    def _forever(self) -> Iterator[Any]:
        while True:
            yield from self._dataset


class _Solo:
    """Solo times of this worker: without any exchange, but of both workers at once."""

    def __init__(self, run: _Run, total: int) -> None:
        self._run = run
        self._sizes = [round(part * total) for part in PARTS]
        self._times: list[list[float]] = []

    def measure(self, repeat: int) -> None:
        self._times.append([self._time(size, repeat) for size in self._sizes])

    def line(self) -> Line:
        return line_through(self._sizes, np.median(self._times, axis=0))

    def _time(self, size: int, repeat: int) -> float:
        x, y = self._run.samples
        durations = []
        for _ in range(repeat):
            begun = time.perf_counter()
            self._run.gradients(x[:size], y[:size])[-1].numpy()
            durations.append(time.perf_counter() - begun)
        return float(np.median(durations))


def _conv_net(keras: Any) -> Any:
    keras.utils.set_random_seed(0)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(WIDTH, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(2 * WIDTH, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def _images(count: int) -> tuple[Any, Any]:
    """Random images and labels: enough to take time, nothing to learn."""
    random = np.random.default_rng(1)
    pictures = random.normal(size=(count, 16, 16, 3)).astype("float32")
    return pictures, random.integers(0, 10, count).astype("int64")


def _gradients(tf: Any, keras: Any, model: Any, signature: Any) -> Callable[..., Any]:
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def local_gradients(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        return tape.gradient(loss, model.trainable_variables)

    function: Callable[..., Any] = tf.function(local_gradients, input_signature=signature)
    return function


def _launch(groups: list[str], args: argparse.Namespace) -> dict[str, Any]:
    """Start both workers, and return what worker 0 has measured."""
    addresses = free_addresses(len(groups))
    command = [sys.executable, "-m", "benchmarks.throttled_tensorflow", *sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        commands, environments = [], []
        for worker, group in enumerate(groups):
            task = {"type": "worker", "index": worker}
            config = {"cluster": {"worker": addresses}, "task": task}
            as_worker = ["--worker", str(worker), "--group", group, "--result", folder]
            commands.append([*command, *as_worker])
            environments.append(
                {
                    "TF_CONFIG": json.dumps(config), "TF_CPP_MIN_LOG_LEVEL": "3",
                    "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
                }
            )  # fmt: skip
        run_workers(commands, environments, args.timeout)
        result: dict[str, Any] = json.loads((Path(folder) / "result").read_text())
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quota", type=float, default=0.5)
    parser.add_argument("--total", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--group", help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.blocks < FEWEST_BLOCKS:
        parser.error(f"--blocks must be at least {FEWEST_BLOCKS}, got {args.blocks}")
    if args.worker is not None:
        row = work(args.worker, args.group, args.quota, args.total, args.blocks)
        if args.worker == 0:
            (Path(args.result) / "result").write_text(json.dumps(row))
        return
    found = in_groups(lambda groups: _launch(groups, args))
    if found is not None:
        show("TensorFlow", found, args.json)


if __name__ == "__main__":
    main()
