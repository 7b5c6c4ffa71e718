"""Real gradients in virtual time: the right samples, at the right parameters."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from evenstep.core.dealing import deal, numpy_order
from evenstep.errors import InvalidSetting
from evenstep.simulator.clusters.scenarios import make_scenario
from evenstep.simulator.engine.experiment import Experiment
from evenstep.simulator.engine.learner import WorkloadLearner
from evenstep.simulator.engine.optimizers import make_optimizer
from evenstep.simulator.engine.run import Run
from evenstep.simulator.engine.samples import WorkerStreams
from evenstep.simulator.engine.simulation import Setup
from evenstep.simulator.engine.virtual import VirtualEngine
from evenstep.simulator.schemes import make_scheme
from evenstep.simulator.workloads.digits import mlp_digits, softmax_digits
from tests.simulator.engine.test_staleness import cluster_of

SGD = "sgd:learning_rate=0.1"
MOMENTUM = "sgd:learning_rate=0.05,momentum=0.9"
CLUSTER = replace(make_scenario("P", num_workers=4, iterations=40, seed=1), total=64)
EXACT = mlp_digits(torch.float64, width=16)


def train(
    scheme="bsp",
    policy="even",
    updates=10,
    optimizer=SGD,
    cluster=CLUSTER,
    workload=EXACT,
    samples=None,
    **how,
):
    """Train; return the run and the final parameters."""
    setup = Setup.of(cluster, policy, None, 0)
    experiment = Experiment(scheme, setup, optimizer, **how)
    run = experiment.start(cluster, workload, samples)
    for _ in run.advance(updates):
        pass
    return run, run.parameters


def difference(one, other):
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM, "adam:learning_rate=0.01"])
@pytest.mark.parametrize(
    ("scheme", "policy"), [("bsp", "proportional"), ("bsp", "equal_finish"), ("flexrr", "even")]
)
def test_balanced_and_plain_bsp_give_the_same_parameters(scheme, policy, optimizer):
    plain, expected = train(optimizer=optimizer)
    balanced, parameters = train(scheme, policy, optimizer=optimizer)
    assert balanced.times[-1] < plain.times[-1]
    assert difference(parameters, expected) < 1e-10


def test_unweighted_mean_does_not():
    _, expected = train()
    _, parameters = train("bsp", "proportional", weighted=False)
    assert difference(parameters, expected) > 1e-4
    _, parameters = train(weighted=False)
    assert difference(parameters, expected) < 1e-10


def test_bsp_is_training_on_the_joined_batch():
    _, parameters = train(updates=5)
    model = EXACT.make_model(0)
    stepping = torch.optim.SGD(model.parameters(), lr=0.1)
    for k in range(5):
        stepping.zero_grad()
        EXACT.loss(model, numpy_order(EXACT.num_samples, 0, 0)[64 * k : 64 * (k + 1)]).backward()
        stepping.step()
    assert difference(parameters, [p.detach() for p in model.parameters()]) < 1e-12


def test_shards_change_nothing():
    one, many = (train(num_shards=shards)[1] for shards in (1, 3))
    assert all(torch.equal(a, b) for a, b in zip(one, many, strict=True))


def test_ssp_with_bound_one_gives_the_parameters_of_bsp():
    """Without momentum n small steps at the same parameters are one large step."""

    def parameters(scheme):
        partitions = np.split(np.arange(EXACT.num_samples), 4)
        return train(scheme, samples=WorkerStreams.of_partitions(partitions, seed=0))[1]

    assert difference(parameters("ssp:bound=1"), parameters("bsp")) < 1e-10
    assert difference(parameters("ssp:bound=2"), parameters("bsp")) > 1e-4


def test_gradient_is_computed_at_the_parameters_that_were_pulled():
    """Worker 0 arrives at 1 and 2 s, worker 1 at 2.5 s with what it had pulled at the start."""
    workload = softmax_digits(torch.float64)
    cluster = cluster_of(1.0, 2.5)
    _, parameters = train("asp", updates=1, cluster=replace(cluster, total=8), workload=workload)
    learner_updates = train("asp", updates=2, cluster=replace(cluster, total=8), workload=workload)
    order = numpy_order(workload.num_samples, 0, 0)
    half = len(order) // 2
    fast, slow = (iter(np.split(share, len(share) // 4)) for share in (order[:half], order[half:]))

    def step(at, to, samples):
        model = workload.make_model(0)
        for parameter, value in zip(model.parameters(), at, strict=True):
            parameter.data = value
        found = torch.autograd.grad(workload.loss(model, samples), list(model.parameters()))
        return [value - 0.1 / 2 * g for value, g in zip(to, found, strict=True)]

    w0 = [p.detach() for p in workload.make_model(0).parameters()]
    w1 = step(w0, w0, next(fast))
    w2 = step(w1, w1, next(fast))
    assert difference(parameters, w2) < 1e-14
    w3 = step(w0, w2, next(slow))
    w4 = step(w2, w3, next(fast))
    assert difference(learner_updates[1], w4) < 1e-14


def test_same_seed_gives_the_same_bytes_and_another_one_others():
    def result(seed):
        run, parameters = train("asp", updates=10, workload=mlp_digits(), seed=seed)
        values = b"".join(p.numpy().tobytes() for p in parameters)
        return repr((run.times, run.points, sorted(run.staleness.items()))).encode() + values

    assert result(3) == result(3)
    assert result(3) != result(4)


def test_run_stops_where_the_target_is_reached():
    run = Experiment(optimizer=SGD, evaluate_every=5).start(CLUSTER, softmax_digits())
    seen = list(run.advance(updates=200, target=0.8))
    points = [progress.point for progress in seen if progress.point]
    assert [point.updates for point in points] == list(range(5, len(seen) + 1, 5))
    assert [accuracy >= 0.8 for accuracy in run.smoothed[-2:]] == [False, True]
    assert run.reached(0.8) == points[-1]
    # And it can continue from there.
    assert next(run.advance(updates=1)).updates == len(seen) + 1


@pytest.mark.parametrize("scheme", ["asp", "ssp"])
def test_scheme_without_boundaries_takes_no_policy(scheme):
    with pytest.raises(InvalidSetting, match=f"policy of {scheme} must be even"):
        Experiment(scheme, Setup("equal_finish")).start(CLUSTER)


@pytest.mark.parametrize("scheme", ["bsp", "bsp:backups=1", "asp", "ssp", "flexrr"])
def test_every_scheme_learns(scheme):
    run, _ = train(scheme, updates=60, workload=softmax_digits())
    assert [point.updates for point in run.points] == [0, 10, 20, 30, 40, 50, 60]
    assert run.points[0].evaluation.accuracy < 0.3
    assert run.points[-1].evaluation.accuracy > 0.85
    first = run.reached(0.8)
    assert first is not None and 0 < first.time <= run.times[-1]
    assert first.time == pytest.approx(run.times[first.updates - 1])
    assert run.reached(1.01) is None


class WithBatchNorm:
    """Digits with BatchNorm: a workload whose model has buffers."""

    name = "norm"

    def __init__(self):
        self._digits = softmax_digits()
        self.num_samples = self._digits.num_samples
        self.labels = self._digits.labels
        self.loss = self._digits.loss
        self.evaluate = self._digits.evaluate

    def make_model(self, seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))


def test_running_statistics_are_those_of_a_worker_alone():
    cluster = replace(cluster_of(1.0), total=32)
    _, (*_, mean, variance) = train(cluster=cluster, workload=WithBatchNorm(), updates=4)
    workload = WithBatchNorm()
    model = workload.make_model(0)
    for k in range(4):
        workload.loss(model, numpy_order(workload.num_samples, 0, 0)[32 * k : 32 * (k + 1)])
    buffers = dict(model.named_buffers())
    assert float(buffers["1.running_mean"].abs().max()) > 0.1
    torch.testing.assert_close(mean, buffers["1.running_mean"])
    torch.testing.assert_close(variance, buffers["1.running_var"])


def test_running_statistics_are_averaged_over_workers():
    cluster = replace(cluster_of(1.0, 2.0), total=32)
    _, (*_, mean, _) = train(cluster=cluster, workload=WithBatchNorm(), updates=1)
    inputs = WithBatchNorm()._digits.train.tensors[0].flatten(1)
    both = deal(numpy_order(1536, 0, 0)[:32], np.array([32, 0]), 0)
    torch.testing.assert_close(mean, 0.1 * inputs[torch.from_numpy(both)].mean(dim=0))


def test_benched_workers_push_nothing_and_the_others_are_averaged():

    class Benched:
        def sizes(self, reports, ahead):
            return np.array([0, 64, 0, 0])

    def parameters(planner):
        scheme = make_scheme("bsp", 4)
        learner = WorkloadLearner(EXACT, scheme, make_optimizer(SGD), 4)
        for _ in Run(VirtualEngine(CLUSTER, planner, learner=learner)).advance(3):
            pass
        return learner.parameters

    expected = train(updates=3)[1]
    assert difference(parameters(Benched()), expected) < 1e-10
