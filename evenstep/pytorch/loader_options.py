"""The options of loaders: those of a DataLoader, also of an existing one, and our own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from numpy.typing import ArrayLike
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
)

from evenstep.core.stock_order import Pad
from evenstep.errors import InvalidSetting

if TYPE_CHECKING:
    from evenstep.partitions import MigrationRule
    from evenstep.pytorch.background_processes import Serving


class LoadingOptions(TypedDict, total=False):
    """Options that are passed on to a DataLoader."""

    collate_fn: Callable[[list[Any]], Any] | None
    num_workers: int
    pin_memory: bool
    pin_memory_device: str
    prefetch_factor: int | None
    persistent_workers: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: torch.Generator | None
    in_order: bool


class LoaderOptions(LoadingOptions, total=False):
    """Options of `Balancer.loader` and `ShardedBalancer.loader`."""

    shuffle: bool
    sampler: Iterable[int] | None
    """The order of the whole data set, in place of `shuffle`; only that of worker 0 is used."""
    drop_last: bool
    """Whether to leave out the last iteration of an epoch if it is smaller than the others."""
    pad: Pad
    """Whether an epoch repeats samples, so that their number is a multiple of the workers': True
    and "truncate" are what DistributedSampler does, False visits each sample once."""
    seed: int
    seed_samples: bool
    """Whether augmentation depends only on (seed, epoch, sample), and not on the worker."""
    counts: ArrayLike | None
    """The work of each sample, such as its number of tokens."""
    stop: str
    """Of a stream: whether an epoch ends when `all` streams are at their ends, or the `first`."""
    ahead: int
    """Of a stream: the number of batches that are read ahead."""


class LocalLoaderOptions(LoadingOptions, total=False):
    """Options of `Balancer.local_loader`."""

    rule: MigrationRule | None
    """When samples migrate between the workers' partitions."""
    serving: Serving | None
    """How the agents that move samples listen; it goes with a rule."""
    importance: bool
    """Whether gradients are weighted by the sizes of partitions instead of batch sizes."""
    shuffle: bool
    seed: int


def check_loading(settings: Mapping[str, Any]) -> None:
    """Raise InvalidSetting for settings of a DataLoader that the balancer chooses."""
    for name in ("batch_size", "batch_sampler"):
        if name in settings:
            raise InvalidSetting(
                f"{name} must be left out, as batch sizes are planned: give the balancer the total"
            )
    if not settings.get("in_order", True):
        raise InvalidSetting("in_order must be True: every worker's iterations have an order")


OF_PROCESSES = ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context")
"""Options of a DataLoader that only loading processes have."""


def options_of(
    loader: DataLoader[Any], num_samples: int, total: int, num_replicas: int, given: LoaderOptions
) -> dict[str, Any]:
    """Return the options of a DataLoader, overridden by those that are given.

    Its data set has `num_samples`; its batches on `num_replicas` workers must have `total` samples
    together.
    """
    batches = batches_of(loader)
    if batches.batch_size * num_replicas != total:
        raise InvalidSetting(
            f"the batch size of a DataLoader must be the balancer's total, {total}, divided by the "
            f"number of workers, {num_replicas}, got {batches.batch_size}"
        )
    options = loading_of(loader, given.get("num_workers", loader.num_workers))
    options |= _dealing_of(batches)
    if "shuffle" not in given and "sampler" not in given:
        options |= _order_of(batches.sampler, num_samples, num_replicas)
    return {**options, **given}


def loading_of(loader: DataLoader[Any], num_workers: int) -> dict[str, Any]:
    """Return how a DataLoader loads: its collation, and its processes if there will be any."""
    return {
        name: getattr(loader, name)
        for name in LoadingOptions.__optional_keys__
        if hasattr(loader, name) and (num_workers > 0 or name not in OF_PROCESSES)
    }


def batches_of(loader: DataLoader[Any]) -> BatchSampler:
    """Return the BatchSampler of a DataLoader; raise InvalidSetting for one of the user's own."""
    batches = loader.batch_sampler
    # A subclass may compose batches by rules of its own.
    if type(batches) is not BatchSampler:
        got = "batch_size=None" if batches is None else f"a {type(batches).__name__}"
        raise InvalidSetting(
            "the batches of a DataLoader must be those of torch's BatchSampler, as their sizes are "
            f"planned, got {got}: pass loader.dataset, and what orders it as sampler="
        )
    return batches


def _dealing_of(batches: BatchSampler) -> dict[str, Any]:
    """Return `drop_last`, and `seed` and `pad` if they are known."""
    sampler: Any = batches.sampler
    if isinstance(sampler, DistributedSampler):
        pad: Pad = "truncate" if sampler.drop_last else True
        return {"drop_last": batches.drop_last, "seed": sampler.seed, "pad": pad}
    generator = sampler.generator if type(sampler) is RandomSampler else None
    seed = {} if generator is None else {"seed": generator.initial_seed()}
    return {"drop_last": batches.drop_last, **seed}


def _order_of(sampler: Any, num_samples: int, num_replicas: int) -> dict[str, Any]:
    """Return `shuffle` for the samplers of torch that it describes, and `sampler` for others."""
    if hasattr(sampler, "num_replicas"):
        return {"shuffle": _is_shuffled(sampler, num_samples, num_replicas)}
    if type(sampler) is SequentialSampler and len(sampler) == num_samples:
        return {"shuffle": False}
    if type(sampler) is RandomSampler and not sampler.replacement and len(sampler) == num_samples:
        return {"shuffle": True}
    return {"sampler": sampler}


def _is_shuffled(sampler: Any, num_samples: int, num_replicas: int) -> bool:
    """Whether a sampler that yields only the samples of its own worker shuffles all of them."""
    divided = len(getattr(sampler, "dataset", ())), sampler.num_replicas
    if type(sampler) is not DistributedSampler or divided != (num_samples, num_replicas):
        raise InvalidSetting(
            "a sampler of one worker's samples must be a DistributedSampler of the whole data set, "
            f"{num_samples} samples for {num_replicas} workers, got a {type(sampler).__name__} for "
            f"{sampler.num_replicas}: pass shuffle=, or as sampler= an order of the whole data set"
        )
    return bool(sampler.shuffle)
