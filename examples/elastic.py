"""Train on digits with workers that may die: torchrun restarts them, and training continues.

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node 3 \
        --max-restarts 3 examples/elastic.py --checkpoint elastic.pt

Kill a worker (kill -9): all are started again, load the last checkpoint, and visit exactly the
remaining samples of the epoch, with the batch sizes that were learned. The variable makes
restarted workers find each other; without it they read the addresses of those before them.

With one worker per torchrun agent (--nproc-per-node 1 --nnodes 2:3) and --restart, a worker without
which the job would be faster is removed: checkpoint, and restart without it.
"""

import argparse
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

parser = argparse.ArgumentParser(description="digits, with restarts")
parser.add_argument("--checkpoint", type=Path, default=Path("elastic.pt"))
parser.add_argument("--every", type=int, default=5, help="iterations between checkpoints")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--restart", action="store_true", help="restart without stragglers")
args = parser.parse_args()

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
torch.set_num_threads(1)
torch.manual_seed(0)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
samples = data.TensorDataset(images, torch.tensor(digits.target))
train, test = data.random_split(samples, [0.85, 0.15])

net = nn.Sequential(
    nn.Conv2d(1, 32, kernel_size=3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(32 * 4 * 4, 10),
)
model = DDP(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def save() -> None:
    """Save everything, whole or not at all; what worker 0 knows fits all workers."""
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "balancer": balancer.state_dict(),
        "loader": loader.state_dict(),
    }
    if dist.get_rank() == 0:
        new = args.checkpoint.with_suffix(".new")
        torch.save(state, new)
        new.replace(args.checkpoint)


balancer = Balancer(
    model,
    total=64,
    straggler="restart" if args.restart else "advise",
    checkpoint=save if args.restart else None,
)
loader = balancer.loader(train)

first_epoch = 0
if args.checkpoint.exists():
    state = torch.load(args.checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    balancer.load_state_dict(state["balancer"])
    loader.load_state_dict(state["loader"])
    first_epoch = state["loader"]["epoch"]
    if dist.get_rank() == 0:
        print(f"going on after iteration {balancer.iteration} of epoch {first_epoch}", flush=True)

for epoch in range(first_epoch, args.epochs):
    loader.set_epoch(epoch)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if balancer.iteration % args.every == 0:
            save()

if dist.get_rank() == 0:
    with torch.no_grad():
        x, y = next(iter(data.DataLoader(test, batch_size=len(test))))
        accuracy = (net(x).argmax(dim=1) == y).float().mean()
    print(f"accuracy {accuracy:.1%} after {args.epochs} epochs")
    args.checkpoint.unlink(missing_ok=True)
dist.destroy_process_group()
