"""Train on digits that come as streams of records, one for each worker, with checkpoints.

    torchrun --nproc-per-node 2 examples/streaming.py --checkpoints folder

A stream has no length and no index: each worker takes as many records from its own stream as its
plan says, and where one stream ends, the others carry the total. Every worker saves where it is in
its stream, with the records that it has read ahead: started again, the script continues with
exactly the next record.
"""

import argparse
import itertools
import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from evenstep.pytorch import Balancer
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils import data

parser = argparse.ArgumentParser(description="digits from streams")
parser.add_argument("--checkpoints", type=Path, default=None, help="folder, one file per worker")
parser.add_argument("--every", type=int, default=10, help="iterations between checkpoints")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--iterations", type=int, default=None, help="stop after this number")
parser.add_argument("--loaders", type=int, default=0, help="loading processes of each worker")
args = parser.parse_args()

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
torch.set_num_threads(1)
torch.manual_seed(0)
rank, num_workers = dist.get_rank(), dist.get_world_size()

digits = load_digits()
lines = [
    ",".join(str(int(v)) for v in (*pixels, label))
    for pixels, label in zip(digits.data, digits.target, strict=True)
]
train, test = lines[:1500], lines[1500:]


def parse(line: str) -> tuple[torch.Tensor, int]:
    """Return the image and the label of a record."""
    *pixels, label = map(int, line.split(","))
    return torch.tensor(pixels, dtype=torch.float32).view(1, 8, 8) / 16, label


class Records(data.IterableDataset[tuple[torch.Tensor, int]]):
    """The records of one worker, in another order in every epoch.

    Which records a worker, and a loading process of it, reads is up to the stream.
    """

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        info = data.get_worker_info()
        part, parts = (0, 1) if info is None else (info.id, info.num_workers)
        mine = train[rank::num_workers]
        random.Random(self.epoch).shuffle(mine)
        return map(parse, itertools.islice(mine, part, None, parts))


net = nn.Sequential(
    nn.Conv2d(1, 16, kernel_size=3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(16 * 4 * 4, 10),
)
model = DDP(net)
balancer = Balancer(model, total=64)
loader = balancer.loader(Records(), num_workers=args.loaders)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def save(folder: Path) -> None:
    """Save the state of this worker: its position in its stream is its own."""
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "balancer": balancer.state_dict(),
        "loader": loader.state_dict(),
    }
    torch.save(state, folder / f"worker-{rank}.pt")


first_epoch = 0
if args.checkpoints is not None and (args.checkpoints / f"worker-{rank}.pt").exists():
    state = torch.load(args.checkpoints / f"worker-{rank}.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    balancer.load_state_dict(state["balancer"])
    loader.load_state_dict(state["loader"])
    first_epoch = state["loader"]["epoch"]

for epoch in range(first_epoch, args.epochs):
    loader.set_epoch(epoch)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if args.checkpoints is not None and balancer.iteration % args.every == 0:
            save(args.checkpoints)
        if balancer.iteration == args.iterations:
            break
    if balancer.iteration == args.iterations:
        break

if rank == 0:
    with torch.no_grad():
        x, y = data.default_collate([parse(line) for line in test])
        accuracy = (net(x).argmax(dim=1) == y).float().mean()
    print(f"accuracy {accuracy:.1%} after {balancer.iteration} iterations")
dist.destroy_process_group()
