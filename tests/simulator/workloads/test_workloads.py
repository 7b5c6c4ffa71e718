"""Properties of every workload."""

import numpy as np
import pytest
import torch

from evenstep.simulator.workloads.digits import mlp_digits, softmax_digits
from evenstep.simulator.workloads.workload import gradients

WORKLOADS = [softmax_digits, mlp_digits]
over_workloads = pytest.mark.parametrize("make", WORKLOADS)


@over_workloads
def test_model_depends_only_on_the_seed(make):
    first, again, other = (
        [p.tolist() for p in make().make_model(seed).parameters()] for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@over_workloads
def test_gradient_of_joined_samples_is_the_mean_of_its_parts(make):
    workload = make(torch.float64)
    model = workload.make_model(0)
    joined = gradients(workload, model, np.arange(12))
    parts = [gradients(workload, model, part) for part in (np.arange(3), np.arange(3, 12))]
    for whole, small, large in zip(joined, *parts, strict=True):
        torch.testing.assert_close(whole, (3 * small + 9 * large) / 12, rtol=0, atol=1e-12)


@over_workloads
def test_going_down_the_gradient_makes_the_model_better(make):
    workload = make()
    model = workload.make_model(0)
    before = workload.evaluate(model)
    everything = np.arange(workload.num_samples)
    for _ in range(30):
        found = gradients(workload, model, everything)
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), found, strict=True):
                parameter -= 0.5 * gradient
    after = workload.evaluate(model)
    assert after.loss < before.loss / 2
    assert after.accuracy > 0.85 > before.accuracy
    assert model.training


@over_workloads
def test_there_is_a_label_for_every_training_sample(make):
    workload = make()
    assert workload.labels.shape == (workload.num_samples,)
    assert set(workload.labels.tolist()) == set(range(10))


def test_parameter_that_is_not_used_has_a_gradient_of_zero():
    workload = softmax_digits()
    model = workload.make_model(0)
    model.register_parameter("idle", torch.nn.Parameter(torch.ones(3)))
    found = dict(
        zip(
            (n for n, _ in model.named_parameters()),
            gradients(workload, model, np.arange(4)),
            strict=True,
        )
    )
    assert found["idle"].tolist() == [0.0, 0.0, 0.0]
    assert float(found["1.weight"].abs().sum()) > 0
