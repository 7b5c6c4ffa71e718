"""A stock script in the shape of torch's imagenet example: meters, validation, a schedule."""

# As users write them.
# mypy: ignore-errors

import argparse
import time
from enum import Enum

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.parallel
import torch.utils.data
import torch.utils.data.distributed
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import Subset

parser = argparse.ArgumentParser(description="PyTorch ImageNet Training")
parser.add_argument("-j", "--workers", default=0, type=int)
parser.add_argument("--epochs", default=3, type=int)
parser.add_argument("-b", "--batch-size", default=16, type=int, help="of all workers")
parser.add_argument("--out", required=True)


def main():
    args = parser.parse_args()
    torch.manual_seed(7)
    dist.init_process_group(backend="gloo")
    args.world_size, args.rank = dist.get_world_size(), dist.get_rank()
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 10),
    ).double()
    args.batch_size = int(args.batch_size / args.world_size)
    model = torch.nn.parallel.DistributedDataParallel(model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = StepLR(optimizer, step_size=2, gamma=0.1)

    made = torch.Generator().manual_seed(1)
    images = torch.randn(190, 3, 8, 8, generator=made, dtype=torch.float64)
    labels = torch.randint(10, (190,), generator=made)
    train_dataset = torch.utils.data.TensorDataset(images[:149], labels[:149])
    val_dataset = torch.utils.data.TensorDataset(images[149:], labels[149:])
    distributed = torch.utils.data.distributed.DistributedSampler
    train_sampler = distributed(train_dataset)
    val_sampler = distributed(val_dataset, shuffle=False, drop_last=True)
    train_loader = torch.utils.data.DataLoader(
        train_dataset,
        batch_size=args.batch_size,
        shuffle=(train_sampler is None),
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        sampler=train_sampler,
    )
    val_loader = torch.utils.data.DataLoader(
        val_dataset, batch_size=args.batch_size, shuffle=False, sampler=val_sampler
    )
    results = []
    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        train(train_loader, model, criterion, optimizer, epoch, args)
        results += validate(val_loader, model, criterion, args)
        scheduler.step()
    if args.rank == 0:
        torch.save({**model.module.state_dict(), "results": torch.tensor(results)}, args.out)
    dist.destroy_process_group()


def train(train_loader, model, criterion, optimizer, epoch, args):
    data_time = AverageMeter("Data", Summary.NONE)
    losses = AverageMeter("Loss", Summary.AVERAGE)
    top1 = AverageMeter("Acc@1", Summary.AVERAGE)
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(train_loader):
        data_time.update(time.time() - end)
        images = images.to("cpu", copy=True)
        target = target.to("cpu", copy=True)
        output = model(images)
        loss = criterion(output, target)
        acc1 = accuracy(output, target)
        losses.update(loss.item(), images.size(0))
        top1.update(acc1, images.size(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        end = time.time()
        if i % 5 == 0:
            print(f"Epoch: [{epoch}][{i}/{len(train_loader)}] {losses.avg:.4f} {top1.avg:.3f}")


def validate(val_loader, model, criterion, args):
    losses = AverageMeter("Loss", Summary.NONE)
    top1 = AverageMeter("Acc@1", Summary.AVERAGE)

    def run_validate(loader):
        with torch.no_grad():
            for images, target in loader:
                output = model(images)
                losses.update(criterion(output, target).item(), images.size(0))
                top1.update(accuracy(output, target), images.size(0))

    model.eval()
    run_validate(val_loader)
    top1.all_reduce()
    losses.all_reduce()
    if len(val_loader.sampler) * args.world_size < len(val_loader.dataset):
        first = len(val_loader.sampler) * args.world_size
        rest = Subset(val_loader.dataset, range(first, len(val_loader.dataset)))
        run_validate(torch.utils.data.DataLoader(rest, batch_size=args.batch_size))
    return [losses.avg, top1.avg]


class Summary(Enum):
    NONE = 0
    AVERAGE = 1


class AverageMeter:
    def __init__(self, name, summary_type):
        self.name, self.summary_type = name, summary_type
        self.sum, self.count, self.avg = 0.0, 0, 0.0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def all_reduce(self):
        total = torch.tensor([self.sum, self.count], dtype=torch.float64)
        dist.all_reduce(total, dist.ReduceOp.SUM, async_op=False)
        self.sum, self.count = total.tolist()
        self.avg = self.sum / self.count


def accuracy(output, target):
    with torch.no_grad():
        return (output.argmax(1) == target).double().mean().item() * 100


if __name__ == "__main__":
    main()
