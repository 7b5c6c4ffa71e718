"""A synchronous parameter server with plans of a real manager: exact, balanced, and timed."""

from __future__ import annotations

import re
import threading
import time
from contextlib import contextmanager

import keras
import numpy as np
import pytest
import tensorflow as tf

import evenstep
from evenstep.errors import EngineFailed, InvalidSetting
from evenstep.tensorflow import ParameterServer, ServerBalancer
from evenstep.tensorflow.vectors import VectorLayout
from tests.tensorflow.cluster import NUM_WORKERS, free_ports
from tests.tensorflow.setup import data, distance, gradients_of, net, note_reports, parameters
from tests.tensorflow.test_loop import NUM_SAMPLES, TOTAL, fit_alone
from tests.training.timers import SpeedTimer

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]

TOKEN = "of this test"


@contextmanager
def serving(num_workers=NUM_WORKERS, optimizer=None):
    """Serve the parameters of a small net from this process; yield where, and what fails."""
    server = ParameterServer(
        optimizer or keras.optimizers.SGD(0.05), net().trainable_variables, num_workers
    )
    [port] = free_ports(1)
    failures = []

    def serve():
        try:
            server.serve(f"127.0.0.1:{port}", TOKEN)
        except EngineFailed as failure:
            failures.append(str(failure))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"127.0.0.1:{port}", failures
    thread.join(30)
    assert not thread.is_alive()


@contextmanager
def pushing(strategy, address, manager=None, name=None, blocking=True, **settings):
    """Train a small net with a parameter server, and leave it at the end."""
    worker = int(strategy.cluster_resolver.task_id)
    model = net()
    if manager is not None:
        settings["coordinator"] = evenstep.connect(
            manager, name, f"w{worker}", workers=NUM_WORKERS, total=TOTAL, blocking=blocking
        )
    variables = model.trainable_variables
    balancer = ServerBalancer(
        address, TOKEN, worker, variables, TOTAL, **{"summary": False, **settings}
    )
    try:
        yield model, balancer
    finally:
        balancer.close()
        if manager is not None:
            settings["coordinator"].leave()


def fit(strategy, address, pause=0.0, **settings):
    """Train 50 iterations; return the parameters, the plans, and how often was traced."""
    speed = (100.0, 300.0)[int(strategy.cluster_resolver.task_id)]
    with pushing(strategy, address, timer=SpeedTimer(speed), **settings) as (model, balancer):
        dataset = balancer.dataset(data(NUM_SAMPLES), seed=3, pad=False)
        local_gradients = gradients_of(model, dataset.element_spec)
        plans = []
        while balancer.iteration < 50:
            for x, y in dataset:
                plans.append((balancer.plan.number, balancer.plan.sizes.tolist()))
                time.sleep(pause)
                balancer.push(local_gradients(x, y))
                if balancer.iteration == 50:
                    break
        balancer.pull()
        return parameters(model), plans, local_gradients.experimental_get_tracing_count()


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "non-blocking"])
def test_training_is_that_of_a_single_process_by_plans_of_a_manager(
    cluster, manager, job, blocking
):
    expected = cluster.run(fit_alone, how="sgd")[0]
    with serving() as (address, failures):
        results = cluster.run(
            fit, address=address, manager=manager.address, name=job, blocking=blocking,
            pause=0.0 if blocking else 0.01,
        )  # fmt: skip
    assert failures == []
    assert results[0][1] == results[1][1]
    for fitted, plans, traces in results:
        assert distance(fitted, expected) < 1e-10
        assert plans[0][1] == [8, 8]
        assert plans[-1][1] == [4, 12]
        assert traces == 1
    # Both have left, and the manager had made all plans but the first.
    assert manager.status()[job]["running"] is False


WORK, TRANSFER = 0.05, 0.15


def timed(strategy, address):
    """Return typical times with equal work, with a slow worker, and with slow transfers."""
    with pushing(strategy, address, mode="off") as (_, balancer):
        noted = note_reports(balancer._loop)
        gradients = [tf.zeros(v.shape, tf.float64) for v in balancer._layout.variables]
        dataset = balancer.dataset(np.arange(TOTAL * 6))
        server = balancer._server
        ask = server._ask

        def slowly(verb, *numbers):
            if verb in ("pull", "push"):
                time.sleep(TRANSFER)
            return ask(verb, *numbers)

        for factor, asks in ((1, ask), (8, ask), (1, slowly)):
            server._ask = slowly if asks is slowly and balancer.worker == 0 else ask
            for _ in dataset:
                time.sleep(WORK * (factor if balancer.worker == 1 else 1))
                balancer.push(gradients)
    times = np.array([reports.times for reports, _ in noted]).reshape(3, 6, 2)
    return np.nanquantile(times, 0.3, axis=1).tolist()


def test_pull_and_push_are_work_and_waiting_for_others_is_not(cluster):
    with serving() as (address, _):
        results = cluster.run(timed, address=address)
    for equal, unequal, slow in results:
        assert equal[0] >= WORK
        assert unequal[0] < 4 * WORK and unequal[1] >= 8 * WORK
        assert slow[0] >= WORK + 2 * TRANSFER
        assert slow[1] < WORK + 2 * TRANSFER


def deserted(strategy, address):
    """Let worker 1 close its connection without leaving."""
    with pushing(strategy, address) as (_, balancer):
        gradients = [tf.zeros(v.shape, tf.float64) for v in balancer._layout.variables]
        for k, _ in enumerate(balancer.dataset(np.arange(TOTAL * 6))):
            if k == 2 and balancer.worker == 1:
                balancer._server._connection.close()
                return "gone"
            balancer.push(gradients)
    return "through"


def test_a_lost_worker_ends_the_training_and_nobody_hangs(cluster):
    with serving() as (address, failures):
        first, second = cluster.answers(deserted, address=address)
    assert second == "gone"
    assert first.kind == "EngineFailed" and "one did not" in first.message
    (failure,) = failures
    assert re.search(r"workers must stay\b.*\bone was lost$", failure)


def wrong_number(strategy, address):
    ServerBalancer(address, TOKEN, 7, net().trainable_variables, TOTAL, summary=False)


def test_a_number_that_no_worker_can_have_is_refused(cluster):
    with serving() as (address, _):
        for failure in cluster.failures(wrong_number, address=address):
            assert failure.kind == "EngineFailed"
            assert re.search(r"worker .*from 0 to 1, got 7\b", failure.message)


def test_parameters_of_several_dtypes_are_refused():
    variables = [tf.Variable(1.0), tf.Variable(1.0, dtype=tf.float64)]
    with pytest.raises(InvalidSetting, match=r"one dtype, .* got \['float32', 'float64'\]"):
        VectorLayout(variables)


def test_a_gradient_that_is_missing_counts_as_zeros():
    layout = VectorLayout([tf.Variable([1.0, 2.0]), tf.Variable([3.0])])
    assert layout.parameters().tolist() == [1, 2, 3]
    assert layout.gradients([None, tf.constant([4.0])], 0.5).tolist() == [0, 0, 2]
    layout.assign(np.array([5, 6, 7], np.float32))
    assert layout.parameters().tolist() == [5, 6, 7]


def test_a_gradient_without_weight_is_left_out_be_it_no_number():
    layout = VectorLayout([tf.Variable([1.0, 2.0])])
    assert layout.gradients([tf.constant([np.nan, 1.0])], 0.0).tolist() == [0, 0]
    assert layout.gradients([tf.constant([3.0, 1.0])], 0.5).tolist() == [1.5, 0.5]
