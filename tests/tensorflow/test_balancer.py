"""The balancer of a loop: its learning, checkpoints, values and refusals."""

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
    with balanced(strategy, 8, mode="static", shares=(1, 3), min_trainable=2) as balancer:
        next(iter(balancer.dataset(np.zeros(8))))
        norm = model.layers[0]
        norm.moving_mean.assign([10.0 * balancer.worker, 1.0])
        balancer.average_buffers(model)
        return norm.moving_mean.numpy().tolist(), norm.moving_variance.numpy().tolist()


def test_running_statistics_are_averaged_by_batch_sizes(cluster):
    assert cluster.run(averaged) == [([7.5, 1], [1, 1])] * 2


def beside_nonsense(strategy):
    """Return a variable and a buffer, where a worker that gets no samples has no numbers."""
    with strategy.scope():
        optimizer, variable = keras.optimizers.SGD(1.0), keras.Variable([2.0])
        model = keras.Sequential([keras.Input((1,)), keras.layers.BatchNormalization()])
    with balanced(strategy, 8, mode="off") as balancer:
        own = [0.5 if balancer.worker == 0 else np.nan]
        # The last iteration has one sample, which is worker 0's.
        for gradient, _ in zip(([0.0], own), balancer.dataset(np.zeros(9), pad=False), strict=True):
            balancer.apply(optimizer, [tf.constant(gradient)], [variable])
        model.layers[0].moving_mean.assign(own)
        balancer.average_buffers(model)
    return variable.numpy().tolist(), model.layers[0].moving_mean.numpy().tolist()


def test_what_weighs_nothing_is_left_out_be_it_no_number(cluster):
    assert cluster.run(beside_nonsense) == [([1.5], [0.5])] * 2


def one_after_the_other(strategy):
    """Apply to one variable and then to another by the same optimizer."""
    with balanced(strategy, 8) as balancer:
        with strategy.scope():
            variables = [keras.Variable([2.0]), keras.Variable([3.0])]
            optimizer = keras.optimizers.SGD(1.0)
            optimizer.build(variables)
        for variable, _ in zip(variables, balancer.dataset(np.zeros(16)), strict=True):
            balancer.apply(optimizer, [tf.constant([0.5])], [variable])
        return [float(variable.numpy()[0]) for variable in variables]


def test_gradients_are_applied_to_the_variables_of_the_call(cluster):
    assert cluster.run(one_after_the_other) == [[1.5, 2.5]] * 2
