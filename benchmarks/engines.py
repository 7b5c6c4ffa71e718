"""The cost of the virtual engine: events per second, and its overhead over bare gradients.

Measured on this machine; compare the figures of one run with each other.

    python -m benchmarks.engines [--workers 96] [--iterations 300] [--gradients 24] [--json]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import TensorDataset

from benchmarks.report import Row, progress, show
from evenstep.simulator.clusters.scenarios import make_scenario
from evenstep.simulator.engine.experiment import Experiment
from evenstep.simulator.workloads.classification import Classification
from evenstep.simulator.workloads.digits import mlp_digits
from evenstep.simulator.workloads.workload import Workload, gradients
from examples.resnet32_cifar10 import resnet32

SCHEMES = ("bsp", "bsp:backups=2", "asp", "ssp", "flexrr")
LONG_RUN = (96, 10_000)
"""Workers and iterations that are to take well under a minute."""
BATCH_SIZE = 32
NUM_WORKERS = 4
TO_REACH = 0.2
"""Overhead over the bare gradients of ResNet-32 at batch 32 (at most)."""


def timing_only(num_workers: int, iterations: int) -> Iterator[Row]:
    """Measure runs without gradients; an event is a gradient that arrives.

    In CPU time: these runs use one core, and on a shared machine wall time counts others' work.
    """
    for spec in progress(SCHEMES, "timing-only"):
        run = Experiment(spec).start(make_scenario("G", num_workers, iterations))
        start = time.process_time()
        for _ in run.advance(iterations):
            pass
        seconds = time.process_time() - start
        rate = iterations * run.num_counted / seconds
        yield {
            "scheme": spec,
            "workers": num_workers,
            "events per CPU second": round(rate),
            "96 workers x 10,000 iterations, CPU s (extrapolated)": np.prod(LONG_RUN) / rate,
        }


def resnet32_pictures() -> Classification:
    """Return ResNet-32 on random pictures: what they show does not change what they cost."""
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randn(256, 3, 32, 32, generator=generator)
    data = TensorDataset(pictures, torch.arange(256) % 10)
    return Classification("resnet32", resnet32, data, data)


def with_gradients(num_gradients: int) -> Iterator[Row]:
    """Measure the same gradients, at the same batch sizes, bare and within the engine."""
    cases = [(mlp_digits(), 20 * num_gradients), (resnet32_pictures(), num_gradients)]
    for workload, count in progress(cases, "gradients"):
        for spec in ("bsp", "asp"):
            bare, within = _seconds(workload, spec, count // NUM_WORKERS)
            overhead = within / bare - 1
            yield {
                "workload": workload.name,
                "scheme": spec,
                "bare, ms per gradient": 1e3 * bare,
                "engine, ms per gradient": 1e3 * within,
                "overhead": overhead,
                "within 20 %": _verdict(overhead) if workload.name == "resnet32" else "-",
            }


def _verdict(overhead: float) -> str:
    return "yes" if overhead <= TO_REACH else "NO"


def _seconds(workload: Workload, spec: str, updates: int) -> tuple[float, float]:
    """Return the median seconds per gradient, bare and within the engine, taken in turns."""
    experiment = Experiment(spec, optimizer="sgd:momentum=0.9", evaluate_every=10 * updates)
    run = experiment.start(make_scenario("G", NUM_WORKERS), workload)
    model = workload.make_model(0)
    rng = np.random.default_rng(0)
    bare, within = [], []
    advancing = run.advance(updates + 1)
    for _ in range(updates):
        batches = rng.integers(workload.num_samples, size=(NUM_WORKERS, BATCH_SIZE))
        start = time.perf_counter()
        for batch in batches:
            gradients(workload, model, batch)
        between = time.perf_counter()
        next(advancing)
        end = time.perf_counter()
        bare.append((between - start) / NUM_WORKERS)
        within.append((end - between) / NUM_WORKERS)
    return float(np.median(bare[1:])), float(np.median(within[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=96)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--gradients", type=int, default=24)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    show("virtual engine, timing-only", timing_only(args.workers, args.iterations), args.json)
    show("virtual engine, real gradients", with_gradients(args.gradients), args.json)


if __name__ == "__main__":
    main()
