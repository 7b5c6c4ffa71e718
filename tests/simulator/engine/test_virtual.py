"""The virtual engine: its clock, and what the workers report at each boundary."""

import subprocess
import sys

import numpy as np
import pytest

from evenstep.core import UNLIMITED
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.conditions import Conditions
from evenstep.simulator.clusters.curves import Curves, affine, linear
from evenstep.simulator.clusters.scenarios import make_scenario
from evenstep.simulator.engine.planners import BalancedPlanner, OraclePlanner
from evenstep.simulator.engine.simulation import Setup
from evenstep.simulator.engine.virtual import VirtualEngine
from evenstep.simulator.schemes import Bsp

NAN = float("nan")


class Written:
    """An environment whose numbers identify iteration k; records the calls."""

    def __init__(self, num_workers):
        self.num_workers = num_workers
        self.asked = []

    def conditions(self, iteration, now):
        self.asked.append((iteration, now))
        n = self.num_workers
        ones = np.ones(n)
        usage = 0.5 + 0.01 * iteration + 0.1 * np.arange(n)
        return Conditions(ones, 0 * ones, (1 + iteration % 2) * ones, usage, usage / 2)


class Dictated:
    """A planner with given sizes that records the reports."""

    def __init__(self, *sizes):
        self._sizes = sizes
        self.reports = []

    def sizes(self, reports, ahead):
        reports.check()
        self.reports.append(reports)
        return np.array(self._sizes[reports.iteration])


def cluster_of(environment, curves, cap=UNLIMITED):
    """Make a cluster of 48 samples in all."""
    n = len(curves)
    return Cluster(
        name="written",
        workers=[f"w{i}" for i in range(n)],
        curves=Curves.of(curves),
        cap=np.broadcast_to(np.array(cap), n),
        environment=environment,
        total=48,
        iterations=3,
    )


@pytest.fixture
def run():
    """Three iterations of two workers of 8 and 16 samples/s, twice as slow in odd iterations."""
    environment = Written(2)
    planner = Dictated([24, 24], [16, 32], [0, 48])
    cluster = cluster_of(environment, [linear(8.0), linear(16.0)], cap=[UNLIMITED, 100])
    return environment, planner, list(VirtualEngine(cluster, planner).run(3))


def test_times_are_those_of_the_sizes_under_the_conditions(run):
    _, _, iterations = run
    assert [i.number for i in iterations] == [0, 1, 2]
    assert [i.sizes.tolist() for i in iterations] == [[24, 24], [16, 32], [0, 48]]
    assert [i.times.tolist() for i in iterations] == [[3.0, 1.5], [4.0, 4.0], [0.0, 3.0]]
    assert [i.time for i in iterations] == [3.0, 4.0, 3.0]


def test_iteration_starts_when_the_slowest_worker_has_finished_the_last(run):
    environment, _, iterations = run
    assert [i.start for i in iterations] == [0.0, 3.0, 7.0]
    assert environment.asked == [(0, 0.0), (1, 3.0), (2, 7.0)]


def test_report_carries_the_times_of_the_last_iteration_and_the_usage_of_this_one(run):
    _, planner, _ = run
    reports = planner.reports
    assert [r.iteration for r in reports] == [0, 1, 2]
    assert [r.batch_sizes.tolist() for r in reports] == [[0, 0], [24, 24], [16, 32]]
    np.testing.assert_array_equal([r.times for r in reports], [[NAN, NAN], [3.0, 1.5], [4.0, 4.0]])
    np.testing.assert_allclose([r.cpu for r in reports], [[0.5, 0.6], [0.51, 0.61], [0.52, 0.62]])
    np.testing.assert_array_equal([r.memory for r in reports], [r.cpu / 2 for r in reports])
    np.testing.assert_allclose(
        [r.device_memory for r in reports], [[NAN, NAN], [NAN, 0.468], [NAN, 0.524]]
    )


def test_benched_worker_takes_no_time_and_reports_none():
    planner = Dictated([48, 0], [0, 48], [24, 24])
    cluster = cluster_of(Written(2), [affine(1.0, 0.125)] * 2, cap=100)
    iterations = list(VirtualEngine(cluster, planner).run(3))
    assert [i.times.tolist() for i in iterations] == [[7.0, 0.0], [0.0, 14.0], [4.0, 4.0]]
    assert [i.start for i in iterations] == [0.0, 7.0, 21.0]
    _, first, second = planner.reports
    assert [first.batch_sizes.tolist(), second.batch_sizes.tolist()] == [[48, 0], [0, 48]]
    np.testing.assert_array_equal([first.times, second.times], [[7.0, NAN], [NAN, 14.0]])
    np.testing.assert_allclose(
        [first.device_memory, second.device_memory], [[0.636, NAN], [NAN, 0.636]]
    )
    assert first.observed.tolist() == [True, False]


def test_run_yields_each_iteration_before_the_next_one_is_planned():
    planner = Dictated([24, 24], [16, 32], [0, 48])
    engine = VirtualEngine(cluster_of(Written(2), [linear(8.0)] * 2), planner)
    for number, iteration in enumerate(engine.run(3)):
        assert iteration.number == number
        assert len(planner.reports) == number + 1


def test_scheme_says_when_the_next_iteration_starts():
    planner = Dictated([24, 24], [24, 24])
    cluster = cluster_of(Written(2), [linear(8.0), linear(16.0)])
    first, second = VirtualEngine(cluster, planner, lambda n: Bsp(n, backups=1)).run(2)
    assert (first.start, first.time, second.start) == (0.0, 1.5, 1.5)


@pytest.mark.parametrize("scenario", ["G", "P", "M", "identical"])
def test_clock_adds_up(scenario):
    cluster = make_scenario(scenario, num_workers=8, iterations=30, seed=3)
    planner = BalancedPlanner(Setup.of(cluster, None, None, 0).balancer(cluster))
    iterations = list(VirtualEngine(cluster, planner).run(30))
    ends = [i.start + i.times.max() for i in iterations]
    np.testing.assert_allclose([i.start for i in iterations[1:]], ends[:-1], rtol=1e-12)
    assert [int(i.sizes.sum()) for i in iterations] == [cluster.total] * 30


def shown(cluster, planner):
    return [
        (i.start, i.sizes.tolist(), i.times.tolist(), i.at.cpu.tolist(), i.at.memory.tolist())
        for i in VirtualEngine(cluster, planner).run(20)
    ]


@pytest.mark.parametrize("scenario", ["G", "S"])
def test_same_seed_gives_the_same_iterations_and_another_one_others(scenario):
    def run(seed):
        cluster = make_scenario(scenario, num_workers=8, iterations=20, seed=seed)
        return shown(cluster, BalancedPlanner(Setup("equal_finish").balancer(cluster)))

    assert run(4) == run(4)
    assert run(4) != run(5)


def test_noise_does_not_depend_on_the_sizes():
    cluster = make_scenario("G", num_workers=4, iterations=20, seed=1)
    oracle = VirtualEngine(cluster, OraclePlanner(cluster)).run(20)
    even = VirtualEngine(cluster, Dictated(*[[32] * 4] * 20)).run(20)
    for one, other in zip(oracle, even, strict=True):
        np.testing.assert_array_equal(one.at.noise, other.at.noise)


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_plan_takes_effect_after_the_delay(delay):
    cluster = cluster_of(Written(2), [linear(8.0), linear(16.0)])
    planner = BalancedPlanner(Setup("proportional", "memoryless", delay).balancer(cluster))
    sizes = [i.sizes.tolist() for i in VirtualEngine(cluster, planner).run(8)]
    # The first speeds are known at the boundary of iteration 1.
    assert sizes == [[24, 24]] * (1 + delay) + [[16, 32]] * (7 - delay)


def test_planner_distinguishes_the_plan_in_force_from_the_newest():
    cluster = cluster_of(Written(2), [linear(8.0), linear(16.0)])
    planner = BalancedPlanner(Setup("proportional", "memoryless", delay=2).balancer(cluster))
    numbers = [
        (planner.in_force.number, planner.newest.number)
        for _ in VirtualEngine(cluster, planner).run(5)
    ]
    assert numbers == [(0, 0), (0, 1), (0, 1), (1, 1), (1, 1)]


def test_run_without_gradients_needs_no_torch():
    script = (
        "import sys\n"
        "from evenstep.simulator.clusters.scenarios import make_scenario\n"
        "from evenstep.simulator.engine.experiment import Experiment\n"
        "run = Experiment('ssp').start(make_scenario('G'))\n"
        "print(len(list(run.advance(updates=2))), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["2", "False"], done.stderr
