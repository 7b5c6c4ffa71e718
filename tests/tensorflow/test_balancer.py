"""The balancer of a loop: what it learns and keeps, what it tells, and what it refuses."""

from __future__ import annotations

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from evenstep import runlog
from tests.tensorflow.setup import FEATURES, balanced, exchange

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]

TOTAL = 16


def followed(strategy, log):
    """Balance workers of which one really takes four times as long per sample."""
    with balanced(strategy, TOTAL, policy="equal_finish", log=log) as balancer:
        dataset = balancer.dataset(np.arange(TOTAL * 12))
        for samples in dataset:
            time.sleep(len(samples) * (0.012 if balancer.worker == 1 else 0.003))
            exchange(balancer)
        state = balancer.state_dict()
        sizes = balancer.newest_plan.sizes.tolist()
        summary = balancer.summary()
    with balanced(strategy, TOTAL, policy="equal_finish") as again:
        again.load_state_dict(state)
        return sizes, again.plan.sizes.tolist(), again.iteration, summary


def test_sizes_follow_the_speeds_and_a_checkpoint_keeps_them(cluster, tmp_path):
    path = tmp_path / "run.jsonl"
    for sizes, restored, iteration, summary in cluster.run(followed, log=str(path)):
        assert sizes[0] >= 11 and sum(sizes) == TOTAL
        assert restored == sizes and iteration == 12
        assert summary.startswith("evenstep: batch sizes ")
    log = runlog.read(path)
    assert log.header.job == "tensorflow"
    assert log.matrix("batch_sizes").sum(axis=1).tolist() == [TOTAL] * 12


def disagreeing(strategy):
    worker = int(strategy.cluster_resolver.task_id)
    with balanced(strategy, TOTAL + worker):
        pass


def of_other_data(strategy):
    worker = int(strategy.cluster_resolver.task_id)
    with balanced(strategy, TOTAL) as balancer:
        balancer.dataset(np.arange(50), seed=worker)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [(disagreeing, "total must be the same on all workers, got 16 on worker 0 and 17 on worker 1"),
     (of_other_data, "seed must be the same on all workers, got 0 on worker 0 and 1 on worker 1")],
)  # fmt: skip
def test_workers_that_were_told_otherwise_stop_together(cluster, mistake, message):
    for failure in cluster.failures(mistake):
        assert failure.kind == "InvalidSetting"
        assert message in failure.message


def mean_of(strategy):
    with balanced(strategy, 8, mode="static", shares=(1, 3)) as balancer:
        next(iter(balancer.dataset(np.zeros((8, FEATURES)))))
        return balancer.mean(tf.constant(float(balancer.worker)))


def test_a_mean_is_that_of_all_samples(cluster):
    assert cluster.run(mean_of) == [0.75, 0.75]


def averaged(strategy):
    """Return a running mean, a mean of this worker's own that weighs its share, and a seed."""
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((2,)), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
        )
    with balanced(strategy, 8, mode="static", shares=(1, 3), fewest=2) as balancer:
        next(iter(balancer.dataset(np.zeros(8))))
        norm = model.layers[0]
        norm.moving_mean.assign([10.0 * balancer.worker, 1.0])
        balancer.average_buffers(model)
        return norm.moving_mean.numpy().tolist(), norm.moving_variance.numpy().tolist()


def test_running_statistics_are_averaged_by_batch_sizes(cluster):
    assert cluster.run(averaged) == [([7.5, 1], [1, 1])] * 2
