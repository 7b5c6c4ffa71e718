"""A stock script in the shape of torch's DDP tutorial: a Trainer class, and snapshots by epoch."""

# As users write them.
# mypy: ignore-errors
# ruff: noqa: N817

import argparse
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class MyTrainDataset(Dataset):
    def __init__(self, size):
        made = torch.Generator().manual_seed(1)
        self.data = [
            (
                torch.rand(6, generator=made, dtype=torch.float64),
                torch.randint(3, (), generator=made),
            )
            for _ in range(size)
        ]

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


class Net(torch.nn.Module):
    def __init__(self, seconds_per_sample):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)
        ).double()
        self.seconds_per_sample = seconds_per_sample

    def forward(self, x):
        time.sleep(len(x) * self.seconds_per_sample)
        return self.layers(x)


class Trainer:
    def __init__(self, model, train_data, optimizer, save_every, snapshot_path, reduction):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.global_rank = int(os.environ["RANK"])
        self.model = model
        self.train_data = train_data
        self.optimizer = optimizer
        self.save_every = save_every
        self.epochs_run = 0
        self.snapshot_path = snapshot_path
        self.reduction = reduction
        if Path(snapshot_path).exists():
            self._load_snapshot(snapshot_path)
        self.model = DDP(self.model)

    def _load_snapshot(self, snapshot_path):
        snapshot = torch.load(snapshot_path)
        self.model.load_state_dict(snapshot["MODEL_STATE"])
        self.epochs_run = snapshot["EPOCHS_RUN"]
        print(f"Resuming training from snapshot at Epoch {self.epochs_run}")

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        output = self.model(source)
        loss = F.cross_entropy(output, targets, reduction=self.reduction)
        loss.backward()
        self.optimizer.step()

    def _run_epoch(self, epoch):
        b_sz = len(next(iter(self.train_data))[0])
        print(f"[{self.global_rank}] Epoch {epoch} | Batchsize: {b_sz} | {len(self.train_data)}")
        self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.train_data:
            self._run_batch(source, targets)

    def _save_snapshot(self, epoch):
        snapshot = {"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch}
        torch.save(snapshot, self.snapshot_path)

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            self._run_epoch(epoch)
            if self.global_rank == 0 and epoch % self.save_every == 0:
                self._save_snapshot(epoch + 1)


def main(args):
    init_process_group(backend="gloo")
    torch.manual_seed(7)
    rank = int(os.environ["RANK"])
    seconds = [float(s) for s in args.seconds_per_sample.split(",")]
    model = Net(seconds[rank % len(seconds)])
    train_set = MyTrainDataset(args.samples)
    train_data = DataLoader(
        train_set,
        batch_size=args.batch_size,
        shuffle=False,
        sampler=DistributedSampler(train_set),
        num_workers=args.num_workers,
        multiprocessing_context=args.context if args.num_workers else None,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = Trainer(model, train_data, optimizer, args.save_every, args.snapshot, args.reduction)
    trainer.train(args.total_epochs)
    if rank == 0:
        torch.save(trainer.model.module.state_dict(), args.out)
    destroy_process_group()
    if args.fails:
        raise RuntimeError("as it was asked to")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="simple distributed training job")
    parser.add_argument("total_epochs", type=int)
    parser.add_argument("save_every", type=int)
    parser.add_argument("--batch_size", default=8, type=int)
    parser.add_argument("--samples", default=149, type=int)
    parser.add_argument("--snapshot", default="snapshot.pt")
    parser.add_argument("--out", required=True)
    parser.add_argument("--num_workers", default=0, type=int)
    parser.add_argument("--context", default="fork")
    parser.add_argument("--reduction", default="mean")
    parser.add_argument("--seconds-per-sample", default="0")
    parser.add_argument("--fails", action="store_true")
    main(parser.parse_args())
