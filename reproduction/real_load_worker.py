"""A worker under load: trains under plain BSP and under LB-BSP in turns, a block of each at a time.

    python -m reproduction.real_load_worker WORKER CORE FOLDER BLOCK

Two of them train together over the loopback interface, each on a core of its own. A worker says
`ready` when every model has been trained a little, and reads from its standard input for how many
seconds to continue. Worker 0 prints every round, one block of BLOCK iterations of each contender,
as a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from evenstep.core import Ints
from evenstep.pytorch import Balancer
from evenstep.simulator.workloads.digits import digits, digits_net
from reproduction.real_load_run import CONTENDERS, NUM_WORKERS, TOTAL

WIDTH = 48
"""Of the net: so wide that an exchange of its gradients is short against their computation."""
_WARM_UP = 4
"""Iterations of each contender before the load; DDP rearranges its buckets in the second."""
_TIMEOUT = timedelta(seconds=60)


def main() -> None:
    worker, core, folder, block = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=int(worker),
        world_size=NUM_WORKERS,
        timeout=_TIMEOUT,
    )
    samples, _ = digits()
    contenders = {name: Contender(how, samples) for name, how in CONTENDERS.items()}
    for contender in contenders.values():
        contender.train(_WARM_UP)
    print("ready", flush=True)
    for each in rounds(contenders, int(block), float(sys.stdin.readline())):
        if dist.get_rank() == 0:
            print(json.dumps(each), flush=True)
    for contender in contenders.values():
        contender.close()
    dist.destroy_process_group()


class Contender:
    """A training in blocks: plain DDP, or balanced with a predictor."""

    def __init__(self, predictor: str | None, samples: TensorDataset) -> None:
        self._model = DistributedDataParallel(digits_net(width=WIDTH))
        self._balancer: Balancer | None = None
        loader: Any = _plain_loader(samples)
        if predictor is not None:
            self._balancer = Balancer(
                self._model, TOTAL, policy="proportional", predictor=predictor, summary=False
            )
            loader = self._balancer.loader(samples, drop_last=True)
        self._batches = _forever(loader)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.1)

    def train(self, iterations: int) -> dict[str, Any]:
        """Return how long each iteration took, and how many samples of it were this worker's."""
        times, sizes = [], []
        last = time.perf_counter()
        for _ in range(iterations):
            images, labels = next(self._batches)
            cross_entropy(self._model(images), labels).backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
            now = time.perf_counter()
            times.append(now - last)
            sizes.append(len(labels))
            last = now
        return {"times": times, "sizes": sizes}

    def close(self) -> None:
        if self._balancer is not None:
            self._balancer.close()


def rounds(
    contenders: dict[str, Contender], block: int, seconds: float
) -> Iterator[dict[str, Any]]:
    """Yield what each contender did in every round, until the time is over on worker 0.

    There are at least two, as the first is to warm up. Every other one goes through them
    backwards, so that the order favours none of them.
    """
    begun = time.perf_counter()
    names = list(contenders)
    for number in count():
        at = time.perf_counter() - begun
        trained, got = {}, {}
        for name in names:
            before = _cpu_times()
            trained[name] = contenders[name].train(block)
            running, waiting = _cpu_times() - before
            got[name] = running / (running + waiting)
        goes_on, *cpus = _tell_all(
            [float(time.perf_counter() < begun + seconds), *(got[name] for name in contenders)]
        )
        cpu = dict(zip(contenders, cpus, strict=True))
        yield {"at": at, **{name: {**trained[name], "cpu": cpu[name]} for name in contenders}}
        if number and not goes_on[0]:
            return
        names.reverse()


def _cpu_times() -> Ints:
    """Return how long this thread, which computes, ran and waited for a CPU so far, in ns.

    Balancers read c of all threads, among which are those that read it.
    """
    running, waiting, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return np.array([int(running), int(waiting)])


def _tell_all(values: list[float]) -> list[list[float]]:
    """Return every worker's of each of these values."""
    own = torch.tensor(values, dtype=torch.float64)
    everybodys = [torch.empty_like(own) for _ in range(NUM_WORKERS)]
    dist.all_gather(everybodys, own)
    table: list[list[float]] = torch.stack(everybodys, dim=1).tolist()
    return table


def _plain_loader(samples: TensorDataset) -> DataLoader[Any]:
    """Return the loader of a stock DDP script."""
    sampler: DistributedSampler[Any] = DistributedSampler(samples)
    return DataLoader(samples, TOTAL // NUM_WORKERS, sampler=sampler, drop_last=True)


def _forever(loader: Any) -> Iterator[Any]:
    for epoch in count():
        loader.sampler.set_epoch(epoch)
        yield from loader


if __name__ == "__main__":
    main()
