"""The effect of unequal batches on BatchNorm, whose statistics are those of one worker's batch.

Emulated in one process: real training on scikit-learn's digits, four workers one after the other,
with gradients weighed, and running statistics averaged at the end of each epoch, as the balancer
does. Other kinds of normalisation are trained on the same samples. A second table shows why
SyncBatchNorm is refused.

    python -m benchmarks.batchnorm [--total 32] [--epochs 6] [--seeds 0-4] [--json]
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn
from torch.nn.functional import batch_norm, cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.report import Row, progress, show
from evenstep.cli.arguments import parse_seeds
from evenstep.core.dealing import numpy_order
from evenstep.simulator.workloads.digits import accuracy, digits

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "BatchNorm": nn.BatchNorm2d,
    "BatchNorm, joined": nn.BatchNorm2d,
    "GroupNorm": lambda width: nn.GroupNorm(4, width),
}
"""`joined` has the statistics of all workers' samples together."""
SIXTEENTHS = {"even": (4, 4, 4, 4), "10:4:1:1": (10, 4, 1, 1), "13:1:1:1": (13, 1, 1, 1)}
SIZINGS = (*SIXTEENTHS, "changing")
"""`changing` draws other sizes in every iteration."""
CASES = [
    *(("BatchNorm", sizing) for sizing in SIZINGS),
    ("BatchNorm, joined", "even"),  # Any sizes: they make no difference.
    ("GroupNorm", "even"),
    ("GroupNorm", "changing"),
]
FEWEST = 2


def net(norm: str, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    make = NORMS[norm]
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), make(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), make(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def splits(sizing: str, total: int, seed: int) -> Iterator[list[int]]:
    """Yield the batch sizes of the workers, iteration by iteration."""
    made = np.random.default_rng(seed)
    while True:
        if sizing == "changing":
            shares = made.dirichlet(np.ones(4))
            yield (made.multinomial(total - 4 * FEWEST, shares) + FEWEST).tolist()
        else:
            yield [share * total // 16 for share in SIXTEENTHS[sizing]]


class Emulation:
    """Four workers: nets of the same parameters, each with running statistics of its own."""

    def __init__(self, norm: str, seed: int, iterations: int) -> None:
        self._is_joined = "joined" in norm
        first = net(norm, seed)
        self.nets = [first, *(copy.deepcopy(first) for _ in range(3))]
        self._optimizer = torch.optim.SGD(first.parameters(), lr=0.1, momentum=0.9)
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self._optimizer, iterations)
        self._weights = [1.0, 0.0, 0.0, 0.0]

    def gradient(
        self, images: torch.Tensor, labels: torch.Tensor, sizes: list[int]
    ) -> torch.Tensor:
        """Return the weighed gradient of an iteration's samples, dealt out to the workers."""
        sizes = [len(labels), 0, 0, 0] if self._is_joined else sizes
        self._weights = [size / len(labels) for size in sizes]
        parts = zip(self.nets, images.split(sizes), labels.split(sizes), strict=True)
        return torch.stack([
            gradient_of(worker, some, theirs) * (len(theirs) / len(labels))
            for worker, some, theirs in parts if len(theirs)
        ]).sum(0)  # fmt: skip

    def step(self, gradient: torch.Tensor) -> None:
        for parameter in self.nets[0].parameters():
            mine, gradient = gradient.tensor_split([parameter.numel()])
            parameter.grad = mine.view_as(parameter)
        self._optimizer.step()
        self._schedule.step()
        vector = parameters_to_vector(self.nets[0].parameters()).detach()
        for worker in self.nets[1:]:
            vector_to_parameters(vector, worker.parameters())

    @torch.no_grad()
    def average(self) -> None:
        """Average running statistics by batch sizes, as the balancer does after an epoch."""
        for buffers in zip(*(worker.buffers() for worker in self.nets), strict=True):
            if buffers[0].is_floating_point():
                weights = torch.tensor(self._weights)
                mean = torch.einsum("w,wc->c", weights, torch.stack(buffers))
                for buffer in buffers:
                    buffer.copy_(mean)


def gradient_of(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    cross_entropy(model(images), labels).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@torch.no_grad()
def variance_off(model: nn.Module, images: torch.Tensor) -> float | str:
    """Return how far running variances are from those of all the data, in the mean."""
    exact = copy.deepcopy(model)
    layers = [m for m in exact.modules() if isinstance(m, nn.BatchNorm2d)]
    for layer in layers:
        layer.momentum = 1.0
    exact.train()(images)
    ours = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    off = [
        float(((a.running_var - b.running_var).abs() / b.running_var).mean())
        for a, b in zip(ours, layers, strict=True)
        if a.running_var is not None and b.running_var is not None
    ]
    return float(np.mean(off)) if off else "none"


def train(norm: str, sizing: str, total: int, epochs: int, seed: int) -> Row:
    """Train, and return how good the net is, its statistics, and how far gradients were off."""
    training, test = digits()
    images, labels = training.tensors
    emulation = Emulation(norm, seed, epochs * -(-len(labels) // total))
    sizes = splits(sizing, total, seed)
    off: list[float] = []
    apart: list[float] = []
    for epoch in range(epochs):
        batches = torch.from_numpy(numpy_order(len(labels), seed, epoch)).split(total)
        for i, chosen in enumerate(batches):
            part = images[chosen], labels[chosen]
            joined = gradient_of(copy.deepcopy(emulation.nets[0]), *part) if i % 8 == 0 else None
            gradient = emulation.gradient(*part, next(sizes))
            if joined is not None:
                off.append(float((gradient - joined).norm() / joined.norm()))
            emulation.step(gradient)
        models = [copy.deepcopy(worker).eval() for worker in emulation.nets]
        apart = [accuracy(model, test) for model in models]
        emulation.average()
    final = emulation.nets[0].eval()
    return {
        "accuracy": accuracy(final, test),
        "accuracy, worst worker's statistics": min(apart[:1] if "joined" in norm else apart),
        "gradient off": float(np.median(off)),
        "running variance off": variance_off(final, images),
    }


def comparison(total: int, epochs: int, seeds: list[int]) -> Iterator[Row]:
    for norm, sizing in progress(CASES, "training"):
        runs = [train(norm, sizing, total, epochs, seed) for seed in seeds]
        figures = {
            name: value if isinstance(value, str) else float(np.mean([run[name] for run in runs]))
            for name, value in runs[0].items()
        }
        spread = float(np.std([run["accuracy"] for run in runs]))
        yield {"normalisation": norm, "sizes": sizing, **figures, "accuracy, deviation": spread}


def sync_gradient_off(sizing: str, total: int, seed: int) -> float:
    """Return how far the first layer's gradient is off with SyncBatchNorm and weighed gradients.

    Its backward pass gives worker i the gradient of the sum of all workers' losses, each a mean
    over its own batch. Weighing it by x_i / X comes too late for what came from the others.
    """
    training, _ = digits()
    chosen = torch.from_numpy(numpy_order(len(training), seed, 0))[:total]
    images, labels = (part[chosen] for part in training.tensors)
    sizes = next(splits(sizing, total, seed))
    torch.manual_seed(seed)
    first, last = torch.randn(32, 64) / 8, torch.randn(10, 32) / 6
    copies = [first.clone().requires_grad_() for _ in sizes]
    parts = zip(copies, images.flatten(1).split(sizes), strict=True)
    hidden = batch_norm(torch.cat([part @ own.T for own, part in parts]), None, None, training=True)
    outputs = (hidden.relu() @ last.T).split(sizes)
    losses = [cross_entropy(o, y) for o, y in zip(outputs, labels.split(sizes), strict=True)]
    shares = [size / total for size in sizes]
    given = torch.autograd.grad(torch.stack(losses).sum(), copies, retain_graph=True)
    weighed = sum(share * part for share, part in zip(shares, given, strict=True))
    right = sum(torch.autograd.grad(torch.stack(losses) @ torch.tensor(shares), copies))
    assert isinstance(weighed, torch.Tensor)
    assert isinstance(right, torch.Tensor)
    return float((weighed - right).norm() / right.norm())


def sync(total: int, seeds: list[int]) -> Iterator[Row]:
    for sizing in SIZINGS:
        off = [sync_gradient_off(sizing, total, seed) for seed in seeds]
        yield {"sizes": sizing, "gradient off with SyncBatchNorm": float(np.mean(off))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total", type=int, default=32, help="a multiple of 32")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    seeds = parse_seeds(args.seeds)
    what = f"4 emulated workers, total {args.total}, means over seeds {args.seeds}"
    rows = comparison(args.total, args.epochs, seeds)
    show(f"digits, {args.epochs} epochs, {what}", rows, args.json)
    show(f"SyncBatchNorm with weighed gradients, {what}", sync(args.total, seeds), args.json)


if __name__ == "__main__":
    main()
