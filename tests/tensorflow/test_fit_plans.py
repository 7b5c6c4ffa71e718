"""`model.fit` with the plans of a manager, and from a checkpoint."""

from __future__ import annotations

import keras
import pytest

import evenstep
from evenstep.tensorflow import FitBalancer
from tests.tensorflow.setup import cycle, data
from tests.tensorflow.test_fit import EPOCH, NUM_SAMPLES, TABLE, TOTAL, compiled

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]

HOW = {"verbose": 0, "shuffle": False}


def with_a_manager(strategy, address, name, blocking):
    """Fit with the plans of a manager, next to a worker that takes four times as long."""
    worker = int(strategy.cluster_resolver.task_id)
    client = evenstep.connect(
        address, name, f"worker-{worker}", workers=2, total=TOTAL, policy="equal_finish",
        blocking=blocking,
    )  # fmt: skip
    model, noting = compiled(strategy)

    def seconds():
        return noting.sizes[-1] * (0.012 if worker == 1 else 0.003)

    noting.seconds = seconds
    balancer = FitBalancer(model, TOTAL, coordinator=client, summary=False)
    samples = balancer.dataset(data(TOTAL * 12))
    model.fit(samples, epochs=2, callbacks=[balancer], **HOW)
    balancer.close()
    client.leave()
    return balancer.iteration, balancer.plan.sizes.tolist()


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "non-blocking"])
def test_fit_follows_the_plans_of_a_manager(cluster, manager, job, blocking):
    first, second = cluster.run(
        with_a_manager, address=manager.address, name=job, blocking=blocking
    )
    assert first == second
    iteration, sizes = first
    assert iteration == 24 and sum(sizes) == TOTAL and sizes[0] > sizes[1]


class Saving(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps the state of a balancer at the end of every epoch."""

    def __init__(self, balancer):
        super().__init__()
        self._balancer = balancer
        self.state = {}

    def on_epoch_end(self, epoch, logs=None):
        self.state = self._balancer.state_dict()


def restored(strategy, saves_first, loads_first):
    """Return where two epochs have come to, of which the second takes up a checkpoint."""
    model, _ = compiled(strategy)
    first = FitBalancer(model, TOTAL, policy=cycle(*TABLE), summary=False)
    saving = Saving(first)
    callbacks = [saving, first] if saves_first else [first, saving]
    model.fit(first.dataset(data(NUM_SAMPLES)), callbacks=callbacks, **HOW)
    second = FitBalancer(model, TOTAL, policy=cycle(*TABLE), summary=False)
    if loads_first:
        second.load_state_dict(saving.state)
        samples = second.dataset(data(NUM_SAMPLES))
    else:
        samples = second.dataset(data(NUM_SAMPLES))
        second.load_state_dict(saving.state)
    model.fit(samples, callbacks=[second], **HOW)
    first.close()
    second.close()
    return second.iteration, second.state_dict()["epochs"]["epoch"]


@pytest.mark.parametrize("saves_first", [True, False], ids=["saver first", "balancer first"])
@pytest.mark.parametrize("loads_first", [True, False], ids=["before data", "after data"])
def test_a_checkpoint_goes_on_with_the_next_epoch(cluster, saves_first, loads_first):
    came_to = cluster.run(restored, saves_first=saves_first, loads_first=loads_first)
    assert came_to == [(2 * EPOCH, 2)] * 2
