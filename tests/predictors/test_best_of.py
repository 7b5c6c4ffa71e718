"""`best_of`: the candidate that it uses, and the errors that it must not exceed."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from evenstep.core import TrainNow
from evenstep.errors import InvalidSetting, StateFileError
from evenstep.predictors import BestOf, Ema, Median, make_predictor
from evenstep.simulator.clusters.conditions import Conditions, Environment
from evenstep.simulator.clusters.scenarios import make_scenario
from evenstep.simulator.engine.planners import BalancedPlanner
from evenstep.simulator.engine.simulation import Setup
from evenstep.simulator.engine.virtual import VirtualEngine

FULL = np.ones(2)


class Says:
    """A predictor with one answer for all workers that records its observations."""

    def __init__(self, speed, num_workers=2):
        self.speed = speed
        self.num_workers = num_workers
        self.heard = []

    def predict(self, cpu, memory):
        return np.full(self.num_workers, self.speed)

    def observe(self, speeds, cpu, memory):
        self.heard.append((speeds.tolist(), cpu.tolist(), memory.tolist()))

    def remap(self, keep):
        self.num_workers = len(keep)

    def state(self):
        return {"speed": np.array(self.speed)}

    def restore(self, state):
        if "speed" not in state:
            raise StateFileError("no speed")
        self.speed = float(state["speed"])


def observe(best, *speeds):
    best.observe(np.array(speeds), np.ones(len(speeds)), np.ones(len(speeds)))


def test_each_worker_gets_the_candidate_that_errs_least_on_it():
    best = BestOf({"slow": Says(10.0), "middle": Says(20.0), "fast": Says(40.0)})
    observe(best, 39.0, 11.0)
    assert best.chosen == ["fast", "slow"]
    assert best.predict(FULL, FULL).tolist() == [40.0, 10.0]


def test_first_candidate_is_used_until_there_is_a_difference():
    best = BestOf({"one": Says(10.0), "other": Says(40.0)})
    assert best.chosen == ["one", "one"]
    observe(best, 20.0, np.nan)
    assert best.chosen == ["one", "one"]


def test_worker_without_a_speed_keeps_its_candidate():
    best = BestOf({"one": Says(10.0), "other": Says(40.0)})
    observe(best, 40.0, 40.0)
    before = best.state()["errors"]
    observe(best, np.nan, 40.0)
    after = best.state()["errors"]
    assert after[0].tolist() == before[0].tolist()
    assert after[1].tolist() != before[1].tolist()


def test_one_spike_does_not_decide():
    best = BestOf({"near": Says(22.0), "right": Says(20.0)})
    for _ in range(3):
        observe(best, 20.0, 20.0)
    # Upward, the spike is a little closer to the one that is always a little too high.
    observe(best, 2000.0, 2000.0)
    assert best.chosen == ["right", "right"]


def test_better_candidate_takes_over_after_a_while():
    best = BestOf({"one": Says(10.0), "other": Says(20.0)})
    for _ in range(20):
        observe(best, 10.0, 10.0)
    switched = []
    for _ in range(60):
        observe(best, 20.0, 10.0)
        switched.append(best.chosen)
    assert switched[0] == ["one", "one"]
    assert switched[-1] == ["other", "one"]


def test_all_candidates_hear_everything():
    candidates = {"one": Says(10.0), "other": Says(40.0)}
    BestOf(candidates).observe(np.array([1.0, 2.0]), np.array([0.3, 0.4]), np.array([0.5, 0.6]))
    said = ([1.0, 2.0], [0.3, 0.4], [0.5, 0.6])
    assert [candidate.heard for candidate in candidates.values()] == [[said], [said]]


def test_newcomer_begins_with_the_first_candidate():
    best = BestOf({"one": Says(10.0), "other": Says(40.0)})
    observe(best, 40.0, 10.0)
    best.remap(np.array([-1, 0, 1]))
    assert best.chosen == ["one", "other", "one"]


def test_state_that_one_candidate_refuses_leaves_the_others_as_they_were():
    best = BestOf({"one": Says(10.0), "other": Says(40.0)})
    state = best.state()
    with pytest.raises(StateFileError):
        best.restore({"errors": state["errors"] + 1, "one.speed": np.array(70.0)})
    assert best.predict(FULL, FULL).tolist() == [10.0, 10.0]
    assert best.state()["errors"].tolist() == state["errors"].tolist()


class Trains(Says):
    """Predicts the value that it was last trained with."""

    def training(self):
        return lambda: self.speed + 1

    def adopt(self, result):
        self.speed = result


def test_training_of_a_candidate_reaches_that_candidate():
    best = BestOf({"dull": Says(5.0), "keen": Trains(7.0), "late": Trains(9.0)})
    TrainNow().poll(best)
    assert [candidate.predict(FULL, FULL)[0] for candidate in best.candidates.values()] == [
        5.0,
        8.0,
        9.0,
    ]


def test_candidates_without_training_have_none_due():
    assert BestOf({"one": Ema(2), "other": Median(2)}).training() is None


def test_no_candidates_are_refused():
    with pytest.raises(InvalidSetting, match="at least one candidate"):
        BestOf({})


def test_kalman_is_used_only_where_the_usage_explains_the_speed():
    rng = np.random.default_rng(0)
    best = make_predictor("best_of", 2)
    assert isinstance(best, BestOf)
    usage = rng.uniform(0.35, 1.0, (300, 2))
    noise = np.exp(0.04 * rng.standard_normal((300, 2)))
    # The second worker's speed wanders independently of c.
    wander = np.exp(np.cumsum(0.03 * rng.standard_normal(300)))
    for cpu, speeds in zip(usage, noise * np.column_stack((usage[:, 0], wander)), strict=True):
        best.observe(60.0 * speeds, cpu, np.full(2, 0.9))
    assert best.chosen[0] == "kalman"
    assert best.chosen[1] != "kalman"


@dataclass(frozen=True)
class Meaningless:
    """An environment in which c and m say nothing about the speed."""

    environment: Environment
    follows_clock = False

    def conditions(self, iteration, now):
        at = self.environment.conditions(iteration, now)
        rng = np.random.default_rng((7, iteration))
        cpu, memory = rng.uniform(0.05, 1.0, (2, len(at.cpu)))
        return Conditions(at.slowdown, at.communication, at.noise, cpu, memory)


def iteration_times(cluster, predictor):
    planner = BalancedPlanner(Setup("proportional", predictor).balancer(cluster))
    return np.array([run.time for run in VirtualEngine(cluster, planner).run(cluster.iterations)])


def test_useless_usage_costs_at_most_one_per_cent():
    cluster = make_scenario("S", iterations=450, seed=5)
    cluster = replace(cluster, environment=Meaningless(cluster.environment))
    best, ema, kalman = (
        iteration_times(cluster, predictor)[150:].sum()
        for predictor in ("best_of", "ema", "kalman")
    )
    assert best <= 1.01 * ema
    assert kalman > 1.01 * ema


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "to_reach"), [("P", 1.27), ("S", 1.30), ("M", 1.30)])
def test_time_over_the_oracle_is_as_low_as_promised(scenario, to_reach):
    """Scored on every fourth iteration, as the oracle takes longest of all."""
    cluster = make_scenario(scenario, seed=11)
    times = iteration_times(cluster, "best_of")
    scored = range(cluster.score_from, cluster.iterations, 4)
    ahead = [cluster.conditions(k, now=0.0) for k in scored]
    oracle = [cluster.times(cluster.oracle(at), at).max() for at in ahead]
    assert 1.0 < times[scored].sum() / np.sum(oracle) <= to_reach
