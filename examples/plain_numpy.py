"""Train a classifier in plain numpy on processes of one machine, with sizes planned by a manager.

Without a framework: the example shows how any loop of your own uses `evenstep.connect`. The workers
are unequal on purpose (emulated: each sleeps for a while per sample). It starts a manager, unless
--manager HOST:PORT names one; more workers: --workers 3.
"""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray
import evenstep
from evenstep.core import Floats, Ints
from evenstep.training.epochs import Epochs

SAMPLES, FEATURES, CLASSES = 2000, 64, 10
TOTAL, EPOCHS, LEARNING_RATE = 96, 3, 0.5
PER_SAMPLE, PATIENCE = 2e-4, 60.0  # seconds


def make_data() -> tuple[Floats, Ints]:
    """Return points around one centre per class, and their classes."""
    random = np.random.default_rng(0)
    labels = random.integers(0, CLASSES, SAMPLES)
    centres = random.normal(size=(CLASSES, FEATURES))
    return centres[labels] + random.normal(size=(SAMPLES, FEATURES)), labels


def gradient(weights: Floats, x: Floats, labels: Ints) -> Floats:
    """Return the mean gradient of the cross entropy over a batch."""
    scores = x @ weights
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    chances[np.arange(len(labels)), labels] -= 1
    result: Floats = x.T @ chances / len(labels)
    return result


class Exchange:
    """Lets all workers see the arrays of all, in memory that they share."""

    def __init__(self, num_workers: int, size: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._memory = spawn.RawArray("d", num_workers * size)
        self._barrier = spawn.Barrier(num_workers, timeout=PATIENCE)
        self._shape = num_workers, size

    def gather(self, worker: int, array: NDArray[Any]) -> Floats:
        rows = np.frombuffer(self._memory).reshape(self._shape)[:, : array.size]
        rows[worker] = array.ravel()
        self._barrier.wait()
        everybody: Floats = rows.copy()
        self._barrier.wait()
        return everybody

    def sum(self, worker: int, array: Floats) -> Floats:
        total: Floats = self.gather(worker, array).sum(axis=0)
        return total


def work(rank: int, num_workers: int, address: str, exchange: Exchange, results: Any) -> None:
    """Train as one of the workers."""
    points, labels = make_data()
    weights = np.zeros((FEATURES, CLASSES))
    epochs = Epochs(SAMPLES, TOTAL, seed=0)
    name, k = f"worker-{rank}", 0
    with evenstep.connect(
        address, "numpy", name, workers=num_workers, total=TOTAL, policy="proportional"
    ) as client:
        plan = client.choose(exchange.gather(rank, client.show(evenstep.Report(name, k))))
        for _ in range(EPOCHS):
            while dealt := epochs.deal(plan.sizes, worker := client.workers.index(name)):
                start = time.perf_counter()
                mean = gradient(weights, points[dealt.samples], labels[dealt.samples])
                time.sleep(PER_SAMPLE * (rank + 1) * len(dealt.samples))  # emulated: slower by rank
                seconds = time.perf_counter() - start  # own work: no waiting for others
                summed = exchange.sum(rank, dealt.sizes[worker] / dealt.sizes.sum() * mean)
                weights -= LEARNING_RATE * summed.reshape(weights.shape)
                epochs.advance()
                report = evenstep.Report(name, k := k + 1, int(dealt.sizes[worker]), seconds)
                plan = client.choose(exchange.gather(rank, client.show(report)))
            epochs.end()
    if rank == 0:
        results.put((weights, dict(zip(client.workers, plan.sizes.tolist(), strict=True))))


def train_alone() -> Floats:
    """Return what a single process comes to, with all of each iteration's samples at once."""
    points, labels = make_data()
    weights = np.zeros((FEATURES, CLASSES))
    epochs = Epochs(SAMPLES, TOTAL, seed=0)
    for _ in range(EPOCHS):
        while dealt := epochs.deal(np.array([TOTAL]), worker=0):
            mean = gradient(weights, points[dealt.samples], labels[dealt.samples])
            weights -= LEARNING_RATE * mean
            epochs.advance()
        epochs.end()
    return weights


@contextmanager
def manager() -> Iterator[str]:
    """Run a manager, and yield its address."""
    command = [sys.executable, "-m", "evenstep", "manager", "--listen", "127.0.0.1:0"]
    with subprocess.Popen([*command, "--http", "off"], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            yield child.stdout.readline().split("listening on ")[1].split(",")[0].strip()
        finally:
            child.terminate()


def train_together(num_workers: int, address: str) -> tuple[Floats, dict[str, int]]:
    """Return the parameters that the workers came to, and their last batch sizes."""
    spawn = multiprocessing.get_context("spawn")
    shared = num_workers, address, Exchange(num_workers, FEATURES * CLASSES), spawn.Queue()
    workers = [
        spawn.Process(target=work, args=(rank, *shared), daemon=True) for rank in range(num_workers)
    ]
    for worker in workers:
        worker.start()
    weights, sizes = shared[-1].get(timeout=2 * PATIENCE)
    for worker in workers:
        worker.join()
    return weights, sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--manager", metavar="HOST:PORT", help="default: one of its own")
    args = parser.parse_args()
    with nullcontext(args.manager) if args.manager else manager() as address:
        weights, sizes = train_together(args.workers, address)
    points, labels = make_data()
    accuracy = np.mean((points @ weights).argmax(axis=1) == labels)
    print(f"batch sizes {sizes} (emulated speeds), accuracy {accuracy:.1%}")
    alone = train_alone()
    apart = np.abs(weights - alone).max() / np.abs(alone).max()
    assert apart < 1e-9, f"parameters must be those of a single process, got {apart:.1e} apart"
    print(f"the parameters equal those of a single process (relative difference {apart:.0e})")


if __name__ == "__main__":
    main()
