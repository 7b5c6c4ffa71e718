"""The train loader: one of the balancer, in place of the DataLoader that Lightning has prepared.

Lightning has given that DataLoader a DistributedSampler by then, so that the loader of the balancer
goes through the same samples in the same order.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from evenstep.errors import InvalidSetting
from evenstep.lightning.trainers import fabric_of
from evenstep.pytorch import Balancer
from evenstep.pytorch.loader_options import LoaderOptions


def total_of(loader: Any, num_workers: int) -> int:
    """Return the samples of all workers in one iteration of a stock Trainer with this loader."""
    if not isinstance(loader, DataLoader):
        raise InvalidSetting(
            "the train loader must be a DataLoader, as the balancer makes its batches, got a "
            f"{type(loader).__name__}"
        )
    if loader.batch_size is None:
        raise InvalidSetting(
            "the train loader must have a batch_size, as the balancer makes its batches, got "
            "batch_size=None or a batch_sampler"
        )
    return loader.batch_size * num_workers


def make_train_loader(balancer: Balancer, trainer: Any, loader: Any, options: LoaderOptions) -> Any:
    """Return the loader of a balancer, in place of this one of a Trainer."""
    options = {**_options_of_processes(trainer, loader), **options}
    sampler = loader.sampler
    if isinstance(loader.dataset, IterableDataset):
        return balancer.loader(loader, **options)
    if not isinstance(sampler, DistributedSampler):
        raise InvalidSetting(
            "the train loader must have a DistributedSampler where use_distributed_sampler is "
            f"False, got a {type(sampler).__name__}, with which every worker goes through the "
            "whole data set"
        )
    wrapper = fabric_of(trainer, "utilities.distributed").DistributedSamplerWrapper
    if isinstance(sampler, wrapper):
        return _with_wrapped_sampler(balancer, loader, sampler, options)
    return balancer.loader(loader, **options)


def _options_of_processes(trainer: Any, loader: Any) -> LoaderOptions:
    """Return how loading processes are seeded, after `seed_everything(..., workers=True)`."""
    if int(os.environ.get("PL_SEED_WORKERS", "0")) and loader.worker_init_fn is None:
        seed = fabric_of(trainer, "utilities.seed").pl_worker_init_function
        return {"worker_init_fn": partial(seed, rank=trainer.global_rank)}
    return {}


def _with_wrapped_sampler(
    balancer: Balancer, loader: Any, sampler: Any, options: LoaderOptions
) -> Any:
    """Return a loader in the order of a sampler of the user's own, which Lightning has wrapped."""
    in_order: LoaderOptions = {
        "sampler": WholeOrder(sampler),
        "seed": sampler.seed,
        "pad": "truncate" if sampler.drop_last else True,
        **options,
    }
    made: Any = balancer.loader(loader, **in_order)
    # Where Lightning looks for a sampler to set the epoch on, in addition to `loader.sampler`.
    made.batch_sampler = loader.batch_sampler
    return made


class WholeOrder:
    """The order of all workers' samples by a sampler that divides them between the workers."""

    def __init__(self, sampler: DistributedSampler[Any]) -> None:
        self._sampler = sampler

    def __len__(self) -> int:
        return len(self._sampler.dataset)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[int]:
        alone = copy.copy(self._sampler)
        alone.num_replicas, alone.rank = 1, 0
        alone.num_samples = alone.total_size = len(self)
        return iter(alone)
