"""The number of samples that move, and the least possible: `benchmarks.partitions_moved`."""

import numpy as np
import pytest

from benchmarks.partitions_clairvoyant import fewest_within, widest_gap
from benchmarks.partitions_moved import CASES, run
from evenstep.core import Limits
from evenstep.partitions import plan_migration, target_sizes


def test_few_more_samples_move_than_have_to_where_speeds_are_stable():
    found = run(CASES[0], seed=7)
    assert found.moved <= 1.2 * found.fewest
    assert found.within == pytest.approx(found.fewest, rel=0.01)
    assert found.gap < 2 < found.largest_gap < 2.3


def test_single_migration_does_where_batch_sizes_stay():
    before, sizes = np.array([40, 40, 40]), np.tile([2, 4, 6], (60, 1))
    targets = target_sizes(120, sizes.sum(axis=0), Limits.of(3))
    assert widest_gap(targets, sizes) == pytest.approx(0.0)
    assert fewest_within(2.0, before, sizes, every=10) == plan_migration(before, targets).num_moved


def test_more_has_to_move_within_a_bound_where_batch_sizes_swing():
    """Worker 0 is fast, then slow, three times; in all it consumes as much as worker 1."""
    before = np.array([40, 40])
    sizes = np.tile(np.repeat([[6, 2], [2, 6]], 30, axis=0), (3, 1))
    assert widest_gap(before, sizes) == pytest.approx(3.0)
    assert fewest_within(3.0, before, sizes, every=10) == 0
    assert fewest_within(2.0, before, sizes, every=10) > 0
    assert fewest_within(1.0, before, sizes, every=10) > fewest_within(2.0, before, sizes, every=10)
