"""A local Ray whose workers import these tests, and trainings on two of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from evenstep.simulator.ray_engine.session import ray_session
from tests.trainers.comparing import NUM_WORKERS

ROOT = Path(__file__).parents[3]
SETTINGS = {
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    # A worker that has died is noticed by the next poll.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
}


@contextmanager
def started(num_cpus: int) -> Iterator[None]:
    """Start a Ray that listens on the loopback interface only, and leaves no process behind."""
    with patch.dict(os.environ, SETTINGS), ray_session(None, num_cpus=num_cpus):
        yield


def fit(
    train: Callable[[dict[str, Any]], None],
    folder: Path,
    max_failures: int = 0,
    datasets: Mapping[str, Any] | None = None,
    num_workers: int = NUM_WORKERS,
    dataset_config: Any = None,
    **config: Any,
) -> Any:
    """Run a training function on all workers, with this folder in its config."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    trainer = TorchTrainer(
        train,
        train_loop_config={"folder": str(folder), **config},
        torch_config=TorchConfig(backend="gloo", timeout_s=40),
        scaling_config=ScalingConfig(num_workers=num_workers),
        run_config=RunConfig(
            storage_path=str(folder / "ray"),
            name="run",
            failure_config=FailureConfig(max_failures=max_failures),
        ),
        datasets=datasets,
        dataset_config=dataset_config,
    )
    return trainer.fit()


def save(folder: str, name: str, value: Any) -> None:
    """Store what a worker has to say under its number."""
    import ray.train

    worker = ray.train.get_context().get_world_rank()
    torch.save(value, Path(folder) / f"{name}-{worker}.pt")


def load(folder: Path, name: str, num_workers: int = NUM_WORKERS) -> list[Any]:
    """Return what all workers have stored."""
    return [
        torch.load(folder / f"{name}-{worker}.pt", weights_only=False)
        for worker in range(num_workers)
    ]
