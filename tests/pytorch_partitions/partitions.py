"""Partitions to train from, whose samples say which they are, and loops over them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from evenstep.partitions.store import create_partitions
from evenstep.pytorch import Balancer, LocalLoader
from tests.pytorch.setup import FEATURES, balanced, cycle, model_of


def make(folder: Path, *sizes: int, **settings: Any) -> list[str]:
    """Make a partition per worker, with the given numbers of samples, and return their folders."""
    count = sum(sizes)
    drawn = np.random.default_rng(5)
    samples = drawn.standard_normal((count, FEATURES)).astype(np.float32)
    labels = drawn.integers(0, 3, count)
    dealt = np.split(np.arange(count), np.cumsum(sizes)[:-1])
    folders = [folder / f"w{worker}" for worker in range(len(sizes))]
    create_partitions(folders, (samples, labels, np.arange(count)), dealt, label="1", **settings)
    return [str(each) for each in folders]


@contextmanager
def training(
    folders: Sequence[str], table: Sequence[Sequence[int]], minimum: int = 1, **settings: Any
) -> Iterator[tuple[Balancer, LocalLoader]]:
    """Train from this worker's folder, with batch sizes of a list."""
    log = settings.pop("log", None)
    total = sum(table[0])
    with balanced(total, policy=cycle(*table), minimum=minimum, warm_up=0, log=log) as balancer:
        yield balancer, balancer.local_loader(folders[dist.get_rank()], **settings)


def endless(loader: LocalLoader) -> Iterator[Any]:
    """Yield batches, epoch after epoch."""
    return itertools.chain.from_iterable(iter(loader) for _ in itertools.count())


def train_on(balancer: Balancer, batch: Any) -> None:
    """Let an iteration come to its end."""
    samples, labels, _ = batch
    cross_entropy(model_of(balancer)(samples), labels).backward()


def one_by_one(numbers: Sequence[int], size: int) -> bool:
    """Whether samples were used in traversals of this size, each sample once in each."""
    whole = [numbers[at : at + size] for at in range(0, len(numbers) - size + 1, size)]
    tail = numbers[len(whole) * size :]
    own = set(numbers)
    return (
        len(own) == size and all(set(one) == own for one in whole) and len(set(tail)) == len(tail)
    )
