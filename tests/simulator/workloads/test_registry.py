"""Workloads by name: properties of each, on bundled data."""

import numpy as np
import pytest
import torch

from evenstep.errors import InvalidSetting
from evenstep.simulator.workloads.registry import WORKLOADS, make_workload
from evenstep.simulator.workloads.workload import gradients

SMOOTH = ["softmax", "mlp", "svm", "cifarnet", "resnet32:norm=group", "inception_v3:norm=group"]
"""Workloads whose samples do not depend on the rest of their batch."""


def in_doubles(spec):
    return make_workload(f"{spec},dtype=float64" if ":" in spec else f"{spec}:dtype=float64")


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_name_makes_a_workload_that_runs_anywhere(name):
    workload = make_workload(name)
    model = workload.make_model(0)
    found = gradients(workload, model, np.arange(4))
    assert [g.shape for g in found] == [p.shape for p in model.parameters()]
    assert any(float(g.abs().sum()) > 0 for g in found)
    assert workload.labels.shape == (workload.num_samples,)


@pytest.mark.parametrize("spec", SMOOTH)
def test_gradient_of_joined_samples_is_the_mean_of_its_parts(spec):
    workload = in_doubles(spec)
    model = workload.make_model(0)
    joined = gradients(workload, model, np.arange(5))
    parts = [gradients(workload, model, part) for part in (np.arange(2), np.arange(2, 5))]
    for whole, small, large in zip(joined, *parts, strict=True):
        torch.testing.assert_close(whole, (2 * small + 3 * large) / 5, rtol=0, atol=1e-10)


def test_with_batch_norm_a_sample_depends_on_its_batch():
    workload = in_doubles("inception_v3")
    model = workload.make_model(0)
    joined, *parts = (
        gradients(workload, model, np.arange(*ends)) for ends in ((0, 5), (0, 2), (2, 5))
    )
    apart = [(2 * small + 3 * large) / 5 for small, large in zip(*parts, strict=True)]
    assert any(not torch.allclose(*pair, atol=1e-6) for pair in zip(joined, apart, strict=True))


@pytest.mark.parametrize("name", ["cifarnet", "inception_v3", "resnet32"])
def test_a_few_steps_on_the_same_pictures_make_them_known(name):
    workload = make_workload(name)
    model = workload.make_model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = workload.loss(model, np.arange(16))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_the_stand_in_for_inception_is_named():
    assert make_workload("inception_v3").name == (
        "inception_v3 (gradients of small_inception) on digits-as-pictures"
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "vgg",
            "workload must be one of softmax, mlp, svm, cifarnet, resnet32, inception_v3, "
            "got 'vgg'",
        ),
        ("mlp:dtype=half", "dtype must be one of float32, float64, got 'half'"),
        ("resnet32:blocks=0", "blocks of resnet32 must be >= 1, got 0"),
        ("resnet32:norm=layer", "norm must be one of batch, group, got 'layer'"),
        ("svm:test=a9a.t", "test must come with a path to train on, got 'a9a.t' alone"),
        ("mlp:width=0", "width of mlp must be >= 1, got 0"),
        ("svm:rows=many", "rows of svm must be an integer, got 'many'"),
        ("svm:seed=-1", "seed of svm must be >= 0, got -1"),
        ("svm:l2=-1", "l2 must be finite and >= 0, got -1"),
        (
            "svm:pth=a9a",
            "a setting of 'svm' must be one of path, test, rows, l2, seed, dtype, got 'pth' "
            "(did you mean 'path'?)",
        ),
    ],
)
def test_invalid_settings_are_refused(spec, message):
    with pytest.raises(InvalidSetting) as caught:
        make_workload(spec)
    assert str(caught.value) == message
