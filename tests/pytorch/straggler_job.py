"""A training with a straggler that is left behind, for the test of that; started by torchrun."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from evenstep.pytorch import Balancer
from tests.pytorch.setup import data, net
from tests.pytorch.test_balancer import Emulated

TOTAL, NUM_SAMPLES = 24, 24 * 40


def main() -> None:
    folder, name, speed = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(net())
    path = folder / "checkpoint"

    def save() -> None:
        state = {"balancer": balancer.state_dict(), "loader": loader.state_dict()}
        if dist.get_rank() == 0:
            torch.save(state, path)

    balancer = Balancer(
        model, TOTAL, timer=Emulated(speed), policy="equal_finish", summary=False, name=name,
        straggler="restart", checkpoint=save,
    )  # fmt: skip
    loader = balancer.loader(data(NUM_SAMPLES))
    if path.exists():
        state = torch.load(path)
        balancer.load_state_dict(state["balancer"])
        loader.load_state_dict(state["loader"])
    with (folder / f"seen-{name}").open("a") as seen:
        first = balancer.plan.sizes.tolist()
        for samples, labels in loader:
            F.cross_entropy(model(samples), labels).backward()
            position = [balancer.iteration, balancer.num_workers, samples[:, 0].tolist(), first]
            print(json.dumps(position), file=seen, flush=True)
    balancer.close()
    print(f"{name} done with {dist.get_world_size()}", os.getpid())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
