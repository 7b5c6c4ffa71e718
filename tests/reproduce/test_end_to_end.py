"""Which trainings `cluster-a` and `accuracy` show: by how many pictures there are."""

from dataclasses import replace

import pytest

from evenstep.reproduce import end_to_end
from evenstep.reproduce.end_to_end import BSP, EVERYTHING, FULL, MODELS, TARGETS, trainings
from evenstep.reproduce.experiment import Settings
from evenstep.workloads.named import make_workload


def quiet(share, text):
    pass


def of_digits(scale, updates):
    few = dict.fromkeys(MODELS, updates)
    return replace(scale, workloads=dict.fromkeys(MODELS, "softmax"), updates=few, evaluations=2)


@pytest.fixture
def scales(monkeypatch):
    monkeypatch.setattr(end_to_end, "FULL", of_digits(FULL, 2))
    monkeypatch.setattr(end_to_end, "EVERYTHING", of_digits(EVERYTHING, 4))
    monkeypatch.setattr(end_to_end, "SCHEMES", BSP)


def made(model="resnet32"):
    return trainings(Settings(), model, quiet)


def test_with_all_pictures_targets_are_the_papers(scales, monkeypatch):
    monkeypatch.setattr(end_to_end, "_ALL_PICTURES", make_workload("softmax").num_samples)
    everything = made()
    assert everything.is_papers
    assert everything.target == TARGETS["resnet32"]
    assert everything.comparison.iterations == 4


def test_with_fewer_pictures_the_target_is_near_what_bsp_reached(scales):
    some = made()
    assert not some.is_papers
    assert some.target == pytest.approx(0.95 * some.runs[BSP][0].best)
    assert some.comparison.iterations == 2
