"""A training that dies on request, for the tests of restarts; started by torchrun.

Every worker writes down the samples of each iteration before it trains on them; worker 0 saves a
checkpoint after every third iteration, and at the end what became of it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from evenstep.pytorch import Balancer
from tests.pytorch.setup import data, net, parameters
from tests.pytorch.test_balancer import Emulated

SPEEDS = [100.0, 300.0, 200.0]
TOTAL, NUM_SAMPLES, EVERY = 24, 24 * 9 + 5, 3


def main() -> None:
    folder = Path(sys.argv[1])
    kills = json.loads(sys.argv[2])
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    worker = dist.get_rank()
    model = DistributedDataParallel(net(torch.float64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    balancer = Balancer(
        model, TOTAL, timer=Emulated(SPEEDS[worker]), policy="equal_finish", summary=False
    )
    dataset = data(NUM_SAMPLES, torch.float64)
    loader = balancer.loader(dataset, pad=False)
    path = folder / "checkpoint"

    def save() -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                 "balancer": balancer.state_dict(), "loader": loader.state_dict()}  # fmt: skip
        if worker == 0:
            torch.save(state, path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)

    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        balancer.load_state_dict(state["balancer"])
        loader.load_state_dict(state["loader"])
    first = balancer.plan.sizes.tolist()
    with (folder / f"seen-{worker}").open("a") as seen:
        for k, (samples, labels) in enumerate(loader, start=balancer.iteration):
            kill = kills[attempt] if attempt < len(kills) else None
            if kill == [worker, k]:
                os.kill(os.getpid(), signal.SIGKILL)
            print(json.dumps([attempt, k, samples[:, 0].tolist()]), file=seen, flush=True)
            F.cross_entropy(model(samples), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            if (k + 1) % EVERY == 0:
                save()
    result = {"parameters": parameters(model.module).tolist(), "attempt": attempt, "first": first,
              "filters": balancer.state_dict()["balancer"]["policy.filter.slope"]}  # fmt: skip
    balancer.close()
    if worker == 0:
        (folder / "result").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
