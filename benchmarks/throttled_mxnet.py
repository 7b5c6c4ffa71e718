"""Two MXNet workers on a core each, one really throttled: how much of the ideal speedup is reached.

Measured on this machine with real training over a parameter server (`dist_sync`, updates on the
server). Plain is stock MXNet with even batches; it and the balanced training take turns in one run.
The ideal comes from each worker's own solo times, measured meanwhile: the best split of the total
over two lines fitted to them.

    .venv-mxnet/bin/python -m benchmarks.throttled_mxnet [--quota 0.5] [--total 64] [--json]
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

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from benchmarks.throttled import (
    FEWEST_BLOCKS,
    PARTS,
    Line,
    figures_of,
    in_groups,
    line_through,
    optimum,
    show,
)
from evenstep.mxnet import Balancer
from evenstep.mxnet.collective import RowCarrier, StoreCollective
from evenstep.mxnet.launch import LocalJob
from evenstep.simulator.load.throttle import join, set_share
from evenstep.training.collective import gather_values

WIDTH, NUM_SAMPLES = 64, 2048


class StockStore(mx.kvstore.KVStoreBase):  # type: ignore[misc]  # MXNet is not annotated
    """The kvstore as it is, under keys that the balanced training does not use."""

    FIRST = 50_000

    def __init__(self, store: Any) -> None:
        self._store = store
        self.is_capable = store.is_capable

    @property
    def type(self) -> Any:
        return self._store.type

    def broadcast(self, key: int, value: Any, out: Any, priority: int = 0) -> None:
        self._store.broadcast(self.FIRST + key, value, out, priority)

    def pushpull(self, key: int, value: Any, out: Any = None, priority: int = 0) -> None:
        self._store.pushpull(self.FIRST + key, value, out, priority)

    def set_optimizer(self, optimizer: Any) -> None:
        self._store.set_optimizer(RowCarrier(optimizer, self.FIRST))


class Training:
    """A net that is trained block by block; a block's time is that of its iterations on average."""

    def __init__(self, kvstore: Any, batches: Iterator[Any], step: Callable[[Any], None]) -> None:
        self._net = make_net()
        self._loss = gluon.loss.SoftmaxCrossEntropyLoss()
        parameters = self._net.collect_params()
        self._trainer = gluon.Trainer(parameters, "sgd", {"learning_rate": 0.01}, kvstore=kvstore)
        self._batches = batches
        self._step = step
        self.times: list[float] = []

    def iterate(self, batch: Any) -> None:
        with autograd.record():
            loss = self._loss(self._net(batch.data[0]), batch.label[0])
        loss.backward()
        self._step(self._trainer)

    def block(self, iterations: int = 8) -> None:
        self.iterate(next(self._batches))
        mx.nd.waitall()
        begun = time.perf_counter()
        for _ in range(iterations):
            self.iterate(next(self._batches))
        mx.nd.waitall()
        self.times.append((time.perf_counter() - begun) / iterations)


def make_net() -> Any:
    mx.random.seed(0)
    net = gluon.nn.HybridSequential()
    for channels in (WIDTH, 2 * WIDTH):
        net.add(gluon.nn.Conv2D(channels, 3, padding=1, activation="relu"))
        net.add(gluon.nn.MaxPool2D())
    net.add(gluon.nn.Dense(10))
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((1, 3, 16, 16)))
    net.hybridize()
    return net


def make_data() -> tuple[Any, Any]:
    """Random pictures and labels: enough to take time, nothing to learn."""
    random = np.random.default_rng(1)
    pictures = random.normal(size=(NUM_SAMPLES, 3, 16, 16)).astype(np.float32)
    return pictures, random.integers(0, 10, NUM_SAMPLES).astype(np.float32)


def forever(batches: Any) -> Iterator[Any]:
    while True:
        batches.reset()
        yield from batches


class Solo:
    """Solo times of this worker: without any exchange, but of both workers at once."""

    def __init__(self, total: int) -> None:
        self._sizes = [round(part * total) for part in PARTS]
        trainings = [mx.io.NDArrayIter(*make_data(), batch_size=size) for size in self._sizes]
        self._trainings = [
            Training(None, forever(batches), lambda trainer: trainer.step(total))
            for batches in trainings
        ]

    def measure(self, store: Any) -> None:
        for training in self._trainings:
            training.block(3)
        store._barrier()

    def line(self) -> Line:
        times = [float(np.median(training.times)) for training in self._trainings]
        return line_through(self._sizes, times)


def work(groups: list[str], quota: float, total: int, blocks: int, result: str) -> None:
    """Measure as one of the workers; worker 0 writes down what came of it."""
    store = mx.kvstore.create("dist_sync")
    rank = store.rank
    os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})
    join(groups[rank])
    set_share(groups[rank], quota if rank == 1 else None)
    solo = Solo(total)
    even = mx.io.NDArrayIter(*make_data(), batch_size=total // 2, shuffle=True)
    plain = Training(StockStore(store), forever(even), lambda trainer: trainer.step(total))
    plain.block()
    balancer = Balancer(store, total, summary=False)
    balanced = Training(balancer.kvstore, forever(balancer.iter(*make_data())), balancer.step)
    for _ in range(blocks):
        solo.measure(store)
        plain.block()
        balanced.block()
    set_share(groups[rank], None)
    lines = gather_values(StoreCollective(store), solo.line())
    sizes = balancer.plan.sizes.tolist()
    balancer.close()
    if rank == 0:
        even_time, best, _ = optimum(lines, total)
        # The first blocks of both were to warm up.
        theirs, ours = np.median(plain.times[2:]), np.median(balanced.times[1:])
        figures = figures_of(float(theirs), float(ours), even_time, best)
        settings = {"quota": quota, "total": total, "sizes": "/".join(map(str, sizes))}
        Path(result).write_text(json.dumps({**settings, **figures}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quota", type=float, default=0.5)
    parser.add_argument("--total", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.blocks < FEWEST_BLOCKS:
        parser.error(f"--blocks must be at least {FEWEST_BLOCKS}, got {args.blocks}")
    settings = {"quota": args.quota, "total": args.total, "blocks": args.blocks}
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    figures = in_groups(lambda groups: launch({"groups": groups, **settings}))
    if figures is not None:
        show("MXNet", figures, args.json)


def launch(settings: dict[str, Any]) -> dict[str, Any]:
    """Run this file as two workers, and return what worker 0 found."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        given = json.dumps({"result": str(result), **settings})
        LocalJob([sys.executable, "-m", "benchmarks.throttled_mxnet", given]).wait(timeout=900)
        figures: dict[str, Any] = json.loads(result.read_text())
        return figures


if __name__ == "__main__":
    if os.environ.get("DMLC_ROLE") == "worker":
        work(**json.loads(sys.argv[1]))
    else:
        main()
