"""Holdings: every sample is held once, before and after migrations."""

import numpy as np
import pytest

from evenstep.errors import InvalidSetting
from evenstep.partitions import plan_migration
from evenstep.partitions.rules.choice import Holdings
from evenstep.partitions.rules.partitioning import deal_by_class

LABELS = np.arange(500) % 10
TARGETS = np.array([50, 75, 100, 125, 150])


def migrated(seed=0, labels=None):
    before = Holdings(deal_by_class(LABELS, 5))
    return before, before.migrate(plan_migration(before.sizes, TARGETS), seed, labels)


def test_migration_loses_and_doubles_no_sample_and_reaches_the_targets():
    before, after = migrated()
    assert after.sizes.tolist() == TARGETS.tolist()
    assert np.sort(np.concatenate(after.partitions)).tolist() == list(range(500))
    stayed = [np.isin(a, b).sum() for a, b in zip(before.partitions, after.partitions, strict=True)]
    assert 500 - sum(stayed) == 75
    assert before.sizes.tolist() == [100] * 5


def test_same_seed_moves_the_same_samples_and_another_one_others():
    one, same, other = (migrated(seed)[1].partitions[4].tolist() for seed in (3, 3, 4))
    assert one == same != other


def test_with_labels_the_classes_of_a_giver_move_alike():
    before, after = migrated(labels=LABELS)
    came = np.setdiff1d(after.partitions[4], before.partitions[4])
    assert np.bincount(LABELS[came]).tolist() == [25, 25]


@pytest.mark.parametrize(
    ("partitions", "message"),
    [
        ([[0, 1], [1, 2]], "a sample must be held once, got 1 twice or more often"),
        ([[0, 1], []], "partition of worker 1 must not be empty, got none"),
        ([], "holdings must be those of at least 1 worker, got none"),
    ],
)
def test_partitions_that_cannot_be_are_refused(partitions, message):
    with pytest.raises(InvalidSetting, match=message):
        Holdings(partitions)
