"""The simulation: figures worked out by hand, and properties of every run."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from evenstep.core import UNLIMITED
from evenstep.errors import InvalidSetting
from evenstep.simulator.clusters.cluster import Cluster
from evenstep.simulator.clusters.curves import Curves, linear
from evenstep.simulator.clusters.noise import QUIET, Noise
from evenstep.simulator.clusters.scenarios import make_scenario
from evenstep.simulator.clusters.scheduled import Change, Scheduled
from evenstep.simulator.engine.simulation import (
    STEADY_AFTER,
    Setup,
    median_figures,
    predicted_speeds,
    simulate,
)

TINY = Cluster(
    name="tiny",
    workers=["slow", "fast"],
    curves=Curves.of([linear(10.0), linear(30.0)]),
    cap=np.array([UNLIMITED, UNLIMITED]),
    environment=Scheduled(np.zeros(2), Noise.of([QUIET] * 2, seed=0)),
    total=40,
    iterations=4,
)
"""Two workers of 10 and 30 samples/s and 40 samples: the best is (10, 30) in 1 s."""
SWAPPED = replace(
    TINY,
    environment=Scheduled(
        np.zeros(2),
        Noise.of([QUIET] * 2, seed=0),
        # The slow one becomes the fast one, and the other way round.
        [Change(4, np.array([0]), slowdown=1 / 3), Change(4, np.array([1]), slowdown=3.0)],
    ),
    iterations=10,
    changes_at=4,
)
LAST_SPEEDS = Setup("proportional", "memoryless")


def test_every_part_of_a_simulation_is_tracked():
    seen = []

    def track(part, iterations):
        for iteration in iterations:
            seen.append(part)
            yield iteration

    simulate(TINY, LAST_SPEEDS, 4, track=track)
    assert Counter(seen) == {"proportional": 4, "optimum": 4, "plain BSP": 4, "oracle": 4}


def test_figures_of_a_tiny_cluster_by_hand():
    """Even (20, 20) in 2 s, then (10, 30) in 1 s; the first speeds were unknown."""
    outcome = simulate(TINY, LAST_SPEEDS, 4)
    assert outcome.sizes.tolist() == [[20, 20], [10, 30], [10, 30], [10, 30]]
    np.testing.assert_allclose(outcome.times, [[2.0, 2 / 3], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    np.testing.assert_allclose(outcome.expected, [2, 1, 1, 1])
    np.testing.assert_allclose(outcome.optimum, [1, 1, 1, 1])
    np.testing.assert_allclose(outcome.oracle, [1, 1, 1, 1])
    np.testing.assert_allclose(outcome.bsp, [2, 2, 2, 2])
    assert outcome.figures() == {
        "settle_5": 1,
        "settle_2": 1,
        "settle_5_after": None,
        "settle_2_after": None,
        "waste": pytest.approx(0.25),
        "realised": pytest.approx(0.25),
        "changes_per_100": None,
        "overruns": 0,
        "final_sizes": [10, 30],
        "time_over_oracle": pytest.approx(5 / 4),
        "time_over_bsp": pytest.approx(5 / 8),
        # Before anything is seen all speeds are taken to be 1: errors of 9 and 29, once in four.
        "rmse": pytest.approx((9 / 2 + 29 / 2) / 2),
        "waiting_share": pytest.approx((4 / 3) / 10),
        "per_update_time": pytest.approx(5 / 4 / 2),
    }


def test_figures_after_a_scheduled_change_by_hand():
    figures = simulate(SWAPPED, LAST_SPEEDS, 10).figures()
    assert (figures["settle_5"], figures["settle_5_after"]) == (1, 1)
    # 2 s at the start, 3 s when 30 samples are on the worker that became slow, 1 s otherwise.
    assert figures["waste"] == pytest.approx((1 + 2) / 10)
    assert figures["final_sizes"] == [30, 10]


def test_change_that_lies_beyond_the_run_is_none():
    figures = simulate(SWAPPED, LAST_SPEEDS, 4).figures()
    assert (figures["settle_5"], figures["settle_5_after"]) == (1, None)


def test_only_scored_iterations_count():
    figures = simulate(replace(TINY, score_from=1), LAST_SPEEDS, 4).figures()
    names = ("waste", "realised", "time_over_oracle", "time_over_bsp", "rmse", "waiting_share")
    assert [round(figures[name], 12) for name in names] == [0, 0, 1, 0.5, 0, 0]
    assert figures["settle_5"] == 1


def test_run_shorter_than_the_time_for_learning_is_scored_whole():
    figures = simulate(replace(TINY, score_from=4), LAST_SPEEDS, 4).figures()
    assert figures["waste"] == pytest.approx(0.25)


def test_run_that_never_settles_has_no_figure_for_it():
    figures = simulate(TINY, Setup("even"), 4).figures()
    assert (figures["settle_5"], figures["settle_2"]) == (None, None)
    assert figures["waste"] == pytest.approx(1.0)
    assert figures["time_over_bsp"] == 1.0
    assert figures["rmse"] is None


def test_size_changes_count_only_in_the_steady_part():
    length = STEADY_AFTER + 20
    figures = simulate(replace(TINY, iterations=length), LAST_SPEEDS, length).figures()
    assert figures["changes_per_100"] == 0.0
    unsteady = Setup("proportional", "memoryless")
    noisy = make_scenario("identical", num_workers=4, iterations=length, seed=0)
    assert simulate(noisy, unsteady, length).figures()["changes_per_100"] > 50


def test_overruns_are_batches_beyond_the_memory():
    cluster = replace(TINY, cap=np.array([15, UNLIMITED]))
    assert simulate(cluster, LAST_SPEEDS, 4).figures()["overruns"] == 1
    assert simulate(cluster, Setup("even"), 4).figures()["overruns"] == 4


def test_watcher_sees_every_iteration_with_the_plan_that_it_ran_under():
    seen = []
    outcome = simulate(TINY, LAST_SPEEDS, 4, lambda i, plan: seen.append((i.number, i.sizes, plan)))
    assert [number for number, _, _ in seen] == [0, 1, 2, 3]
    assert [plan.number for _, _, plan in seen] == [0, 1, 1, 1]
    for (_, sizes, plan), row in zip(seen, outcome.sizes, strict=True):
        assert sizes.tolist() == plan.sizes.tolist() == row.tolist()
    np.testing.assert_array_equal(
        outcome.predicted_speeds, [predicted_speeds(plan) for _, _, plan in seen]
    )
    np.testing.assert_allclose(outcome.predicted_speeds, [[1.0, 1.0], *[[10.0, 30.0]] * 3])


SETUPS = [
    Setup("even"),
    Setup("equal_finish"),
    Setup("stepwise", delay=1),
    Setup("proportional", "kalman"),
    Setup("proportional", "memoryless", delay=2),
]


@pytest.mark.parametrize("setup", SETUPS, ids=str)
@pytest.mark.parametrize("scenario", ["G", "P", "M", "identical"])
def test_no_policy_is_faster_than_the_oracle_in_any_iteration(scenario, setup):
    cluster = make_scenario(scenario, num_workers=4, iterations=25, seed=2)
    outcome = simulate(cluster, setup, 25)
    bound = outcome.oracle * (1 - 1e-9)
    assert (outcome.realised >= bound).all()
    assert (outcome.bsp >= bound).all()
    assert (outcome.optimum_realised >= bound).all()
    assert outcome.figures()["time_over_oracle"] >= 1 - 1e-9


@pytest.mark.parametrize("setup", SETUPS, ids=str)
@pytest.mark.parametrize("scenario", ["G", "S", "identical"])
def test_no_sizes_are_better_than_the_optimum_without_noise(scenario, setup):
    cluster = make_scenario(scenario, num_workers=4, iterations=25, seed=2)
    outcome = simulate(cluster, setup, 25)
    assert (outcome.expected >= outcome.optimum * (1 - 1e-9)).all()
    assert outcome.figures()["waste"] >= -1e-9


def test_without_noise_the_oracle_is_the_optimum():
    cluster = make_scenario("G", iterations=170, noisy=False)
    outcome = simulate(cluster, Setup("equal_finish"), 170)
    np.testing.assert_allclose(outcome.oracle, outcome.optimum, rtol=1e-9)
    np.testing.assert_allclose(outcome.realised, outcome.expected, rtol=1e-9)
    assert outcome.sizes[5].tolist() == [89, 21, 12, 6]
    assert outcome.sizes[154:].tolist() == [[100, 8, 13, 7]] * 16


def test_oracle_and_bsp_do_not_depend_on_the_policy():
    cluster = make_scenario("G", iterations=20, seed=1)
    one, other = (simulate(cluster, setup, 20) for setup in SETUPS[:2])
    np.testing.assert_array_equal(one.oracle, other.oracle)
    np.testing.assert_array_equal(one.bsp, other.bsp)


def test_setup_is_completed_from_the_cluster():
    gpus, cpus = make_scenario("G"), make_scenario("P", iterations=1)
    assert Setup.of(gpus, None, None, 0) == Setup("equal_finish", None, 0)
    assert Setup.of(cpus, None, None, 1) == Setup("proportional", "best_of", 1)
    assert Setup.of(cpus, "even", None, 0) == Setup("even", None, 0)
    assert Setup.of(cpus, None, "ema", 0) == Setup("proportional", "ema", 0)
    with pytest.raises(InvalidSetting):
        Setup.of(cpus, "nonsense", None, 0)


@pytest.mark.parametrize(
    ("settled", "median"),
    [
        ([3], 3.0),
        ([3, 9, 4], 4.0),
        ([3, 5], 4.0),
        ([3, None, 5], 5.0),
        ([3, None], None),
        ([None, None, 2], None),
    ],
)
def test_median_treats_none_as_infinite(settled, median):
    seeds = [{"seed": i, "settle_5": value} for i, value in enumerate(settled)]
    assert median_figures(seeds) == {"settle_5": median}


def test_median_of_lists_is_taken_entry_by_entry():
    seeds = [{"seed": i, "final_sizes": sizes} for i, sizes in enumerate([[1, 9], [5, 5], [2, 8]])]
    assert median_figures(seeds) == {"final_sizes": [2.0, 8.0]}
