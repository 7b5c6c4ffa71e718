"""Trainings for the tests of several hosts; torchrun starts them on each host.

Every worker writes down what it does in an iteration; the test reads it while the training runs.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep.measure.timer import HostTimer
from evenstep.partitions import MigrationRule
from evenstep.pytorch import Balancer, Serving
from tests.pytorch.setup import FEATURES, cycle, data, net, parameters

TOTAL, NUM_SAMPLES, EVERY = 16, 160, 5
SPEEDS = {"a": (100.0, 300.0), "b": (200.0, 100.0)}
"""Emulated samples a second, of every other ten iterations: the best sizes keep changing."""
SIZES = [(4, 12), (3, 13), (5, 11)]
"""Of a training from partitions."""
PACE = 0.03
"""Seconds that an iteration lasts at least."""
MANAGER, TOKEN, CERTIFICATE, KEY = "m:7411", "token", "cert.pem", "key.pem"


class Emulated(HostTimer):
    """A timer that says what a device of changing speed would have taken."""

    def __init__(self, speeds: tuple[float, ...]) -> None:
        super().__init__(lambda: self._at)
        self._at = 0.0
        self._speeds = itertools.cycle(speed for speed in speeds for _ in range(10))

    def batch(self, batch_size: float) -> None:
        super().batch(batch_size)
        self._at += batch_size / next(self._speeds)


class Training:
    """A model in training, and the notes of this worker about it."""

    def __init__(self, folder: Path) -> None:
        self.host = socket.gethostname()
        self.name = f"{self.host}{os.environ['LOCAL_RANK']}"
        self.folder = folder
        self.model = DistributedDataParallel(net(torch.float64))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self._notes = (folder / f"notes-{self.name}").open("a")

    def step(self, balancer: Balancer, x: torch.Tensor, y: torch.Tensor, **noted: Any) -> None:
        """Train on a batch, and write down what was known at its beginning."""
        noted |= {"iteration": balancer.iteration, "sizes": balancer.plan.sizes.tolist(),
                  "plan": balancer.plan.number, "own": len(x)}  # fmt: skip
        F.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        print(json.dumps(noted), file=self._notes, flush=True)
        time.sleep(PACE)

    def is_over(self) -> bool:
        """Whether the test has asked all workers to stop, as worker 0 sees it."""
        asked = torch.tensor(int((self.folder / "stop").exists()))
        dist.broadcast(asked, 0)
        return bool(asked)

    def finish(self) -> None:
        """Leave the parameters for the test."""
        torch.save(parameters(self.model), self.folder / f"parameters-{self.name}")


def endless(loader: Any) -> Iterator[Any]:
    return itertools.chain.from_iterable(iter(loader) for _ in itertools.count())


def planned(folder: Path) -> None:
    """Train with the plans of a manager on a third host."""
    training = Training(folder)
    client = evenstep.connect(
        MANAGER, "job", training.name, workers=dist.get_world_size(), total=TOTAL,
        policy="equal_finish", timeout=2.0, token=(folder / TOKEN).read_text(),
        ca=folder / CERTIFICATE,
    )  # fmt: skip
    with client:
        timer = Emulated(SPEEDS[training.host])
        balancer = Balancer(training.model, TOTAL, coordinator=client, timer=timer, summary=False)
        for x, y in endless(balancer.loader(data(NUM_SAMPLES, torch.float64))):
            training.step(balancer, x, y, connected=client.connected)
            if training.is_over():
                break
        balancer.close()
    training.finish()


def partitioned(folder: Path) -> None:
    """Train from a partition of this host's own; samples migrate over the direct link."""
    training = Training(folder)
    serving = Serving(
        listen=f"{training.host}-direct:7413", bandwidth=None, patience=4.0,
        token_file=folder / TOKEN, tls_cert=folder / CERTIFICATE, tls_key=folder / KEY,
    )  # fmt: skip
    balancer = Balancer(
        training.model, TOTAL, policy=cycle(*SIZES), warm_up=0, loss="mean", summary=False,
        log=folder / "run.jsonl",
    )  # fmt: skip
    loader = balancer.local_loader(
        folder / training.host, rule=MigrationRule(threshold=1.0), serving=serving
    )
    for rows, labels, numbers in endless(loader):
        training.step(
            balancer, rows[:, :FEATURES], labels, samples=numbers.tolist(),
            partitions=loader.sizes.tolist(), migrations=loader.num_migrations,
        )  # fmt: skip
        if training.is_over():
            break
    balancer.close()
    training.finish()


def elastic(folder: Path) -> None:
    """Train from the last checkpoint on, with as many workers as there are."""
    training = Training(folder)
    timer = Emulated(SPEEDS[training.host])
    balancer = Balancer(training.model, TOTAL, policy="equal_finish", timer=timer, summary=False)
    loader = balancer.loader(data(NUM_SAMPLES, torch.float64))
    parts: dict[str, Any] = {"model": training.model, "optimizer": training.optimizer,
             "balancer": balancer, "loader": loader}  # fmt: skip
    path = folder / "checkpoint"
    if path.exists():
        for name, state in torch.load(path).items():
            parts[name].load_state_dict(state)
    for x, y in endless(loader):
        training.step(balancer, x, y)
        if balancer.iteration % EVERY == 0:
            states = {name: part.state_dict() for name, part in parts.items()}
            if dist.get_rank() == 0:
                torch.save(states, path.with_suffix(".new"))
                path.with_suffix(".new").replace(path)
        if training.is_over():
            break
    balancer.close()
    training.finish()


JOBS: dict[str, Callable[[Path], None]] = {
    "planned": planned, "partitioned": partitioned, "elastic": elastic
}  # fmt: skip


def main() -> None:
    job, folder, seconds = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=float(seconds)))
    JOBS[job](Path(folder))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
