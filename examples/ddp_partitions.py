"""Train on digits where each worker can read only its own two classes.

Start it with: torchrun --nproc-per-node 2 and the name of this file.

The first worker has three times as large batches as the others, as if it were three times as fast,
so it reads its samples three times as often. Once it is two traversals ahead, samples move to it
in the background, mixed by class; then all workers begin to read their new partitions.

In a real job every worker has a partition on its own disk (`evenstep partition create` makes them),
batch sizes follow from the workers' speeds (leave out mode and shares), and between machines agents
listen where others reach them: serving=Serving(listen=..., token_file=..., tls_cert=...).
"""

import shutil
import tempfile
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from evenstep.partitions import MigrationRule, create_partitions, deal_by_class
from evenstep.pytorch import Balancer
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

TOTAL, AFTERWARDS, LONGEST = 64, 20, 5000
"""Samples of all workers per iteration; epochs after the migration, and at most."""

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
torch.set_num_threads(1)
torch.manual_seed(0)
worker, num_workers = dist.get_rank(), dist.get_world_size()

digits = load_digits()
chosen = digits.target < 2 * num_workers
images = (digits.images[chosen] / 16).reshape(-1, 64).astype(np.float32)
labels = digits.target[chosen]

shared = [tempfile.mkdtemp() if worker == 0 else None]
dist.broadcast_object_list(shared)
folders = [Path(str(shared[0]), f"worker-{number}") for number in range(num_workers)]
if worker == 0:
    create_partitions(folders, (images, labels), deal_by_class(labels, num_workers), label="1")
dist.barrier()


def show(what: str) -> None:
    """Print which classes every worker has."""
    classes = [None] * num_workers
    dist.all_gather_object(classes, np.unique(loader.partition.labels).tolist())
    if worker == 0:
        counts = " ".join(f"{count:.1f}" for count in loader.traversals.counts)
        print(f"{what}: partitions {loader.sizes.tolist()}, classes {classes}, traversals {counts}")


net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
model = DDP(net)
balancer = Balancer(model, TOTAL, mode="static", shares=[3] + [1] * (num_workers - 1))
loader = balancer.local_loader(folders[worker], rule=MigrationRule(threshold=2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

show("at first")
first, left = loader.sizes, AFTERWARDS
for _ in range(LONGEST):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    # All workers know the same of all partitions, so all end together.
    if (loader.sizes != first).any():
        left -= 1
    if left == 0:
        break
show("at last")
balancer.close()

if worker == 0:
    with torch.no_grad():
        accuracy = (net(torch.tensor(images)).argmax(dim=1) == torch.tensor(labels)).float().mean()
    print(f"accuracy {accuracy:.1%} on the samples that it was trained on")
dist.barrier()
if worker == 0:
    shutil.rmtree(str(shared[0]))
dist.destroy_process_group()
