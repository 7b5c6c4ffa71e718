"""Which workers to keep, against trying all of them."""

from itertools import combinations

import numpy as np
import pytest

from evenstep.errors import InfeasibleLimits, InvalidSetting
from evenstep.insight.advice.worker_choice import (
    best_without,
    select,
    select_conditions,
    times_without,
)
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.conditions import Conditions
from evenstep.simulator.clusters.curves import Curves, affine
from evenstep.simulator.clusters.noise import QUIET, Noise
from evenstep.simulator.clusters.scheduled import Scheduled


def cluster(offsets, slopes, total, cap=None, minimum=1):
    count = len(offsets)
    return Cluster(
        name="test", workers=[f"w{i}" for i in range(count)],
        curves=Curves.of([affine(a, b) for a, b in zip(offsets, slopes, strict=True)]),
        cap=np.full(count, 10**6) if cap is None else np.array(cap),
        environment=Scheduled(np.zeros(count), Noise.of([QUIET] * count, 0)),
        total=total, iterations=1, minimum=minimum,
    )  # fmt: skip


def quiet(count):
    ones = np.ones(count)
    return Conditions(ones, np.zeros(count), ones, ones, ones)


def best_time(made, keep):
    some, at = select(made, np.array(keep)), select_conditions(quiet(made.num_workers), keep)
    return some.expected_times(some.optimum(at), at).max()


@pytest.mark.parametrize("seed", range(30))
def test_best_crew_is_that_of_trying_all(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(3, 7))
    num_out = int(rng.integers(1, count))
    offsets, slopes = rng.uniform(0, 2, count), rng.uniform(0.05, 2, count)
    made = cluster(offsets, slopes, total=int(rng.integers(count, 40)))
    selection = best_without(made, quiet(count), num_out)
    tried = [
        best_time(made, np.array(keep)) for keep in combinations(range(count), count - num_out)
    ]
    assert selection.iteration_time == pytest.approx(min(tried), rel=1e-5)
    assert len(selection.left_out) == num_out
    assert sum(selection.batch_sizes) == made.total


def test_times_without_each_worker_are_those_of_the_others_alone():
    made = cluster([0.0, 0.5, 3.0], [0.1, 0.2, 1.0], total=30)
    times = times_without(made, quiet(3), np.array([2, 1, 0]))
    others = [np.flatnonzero(np.arange(3) != i) for i in range(3)]
    assert times == pytest.approx([best_time(made, keep) for keep in others], rel=1e-5)


def test_worker_that_others_have_no_room_for_has_no_time_without_it():
    made = cluster([0.0, 0.0], [0.1, 0.1], total=30, cap=[100, 20])
    assert np.isnan(times_without(made, quiet(2), np.array([0, 1]))).tolist() == [True, False]


def test_crew_that_cannot_be_is_refused():
    made = cluster([0.0, 0.0], [0.1, 0.1], total=30, cap=[20, 20])
    with pytest.raises(InvalidSetting, match="from 0 to 1, got 2"):
        best_without(made, quiet(2), 2)
    with pytest.raises(InfeasibleLimits, match=r"total 30 .*got 20$"):
        best_without(made, quiet(2), 1)
