"""A worker of the demo: trains twice, as plain BSP and balanced. Started by torchrun."""

from __future__ import annotations

import json
import sys
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from evenstep.cli.demo_settings import POLICY, RUNS, DemoSettings
from evenstep.pytorch import Balancer
from evenstep.pytorch.collective import InflightTensors
from evenstep.simulator.load import throttle
from evenstep.simulator.workloads.digits import accuracy, digits, digits_net
from evenstep.simulator.workloads.emulation import Curve, EmulatedDevice

_TIMEOUT = timedelta(seconds=60)


def main() -> None:
    settings = DemoSettings.from_json(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=_TIMEOUT)
    worker = dist.get_rank()
    if settings.throttled:
        throttle.join(settings.throttled[worker])
    runs = {run: _train(settings, run, worker) for run in RUNS}
    late = torch.tensor(sum(timer.late for _, timer in runs.values()))
    dist.all_reduce(InflightTensors().watch(late))
    if worker == 0:
        result = _compare(*(net for net, _ in runs.values()))
        settings.result.write_text(json.dumps({**result, "late_batches": int(late)}))
    dist.destroy_process_group()


def _train(settings: DemoSettings, run: str, worker: int) -> tuple[nn.Module, EmulatedDevice]:
    """Train from the start, and return the net and its device."""
    net = digits_net(settings.seed, settings.width)
    device = EmulatedDevice(_curve(settings, worker))
    device.slow_down(net[0])
    model = DistributedDataParallel(net)
    balancer = Balancer(
        model,
        settings.cluster.total,
        mode=RUNS[run],
        policy=POLICY,
        log=str(settings.log(run)),
        name=settings.workers[worker],
        source=settings.source,
        timer=device,
        summary=False,
    )
    _fit(model, balancer, settings)
    balancer.close()
    return net, device


def _curve(settings: DemoSettings, worker: int) -> Curve:
    """Return the time curve of the worker's device; 0 for a throttled worker."""
    cluster = settings.cluster

    def curve(batch_size: float) -> float:
        return float(cluster.curves.times_at(np.full(cluster.num_workers, batch_size))[worker])

    return (lambda batch_size: 0.0) if settings.throttled else curve


def _fit(model: nn.Module, balancer: Balancer, settings: DemoSettings) -> None:
    """Run the training loop as a user would write it."""
    train, _ = digits()
    loader = balancer.loader(train, seed=settings.seed, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(settings.epochs):
        for images, labels in loader:
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def _compare(plain: nn.Module, balanced: nn.Module) -> dict[str, object]:
    """Return the difference of the parameters, and the accuracy of each net."""
    pairs = list(zip(plain.parameters(), balanced.parameters(), strict=True))
    _, test = digits()
    return {
        "largest_difference": max(float((a - b).detach().abs().max()) for a, b in pairs),
        "largest_parameter": max(float(a.detach().abs().max()) for a, _ in pairs),
        "accuracy": {"plain": accuracy(plain, test), "balanced": accuracy(balanced, test)},
    }


if __name__ == "__main__":
    main()
