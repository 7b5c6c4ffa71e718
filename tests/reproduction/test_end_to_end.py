"""Which trainings `cluster-a` and `accuracy` show: by how many pictures there are."""

from dataclasses import replace

import pytest

from evenstep.simulator.workloads.registry import make_workload
from reproduction import end_to_end
from reproduction.end_to_end import BSP, EVERYTHING, FULL, MODELS, TARGETS, trainings
from reproduction.experiment import Settings
from tests.reproduction.made_up import trained


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


@pytest.fixture
def complete(scales, monkeypatch):
    monkeypatch.setattr(end_to_end, "_ALL_PICTURES", make_workload("softmax").num_samples)


def test_with_all_pictures_targets_are_the_papers(complete, monkeypatch):
    monkeypatch.setitem(TARGETS, "resnet32", 0.01)
    everything = made()
    assert (everything.is_complete, everything.is_papers) == (True, True)
    assert everything.target == 0.01
    assert everything.comparison.iterations == 4


def test_papers_target_that_bsp_misses_is_not_taken(complete, monkeypatch):
    monkeypatch.setitem(TARGETS, "resnet32", 1.01)
    everything = made()
    assert (everything.is_complete, everything.is_papers) == (True, False)
    assert everything.target == pytest.approx(0.95 * everything.runs[BSP][0].best)


def test_with_fewer_pictures_the_target_is_near_what_bsp_reached(scales, monkeypatch):
    monkeypatch.setitem(TARGETS, "resnet32", 0.01)
    some = made()
    assert (some.is_complete, some.is_papers) == (False, False)
    assert some.target == pytest.approx(0.95 * some.runs[BSP][0].best)
    assert some.comparison.iterations == 2


def test_conditions_have_the_seeds_of_what_they_are_compared_with(complete, monkeypatch):
    monkeypatch.setattr(end_to_end, "EVERYTHING", replace(end_to_end.EVERYTHING, seeds=(3, 4)))
    done = made()
    assert done.scale.seeds == (3, 4)
    conditions = end_to_end.stale(Settings(), done, quiet)
    assert {len(some) for runs in conditions.values() for some in runs.values()} == {2}


def test_kept_trainings_are_found_by_what_their_optimizers_are_called(scales, monkeypatch):
    found = []

    def train(what, comparison, *how):
        found.append(comparison.optimizer)
        return {BSP: [trained()]}

    monkeypatch.setattr(end_to_end, "train", train)
    for settings in (Settings(), Settings(quick=True)):
        end_to_end.stale(settings, trainings(settings, "resnet32", quiet), quiet)
    momentum = "sgd:learning_rate=0.05,momentum=0.9"
    assert found == [
        *("sgd:learning_rate=0.01", "sgd:learning_rate=0.16", momentum),
        *("sgd:learning_rate=0.3", "sgd:learning_rate=4.8", momentum),
    ]
