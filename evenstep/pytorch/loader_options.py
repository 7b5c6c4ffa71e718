"""The options of loaders: those of a DataLoader, and our own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from numpy.typing import ArrayLike

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
    seed: int
    seed_samples: bool
    """Whether augmentation depends only on (seed, epoch, sample), and not on the worker."""
    counts: ArrayLike | None
    """The work of each sample, such as its number of tokens."""


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
