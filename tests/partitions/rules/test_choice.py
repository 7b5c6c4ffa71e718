"""Which samples move: by seed, without repetition, and mixed where labels are given."""

import numpy as np
import pytest

from evenstep.core import Limits
from evenstep.errors import InvalidSetting
from evenstep.partitions import assign_samples, choose_samples, plan_migration, target_sizes
from evenstep.partitions.rules.choice import class_counts


def two_classes_each(each=200):
    """Samples and labels of five workers with two of ten classes each."""
    labels = np.repeat(np.arange(10), each)
    samples = np.arange(len(labels))
    return [samples[labels // 2 == w] for w in range(5)], labels


def test_the_seed_alone_says_which():
    samples = np.arange(100, 200)
    chosen = choose_samples(samples, 30, seed=7)
    assert len(set(chosen.tolist())) == 30
    assert np.isin(chosen, samples).all()
    assert chosen.tolist() == choose_samples(samples, 30, seed=7).tolist()
    assert chosen.tolist() != choose_samples(samples, 30, seed=8).tolist()


def test_every_sample_is_as_likely():
    times = np.zeros(20)
    for seed in range(2000):
        times[choose_samples(np.arange(20), 5, seed)] += 1
    assert np.abs(times - 500).max() < 5 * np.sqrt(500 * 0.75)


def test_labels_alone_keep_the_givers_mix():
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    chosen = choose_samples(np.arange(100), 20, 0, labels)
    assert np.bincount(labels[chosen]).tolist() == [12, 6, 2]


def test_the_receiver_gets_what_it_lacks():
    labels = np.repeat([0, 1], [50, 50])
    chosen = choose_samples(np.arange(100), 20, 0, labels, np.zeros(100, dtype=int))
    assert np.bincount(labels[chosen], minlength=2).tolist() == [0, 20]


@pytest.mark.parametrize("seed", range(20))
def test_class_counts_are_the_nearest_to_an_equal_mix(seed):
    rng = np.random.default_rng(seed)
    giver, receiver = rng.integers(0, 6, 3), rng.integers(0, 6, 3)
    count = int(rng.integers(0, giver.sum() + 1))
    both = giver + receiver
    wanted = both * (receiver.sum() + count) / max(1, both.sum()) - receiver

    def miss(moved):
        return ((np.array(moved) - wanted) ** 2).sum()

    grids = np.meshgrid(*(np.arange(have + 1) for have in giver), indexing="ij")
    every = np.stack(grids, axis=-1).reshape(-1, 3)
    best = min(miss(moved) for moved in every if sum(moved) == count)
    ours = class_counts(giver, receiver, count)
    assert ours.sum() == count
    assert np.all((ours >= 0) & (ours <= giver))
    assert miss(ours) <= best + 1e-9


def test_a_migration_mixes_class_skewed_partitions_and_moves_each_sample_once():
    samples, labels = two_classes_each()
    sizes = [len(own) for own in samples]
    plan = plan_migration(sizes, target_sizes(2000, [64, 96, 128, 160, 192], Limits.of(5)))
    moved = assign_samples(plan.transfers, samples, 0, [labels[own] for own in samples])
    everything = np.concatenate(moved)
    assert len(np.unique(everything)) == len(everything) == plan.num_moved
    for transfer, some in zip(plan.transfers, moved, strict=True):
        assert np.isin(some, samples[transfer.giver]).all()
        classes = np.unique(labels[some], return_counts=True)[1]
        assert classes.tolist() == [transfer.count // 2] * 2


def test_what_cannot_be_is_refused():
    with pytest.raises(InvalidSetting, match="must be 0 to 3, got 4"):
        choose_samples(np.arange(3), 4, seed=0)
    with pytest.raises(InvalidSetting, match=r"one per sample \(3\), got 2"):
        choose_samples(np.arange(3), 1, seed=0, labels=np.zeros(2, dtype=int))
