"""Samples of workers: every sample of an epoch, once."""

import numpy as np
import pytest

from evenstep.core.dealing import numpy_order
from evenstep.errors import InvalidSetting
from evenstep.simulator.engine.samples import SharedOrder, WorkerStreams


def slices(sizes_of_iterations, seed=3):
    order = SharedOrder(num_samples=10, seed=seed)
    return [
        [order.deal(worker, k, np.array(sizes)).tolist() for worker in range(len(sizes))]
        for k, sizes in enumerate(sizes_of_iterations)
    ]


def test_shared_order_concatenates_the_epochs():
    dealt = slices([[2, 2]] * 5)
    together = [s for both in dealt for worker in both for s in worker]
    expected = np.concatenate([numpy_order(10, 3, 0), numpy_order(10, 3, 1)]).tolist()
    assert together == expected


def test_iteration_has_the_same_samples_however_they_are_dealt():
    for even, uneven in zip(slices([[2, 2]] * 5), slices([[4, 0], [1, 3]] * 2), strict=False):
        assert sorted(even[0] + even[1]) == sorted(uneven[0] + uneven[1])


def test_slice_may_be_larger_than_the_data():
    ((one, other),) = slices([[13, 12]])
    assert sorted(one + other) == sorted([*range(10), *range(10), *numpy_order(10, 3, 2)[:5]])


def test_shares_of_one_epoch_make_up_the_data():
    streams = WorkerStreams.of_shares(num_samples=12, num_workers=3, seed=0)
    sizes = np.array([2, 4, 1])
    dealt = [
        np.concatenate([streams.deal(worker, k, sizes) for k in range(4 // sizes[worker])])
        for worker in range(3)
    ]
    assert sorted(np.concatenate(dealt)) == list(range(12))


def test_stream_continues_into_the_next_pass_in_the_middle_of_a_batch():
    streams = WorkerStreams.of_shares(num_samples=4, num_workers=1, seed=0)
    dealt = [streams.deal(0, k, np.array([3])).tolist() for k in range(4)]
    expected = np.concatenate([numpy_order(4, 0, epoch) for epoch in range(3)]).tolist()
    assert [s for batch in dealt for s in batch] == expected


def test_worker_stays_within_its_partition_and_reshuffles_it():
    partitions = [np.arange(5), np.arange(5, 20)]
    streams = WorkerStreams.of_partitions(partitions, seed=0)
    sizes = np.array([5, 5])
    passes = [streams.deal(0, k, sizes).tolist() for k in range(3)]
    assert [sorted(samples) for samples in passes] == [[0, 1, 2, 3, 4]] * 3
    assert passes[0] != passes[1]
    assert set(streams.deal(1, 0, sizes).tolist()) <= set(range(5, 20))


def test_worker_without_samples_is_refused():
    with pytest.raises(InvalidSetting, match=r"every worker\b.*\bsample\b.*2\b.*\b3\b"):
        WorkerStreams.of_shares(num_samples=2, num_workers=3, seed=0)
    with pytest.raises(InvalidSetting, match="partition of worker 1 must not be empty"):
        WorkerStreams.of_partitions([np.arange(3), np.arange(0)], seed=0)
