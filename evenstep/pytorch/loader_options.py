"""What a user may set for a loader: the settings of a DataLoader, and those of ours."""

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
    """Settings of a DataLoader, as far as they are not ours to choose."""

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
    """Settings of `Balancer.loader`."""

    shuffle: bool
    sampler: Iterable[int] | None
    drop_last: bool
    seed: int
    seed_samples: bool
    """Whether each sample has randomness of its own, whichever worker processes it."""
    counts: ArrayLike | None
    """The work of each sample, such as its tokens, where samples are unequal work."""


class LocalLoaderOptions(LoadingOptions, total=False):
    """Settings of `Balancer.local_loader`."""

    rule: MigrationRule | None
    """When samples migrate between the workers' partitions."""
    serving: Serving | None
    importance: bool
    shuffle: bool
    seed: int


def check_loading(settings: Mapping[str, Any]) -> None:
    """Refuse those settings of a DataLoader that are ours to choose."""
    for name in ("batch_size", "batch_sampler"):
        if name in settings:
            raise InvalidSetting(
                f"{name} must be left out, as batch sizes are planned: give the balancer the total"
            )
    if not settings.get("in_order", True):
        raise InvalidSetting("in_order must be True: every worker's iterations have an order")
