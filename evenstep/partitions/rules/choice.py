"""Choice: which samples move, at random or so that both partitions come out mixed.

With labels, each of the two partitions should end with its share of every class that both have
together. The giver hands over its surplus of each class, and the exact split comes as close to
these shares as the number of samples allows. So migrations mix class-skewed partitions at no extra
cost. `Holdings` applies the choice to the partitions of all workers, in memory only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenstep.core import Ints, Limits, as_floats, frozen, split_affine
from evenstep.errors import InvalidSetting
from evenstep.partitions.rules.plan import MigrationPlan, Transfer


@dataclass(frozen=True, eq=False)
class Holdings:
    """The partitions of all workers; no sample is in two of them.

    >>> holdings = Holdings((np.arange(4), np.arange(4, 8)))
    >>> holdings.sizes
    array([4, 4])
    """

    partitions: Sequence[Ints]
    """The samples of each worker."""

    def __post_init__(self) -> None:
        partitions = tuple(frozen(samples) for samples in self.partitions)
        object.__setattr__(self, "partitions", partitions)
        if not partitions:
            raise InvalidSetting("holdings must be those of at least 1 worker, got none")
        for worker, samples in enumerate(partitions):
            if len(samples) == 0:
                raise InvalidSetting(f"partition of worker {worker} must not be empty, got none")
        samples, counts = np.unique(np.concatenate(partitions), return_counts=True)
        if counts.max() > 1:
            twice = int(samples[np.argmax(counts > 1)])
            raise InvalidSetting(f"a sample must be held once, got {twice} twice or more often")

    @property
    def sizes(self) -> Ints:
        """How many samples each worker holds."""
        return np.array([len(samples) for samples in self.partitions], dtype=np.int64)

    def migrate(self, plan: MigrationPlan, seed: int, labels: Ints | None = None) -> Holdings:
        """Return the partitions after the plan was carried out.

        Which samples move is drawn by seed; with labels, those of the whole data set, so that
        giver and receiver come out mixed.

        >>> from evenstep.partitions.rules.plan import plan_migration
        >>> holdings = Holdings((np.arange(4), np.arange(4, 8)))
        >>> after = holdings.migrate(plan_migration(holdings.sizes, [2, 6]), seed=0)
        >>> [samples.tolist() for samples in after.partitions]
        [[1, 3], [0, 2, 4, 5, 6, 7]]
        """
        kinds = None if labels is None else [labels[samples] for samples in self.partitions]
        moved = assign_samples(plan.transfers, self.partitions, seed, kinds)
        partitions = list(self.partitions)
        for transfer, samples in zip(plan.transfers, moved, strict=True):
            giver, receiver = transfer.giver, transfer.receiver
            partitions[giver] = np.setdiff1d(partitions[giver], samples)
            partitions[receiver] = np.union1d(partitions[receiver], samples)
        return Holdings(tuple(partitions))


def choose_samples(
    samples: Ints,
    count: int,
    seed: int | Sequence[int],
    labels: Ints | None = None,
    receiver_labels: Ints | None = None,
) -> Ints:
    """Return `count` of a giver's samples, drawn by seed; with labels, stratified by them.

    `labels` are those of the samples, in their order; `receiver_labels` those of the receiver's.

    >>> choose_samples(np.arange(8), 4, seed=0).tolist()
    [2, 3, 4, 6]
    >>> labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    >>> labels[choose_samples(np.arange(8), 4, 0, labels)].tolist()
    [0, 0, 1, 1]
    >>> labels[choose_samples(np.arange(8), 3, 0, labels, np.array([0, 0, 0, 2]))].tolist()
    [0, 1, 1]
    """
    if not 0 <= count <= len(samples):
        raise InvalidSetting(f"samples to choose must be 0 to {len(samples)}, got {count}")
    if labels is not None and len(labels) != len(samples):
        raise InvalidSetting(f"labels must be one per sample ({len(samples)}), got {len(labels)}")
    order = np.random.default_rng(seed).permutation(len(samples))
    if labels is None:
        return np.sort(samples[order[:count]])
    theirs = np.zeros(0, dtype=labels.dtype) if receiver_labels is None else receiver_labels
    classes = np.unique(np.concatenate([labels, theirs]))
    quota = class_counts(_histogram(labels, classes), _histogram(theirs, classes), count)
    # The first samples of each class, up to its quota, in the drawn order.
    drawn = np.searchsorted(classes, labels[order])
    by_class = np.argsort(drawn, kind="stable")
    starts = np.searchsorted(drawn[by_class], np.arange(len(classes)))
    rank = np.arange(len(order)) - starts[drawn[by_class]]
    chosen = by_class[rank < quota[drawn[by_class]]]
    return np.sort(samples[order[chosen]])


def class_counts(giver: Ints, receiver: Ints, count: int) -> Ints:
    """Return how many samples of each class move, given the counts of giver and receiver.

    >>> class_counts(np.array([50, 50, 0, 0]), np.array([0, 0, 50, 50]), 50)
    array([25, 25,  0,  0])
    >>> class_counts(np.array([60, 40]), np.array([10, 0]), 10)
    array([3, 7])
    """
    both = giver + receiver
    wanted = both * ((int(receiver.sum()) + count) / max(1, int(both.sum()))) - receiver
    limits = Limits(np.zeros_like(giver), giver)
    return split_affine(count, as_floats(-wanted), np.ones(len(giver)), limits)


def assign_samples(
    transfers: Sequence[Transfer],
    samples: Sequence[Ints],
    seed: int,
    labels: Sequence[Ints] | None = None,
) -> tuple[Ints, ...]:
    """Return the samples of each transfer, given those of each worker, and no sample twice.

    >>> both = assign_samples([Transfer(0, 1, 2), Transfer(0, 2, 1)], [np.arange(4)] * 3, seed=0)
    >>> [some.tolist() for some in both]
    [[0, 2], [1]]
    """
    left = [np.asarray(some) for some in samples]
    kinds = None if labels is None else [np.asarray(some) for some in labels]
    assigned = []
    for number, transfer in enumerate(transfers):
        giver, receiver = transfer.giver, transfer.receiver
        own = None if kinds is None else kinds[giver]
        theirs = None if kinds is None else kinds[receiver]
        chosen = choose_samples(left[giver], transfer.count, (seed, number), own, theirs)
        stays = ~np.isin(left[giver], chosen)
        if kinds is not None:
            kinds[receiver] = np.concatenate([kinds[receiver], kinds[giver][~stays]])
            kinds[giver] = kinds[giver][stays]
        left[giver] = left[giver][stays]
        assigned.append(chosen)
    return tuple(assigned)


def _histogram(labels: Ints, classes: Ints) -> Ints:
    return np.bincount(np.searchsorted(classes, labels), minlength=len(classes)).astype(np.int64)
