"""Train a small convolutional net on scikit-learn's digits with Ray Train.

Start it with python; --storage is where checkpoints go, on a cluster a place that all machines see.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils import data

EPOCHS = 5


def train_loop_per_worker() -> None:
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    samples = data.TensorDataset(images, torch.tensor(digits.target))
    train, test = data.random_split(samples, [0.85, 0.15])

    net = nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )
    batches = data.DataLoader(train, batch_size=32, shuffle=True)
    model = ray.train.torch.prepare_model(net)
    loader = ray.train.torch.prepare_data_loader(batches)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    start = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "state.pt", weights_only=False)
        start = state["epoch"] + 1
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    for epoch in range(start, EPOCHS):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        metrics = {"epoch": epoch, "accuracy": accuracy(net, test)}
        state = {
            "epoch": epoch,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        report(metrics, state)


def accuracy(net: nn.Module, test: data.Dataset[Any]) -> float:
    with torch.no_grad():
        x, y = next(iter(data.DataLoader(test, batch_size=1000)))
        device = ray.train.torch.get_device()
        return float((net(x.to(device)).argmax(dim=1).cpu() == y).float().mean())


def report(metrics: dict[str, Any], state: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            torch.save(state, Path(folder) / "state.pt")
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report(metrics, checkpoint=checkpoint)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2, help="at least 2")
    parser.add_argument("--gpu", action="store_true", help="one GPU for each worker")
    parser.add_argument("--storage", help="default: Ray's own, ~/ray_results")
    arguments = parser.parse_args()
    trainer = ray.train.torch.TorchTrainer(
        train_loop_per_worker,
        scaling_config=ray.train.ScalingConfig(
            num_workers=arguments.workers, use_gpu=arguments.gpu
        ),
        run_config=ray.train.RunConfig(
            storage_path=arguments.storage,
            failure_config=ray.train.FailureConfig(max_failures=2),
        ),
    )
    result = trainer.fit()
    print(f"accuracy {result.metrics['accuracy']:.1%} after {EPOCHS} epochs")
