"""Train ResNet-32 on CIFAR-10 with DistributedDataParallel, balanced, with checkpoints.

    torchrun --nproc-per-node 2 examples/resnet32_cifar10.py --data cifar-10-batches-py

The data is the folder of Python batches that the authors of CIFAR-10 give out, or an .npz file with
x_train, y_train, x_test, y_test (pictures as bytes, N x 32 x 32 x 3). With --checkpoint FILE a run
that was stopped continues at its position, also in the middle of an epoch.
"""

import argparse
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from evenstep.pytorch import BalancedLoader, Balancer
from evenstep.simulator.workloads.safe_pickle import load_pickle
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils import data

MEAN = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
DEVIATION = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


class Pictures(data.Dataset[tuple[torch.Tensor, int]]):
    """Pictures with their labels; those to train on are cropped and flipped at random."""

    def __init__(self, pictures: np.ndarray, labels: np.ndarray, augment: bool) -> None:
        self._pictures = torch.from_numpy(np.ascontiguousarray(pictures.transpose(0, 3, 1, 2)))
        self._labels = labels.tolist()
        self._augment = augment

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture = (self._pictures[index] / 255 - MEAN) / DEVIATION
        if self._augment:
            # Seeded by (seed, epoch, sample), see seed_samples below, on any worker.
            top, left, flip = (int(torch.randint(n, ())) for n in (9, 9, 2))
            picture = F.pad(picture, (4, 4, 4, 4))[:, top : top + 32, left : left + 32]
            picture = picture.flip(2) if flip else picture
        return picture, self._labels[index]


class Block(nn.Module):
    """Two convolutions and a shortcut, which pads channels with zeros (He et al., option A)."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self._stride = after // before
        self._more = after - before
        self.layers = nn.Sequential(
            nn.Conv2d(before, after, 3, self._stride, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x[:, :, :: self._stride, :: self._stride]
        return F.relu(self.layers(x) + F.pad(shortcut, (0, 0, 0, 0, 0, self._more)))


def resnet32() -> nn.Sequential:
    blocks = [Block(width // (2 if i == 0 and width > 16 else 1), width)
              for width in (16, 32, 64) for i in range(5)]  # fmt: skip
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def read(path: Path, limit: int | None) -> tuple[Pictures, Pictures]:
    """Return the pictures to train on and those to test with, or the first ones of each."""
    if path.is_dir():
        names = [f"data_batch_{i}" for i in range(1, 6)]
        arrays = [*read_batches(path, names), *read_batches(path, ["test_batch"])]
    else:
        with np.load(path) as file:
            if missing := [name for name in ARRAYS if name not in file]:
                raise SystemExit(f"{path} must have {', '.join(ARRAYS)}, got none of {missing}")
            arrays = [file[name] for name in ARRAYS]
    x_train, y_train, x_test, y_test = (array[:limit] for array in arrays)
    return Pictures(x_train, y_train, augment=True), Pictures(x_test, y_test, augment=False)


def read_batches(folder: Path, names: list[str]) -> tuple[np.ndarray, np.ndarray]:
    # Python's own reader would run whatever code a downloaded file asks for.
    batches = [load_pickle(folder / name) for name in names]
    pictures = np.concatenate([batch[b"data"] for batch in batches]).reshape(-1, 3, 32, 32)
    return pictures.transpose(0, 2, 3, 1), np.concatenate([batch[b"labels"] for batch in batches])


class Job(NamedTuple):
    """Everything that a checkpoint holds."""

    model: DDP
    optimizer: torch.optim.SGD
    scheduler: torch.optim.lr_scheduler.MultiStepLR
    balancer: Balancer
    loader: BalancedLoader

    def save(self, path: Path) -> None:
        """Write a checkpoint; all workers call it, and worker 0 writes."""
        self.balancer.average_buffers()
        state = {name: part.state_dict() for name, part in self._asdict().items()}
        if dist.get_rank() == 0:
            # In one go, so that a run stopped right now leaves a whole file.
            unfinished = path.with_name(path.name + ".part")
            torch.save(state, unfinished)
            unfinished.replace(path)

    def restore(self, path: Path) -> None:
        state: dict[str, Any] = torch.load(path, map_location="cpu")
        for name, part in self._asdict().items():
            part.load_state_dict(state[name])


def train(job: Job, args: argparse.Namespace, device: torch.device) -> float:
    """Train to the end of an epoch, or until it is time to stop; return the last mean loss."""
    loss = torch.tensor(float("nan"))
    for x, y in job.loader:
        loss = F.cross_entropy(job.model(x.to(device)), y.to(device))
        loss.backward()
        job.optimizer.step()
        job.optimizer.zero_grad()
        done = job.balancer.iteration
        if args.checkpoint and (done % args.every == 0 or done == args.stop_after):
            job.save(args.checkpoint)
        if done == args.stop_after:
            break
    return job.balancer.mean(loss.detach())


def evaluate(job: Job, test: Pictures, device: torch.device) -> float:
    """Return the accuracy on the test pictures; every worker processes some of them."""
    mine = data.Subset(test, range(dist.get_rank(), len(test), dist.get_world_size()))
    right = torch.zeros(1, device=device)
    job.model.eval()
    with torch.no_grad():
        for x, y in data.DataLoader(mine, batch_size=250):
            right += (job.model(x.to(device)).argmax(dim=1) == y.to(device)).sum()
    job.model.train()
    dist.all_reduce(right)
    return float(right) / len(test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder of batches, or .npz")
    parser.add_argument("--epochs", type=int, default=164, help="64,000 iterations, as He et al.")
    parser.add_argument("--total", type=int, default=128, help="samples of all workers together")
    parser.add_argument("--mode", default="balanced", help="balanced, observe or off")
    parser.add_argument("--limit", type=int, help="number of pictures to train on and to test with")
    parser.add_argument("--checkpoint", type=Path, help="continue from this file if it exists")
    parser.add_argument("--every", type=int, default=200, help="iterations between checkpoints")
    parser.add_argument("--stop-after", type=int, help="stop after this total of iterations")
    parser.add_argument("--run-log", help="write a run log to this file")
    parser.add_argument("--num-workers", type=int, default=1, help="loading processes per worker")
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(0, 120))
    if device.type == "cuda":
        device = torch.device("cuda", dist.get_node_local_rank())
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    pictures, test = read(args.data, args.limit)

    model = DDP(resnet32().to(device))
    balancer = Balancer(model, args.total, mode=args.mode, log=args.run_log)
    loader = balancer.loader(pictures, seed_samples=True, num_workers=args.num_workers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    milestones = [args.epochs // 2, args.epochs * 3 // 4]
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones)
    job = Job(model, optimizer, scheduler, balancer, loader)
    speaks = dist.get_rank() == 0
    if args.checkpoint and args.checkpoint.exists():
        job.restore(args.checkpoint)
        if speaks:
            print(f"went on after iteration {balancer.iteration} in epoch {scheduler.last_epoch}")

    while scheduler.last_epoch < args.epochs and balancer.iteration != args.stop_after:
        loss = train(job, args, device)
        if balancer.iteration == args.stop_after:
            break
        scheduler.step()
        accuracy = evaluate(job, test, device)
        if args.checkpoint:
            job.save(args.checkpoint)
        if speaks:
            print(f"epoch {scheduler.last_epoch}: loss {loss:.4f}, accuracy {accuracy:.1%}")
    balancer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
