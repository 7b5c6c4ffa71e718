"""Partitions by class: every sample is held once, and classes are on the intended workers."""

import numpy as np
import pytest

from evenstep.errors import InvalidSetting
from evenstep.simulator.workloads.class_partitions import (
    partition_by_class,
    partition_by_speed,
    partition_dirichlet,
)

LABELS = np.random.default_rng(0).integers(0, 10, 1000)


@pytest.mark.parametrize(
    "parts",
    [
        partition_by_class(LABELS, [range(5), range(5, 10), range(3, 7)]),
        partition_by_speed(LABELS, np.array([1.0, 5.0, 3.0])),
        partition_dirichlet(LABELS, 4, alpha=0.1, seed=2),
        partition_dirichlet(LABELS, 1, alpha=5.0),
    ],
)
def test_every_sample_is_held_once(parts):
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))
    assert all((np.diff(part) > 0).all() for part in parts)


def test_workers_hold_their_classes_and_share_those_of_several():
    first, second = partition_by_class(LABELS, [range(5), range(10)])
    assert set(LABELS[first]) == set(range(5))
    for label in range(5):
        counts = [(LABELS[part] == label).sum() for part in (first, second)]
        assert abs(counts[0] - counts[1]) <= 1


def test_fast_workers_hold_the_first_classes():
    parts = partition_by_speed(LABELS, np.array([10.0, 90.0, 20.0, 80.0]))
    classes = [set(LABELS[part]) for part in parts]
    fast, slow = {0, 1, 2, 3, 4}, {5, 6, 7, 8, 9}
    assert classes == [slow, fast, slow, fast]


def test_a_small_alpha_skews_and_a_large_one_does_not():
    def largest_share(alpha):
        parts = partition_dirichlet(LABELS, 4, alpha, seed=1)
        counts = np.array([np.bincount(LABELS[part], minlength=10) for part in parts])
        return (counts.max(axis=0) / counts.sum(axis=0)).mean()

    assert largest_share(0.05) > 0.8
    assert largest_share(1000.0) < 0.3


def test_partitions_depend_on_the_seed_alone():
    first, again, other = (partition_dirichlet(LABELS, 3, 0.5, seed=s) for s in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert any(len(a) != len(b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: partition_by_class(np.array([0, 1, 2]), [{0}, {1}]),
            "every class must be held by a worker, got none for 2",
        ),
        (lambda: partition_dirichlet(LABELS, 2, 0.0), "alpha must be finite and > 0, got 0.0"),
        (lambda: partition_dirichlet(LABELS, 0, 1.0), "the number of workers must be >= 1, got 0"),
        (
            lambda: partition_by_speed(LABELS, np.array([1.0])),
            "a partition by speed needs at least 2 workers, got 1",
        ),
        (
            lambda: partition_by_class(np.empty(0, dtype=int), [{0}]),
            "labels must be one per sample, got shape (0,)",
        ),
    ],
)
def test_invalid_settings_are_refused(call, message):
    with pytest.raises(InvalidSetting) as caught:
        call()
    assert str(caught.value) == message
