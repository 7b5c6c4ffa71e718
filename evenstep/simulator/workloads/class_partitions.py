"""Partitions skewed by class, for experiments with local data.

Exactly one worker holds each sample. Positions are in rising order, one array per worker.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from evenstep.core import Floats, Ints
from evenstep.errors import InvalidSetting


def partition_by_class(labels: Ints, held: Sequence[Collection[int]], seed: int = 0) -> list[Ints]:
    """Split each class evenly between the workers that hold it.

    >>> labels = np.array([0, 1, 2, 0, 1, 2])
    >>> partition_by_class(labels, held=[{0, 1}, {2}])
    [array([0, 1, 3, 4]), array([2, 5])]
    """
    _require_samples(labels, len(held))
    rng = np.random.default_rng(seed)
    parts: list[list[Ints]] = [[] for _ in held]
    for label in np.unique(labels).tolist():
        holders = [worker for worker, classes in enumerate(held) if label in classes]
        if not holders:
            raise InvalidSetting(f"every class must be held by a worker, got none for {label}")
        samples = rng.permutation(np.flatnonzero(labels == label))
        for worker, part in zip(holders, np.array_split(samples, len(holders)), strict=True):
            parts[worker].append(part)
    return [_joined(part) for part in parts]


def partition_by_speed(labels: Ints, speeds: Floats, seed: int = 0) -> list[Ints]:
    """Give the first half of the classes to the faster half of the workers, the rest to the others.

    >>> labels = np.array([0, 1, 2, 3, 3, 2, 1, 0])
    >>> partition_by_speed(labels, speeds=np.array([30.0, 90.0]))
    [array([2, 3, 4, 5]), array([0, 1, 6, 7])]
    """
    _require_samples(labels, len(speeds))
    if len(speeds) < 2:
        raise InvalidSetting(f"a partition by speed needs at least 2 workers, got {len(speeds)}")
    classes = np.unique(labels)
    first = set(classes[: (len(classes) + 1) // 2].tolist())
    rest = set(classes.tolist()) - first
    fastest = np.argsort(-speeds, kind="stable")[: len(speeds) // 2]
    is_fast = np.isin(np.arange(len(speeds)), fastest)
    return partition_by_class(labels, [first if fast else rest for fast in is_fast], seed)


def partition_dirichlet(labels: Ints, num_workers: int, alpha: float, seed: int = 0) -> list[Ints]:
    """Split every class in proportions drawn from a Dirichlet distribution.

    A small `alpha` concentrates each class on few workers; a large one spreads it evenly.

    >>> parts = partition_dirichlet(np.array([0, 1] * 500), num_workers=3, alpha=0.1)
    >>> sum(map(len, parts))
    1000
    """
    _require_samples(labels, num_workers)
    if not 0 < alpha < np.inf:
        raise InvalidSetting(f"alpha must be finite and > 0, got {alpha}")
    rng = np.random.default_rng(seed)
    parts: list[list[Ints]] = [[] for _ in range(num_workers)]
    for label in np.unique(labels):
        samples = rng.permutation(np.flatnonzero(labels == label))
        shares = np.cumsum(rng.dirichlet(np.full(num_workers, alpha)))
        cuts = np.round(shares[:-1] * len(samples)).astype(np.int64)
        for part, piece in zip(parts, np.split(samples, cuts), strict=True):
            part.append(piece)
    return [_joined(part) for part in parts]


def _joined(parts: list[Ints]) -> Ints:
    return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *parts]))


def _require_samples(labels: Ints, num_workers: int) -> None:
    if labels.ndim != 1 or labels.size == 0:
        raise InvalidSetting(f"labels must be one per sample, got shape {labels.shape}")
    if num_workers < 1:
        raise InvalidSetting(f"the number of workers must be >= 1, got {num_workers}")
