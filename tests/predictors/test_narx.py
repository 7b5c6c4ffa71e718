"""`narx`: trained online, from a shared network, off the decision path."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from evenstep.errors import InvalidSetting
from evenstep.predictors.ema import Ema
from evenstep.predictors.narx import make_narx
from evenstep.predictors.record import SPEED
from evenstep.simulator.clusters.scenarios import make_scenario
from tests.predictors.examples import QUICK, assert_same_state, follow_cpu, observe_all, teach

FULL_SPEEDS = [60.0, 90.0, 31.0, 115.0]


def taught(num_iterations=100, **settings):
    narx = make_narx(len(FULL_SPEEDS), **{**QUICK, **settings})
    teach(narx, *follow_cpu(num_iterations, FULL_SPEEDS))
    return narx


def now(narx, cpu=0.8):
    return narx.predict(np.full(narx.num_workers, cpu), np.full(narx.num_workers, 0.8))


def work_of(narx) -> Any:
    return narx.training()


def test_inputs_are_those_of_the_paper():
    """Look-back 2: two speeds, three of c and of m, the newest those of the iteration itself."""
    series = np.array([[10, 11, 12, 13], [20, 21, 22, 23], [30, 31, 32, 33]]).T.astype(float)
    inputs = make_narx(1).form.inputs(series[None])
    assert inputs.tolist() == [[[11, 10, 22, 21, 20, 32, 31, 30], [12, 11, 23, 22, 21, 33, 32, 31]]]


def test_ema_predicts_until_the_first_training():
    runs = [teach(predictor, *follow_cpu(60, FULL_SPEEDS)) for predictor in (make_narx(4), Ema(4))]
    np.testing.assert_array_equal(*runs)


def test_training_is_due_after_start_observations_then_every_so_often():
    narx = make_narx(4, **QUICK)
    due = []
    for k, observation in enumerate(zip(*follow_cpu(150, FULL_SPEEDS), strict=True), start=1):
        narx.observe(*observation)
        if narx.training() is not None:
            due.append(k)
    assert due == [60, 100, 140]


def test_prediction_follows_the_cpu_share_of_the_coming_iteration():
    narx = taught()
    for cpu in (0.4, 0.6, 0.9):
        np.testing.assert_allclose(now(narx, cpu), cpu * np.array(FULL_SPEEDS), rtol=0.06)


def test_steps_of_every_training_are_recorded():
    narx = make_narx(4, **QUICK)
    assert narx.training_steps.tolist() == [0, 0, 0, 0]
    teach(narx, *follow_cpu(100, FULL_SPEEDS))
    assert (narx.training_steps >= 1).all()
    assert narx.trained.tolist() == [True] * 4


def test_same_seed_gives_the_same_models():
    assert_same_state(taught().state(), taught().state())


def test_worker_without_enough_observations_uses_the_shared_network():
    narx = make_narx(4, **QUICK)
    speeds, cpu, memory = follow_cpu(100, FULL_SPEEDS)
    speeds[:80, 2] = np.nan
    teach(narx, speeds, cpu, memory)
    assert narx.trained.tolist() == [True, True, False, True]
    np.testing.assert_allclose(now(narx, 0.5)[2], 0.5 * 31, rtol=0.1)


def test_without_reuse_it_waits_with_ema():
    narx, ema = make_narx(4, reuse=False, **QUICK), Ema(4)
    speeds, cpu, memory = follow_cpu(100, FULL_SPEEDS)
    speeds[:80, 2] = np.nan
    for predictor in (narx, ema):
        teach(predictor, speeds, cpu, memory)
    assert narx.trained.tolist() == [True, True, False, True]
    assert now(narx)[2] == now(ema)[2]


def test_newcomer_uses_the_shared_network_from_its_third_iteration_on():
    narx = taught(retrain=1000)
    narx.remap(np.array([0, 1, 2, 3, -1]))
    speeds, cpu, memory = follow_cpu(30, [*FULL_SPEEDS, 45.0], seed=1)
    predictions = teach(narx, speeds, cpu, memory)
    np.testing.assert_allclose(predictions[2:, 4], speeds[2:, 4], rtol=0.25)
    assert not narx.trained[4]


@pytest.mark.parametrize("seed", range(3))
def test_own_network_keeps_of_the_shared_one_what_its_own_samples_do_not_show(seed):
    narx = make_narx(4, **QUICK)
    speeds, cpu, memory = follow_cpu(100, FULL_SPEEDS, seed)
    # Worker 2 never has less than 90 % of its CPU, and there it is faster the less it has.
    narrow = np.random.default_rng(seed).uniform(0.9, 1.0, 100)
    speeds[:, 2] /= cpu[:, 2] * narrow
    cpu[:, 2] = narrow
    teach(narx, speeds, cpu, memory)
    assert narx.trained.all()
    np.testing.assert_allclose(now(narx, 0.4)[2], 0.4 * 31, rtol=0.2)


def test_missing_observations_leave_no_gap_in_the_samples():
    """A worker without every other observation learns the same as without gaps."""
    whole, gappy = make_narx(4, **QUICK), make_narx(4, **QUICK)
    speeds, cpu, memory = follow_cpu(50, FULL_SPEEDS)
    teach(whole, speeds, cpu, memory)
    rows = np.arange(100) // 2
    present = np.arange(100)[:, None] % 2 == 0
    teach(gappy, np.where(present, speeds[rows], np.nan), cpu[rows], memory[rows])
    for key in ("record.history.past", "record.history.count", "models.levels.level"):
        np.testing.assert_array_equal(whole.state()[key], gappy.state()[key])


def test_training_is_not_disturbed_by_what_comes_after_it_began():
    narx = make_narx(4, **QUICK)
    speeds, cpu, memory = follow_cpu(90, FULL_SPEEDS)
    observe_all(narx, speeds[:60], cpu[:60], memory[:60])
    work = work_of(narx)
    at_once = deepcopy(work)()
    teach(narx, speeds[60:], cpu[60:], memory[60:])
    narx.remap(np.array([1, 0]))
    later = work()
    np.testing.assert_array_equal(at_once.models.parameters, later.models.parameters)
    np.testing.assert_array_equal(at_once.shared.parameters, later.shared.parameters)


def test_results_find_their_workers_after_joins_and_leaves():
    narx = make_narx(4, **QUICK)
    observe_all(narx, *follow_cpu(60, FULL_SPEEDS))
    result = work_of(narx)()
    straight = deepcopy(narx)
    straight.adopt(result)
    narx.remap(np.array([3, -1, 0]))
    narx.adopt(result)
    straight.remap(np.array([3, -1, 0]))
    assert narx.trained.tolist() == [True, False, True]
    assert_same_state(narx.state(), straight.state())


def test_result_of_a_training_before_a_restore_is_ignored():
    narx, other = make_narx(4, **QUICK), taught()
    observe_all(narx, *follow_cpu(60, FULL_SPEEDS))
    result = work_of(narx)()
    narx.restore(other.state())
    before = narx.state()
    narx.adopt(result)
    assert_same_state(narx.state(), before)


def test_restored_models_predict_from_the_start():
    old, new = taught(), make_narx(4, **QUICK)
    new.restore(old.state())
    np.testing.assert_array_equal(now(new, 0.5), now(old, 0.5))


def test_training_that_was_lost_with_its_job_is_due_again():
    narx = make_narx(4, **QUICK)
    observe_all(narx, *follow_cpu(60, FULL_SPEEDS))
    assert narx.training() is not None
    assert narx.training() is None
    heir = make_narx(4, **QUICK)
    heir.restore(narx.state())
    assert heir.training() is not None


def test_change_that_neither_c_nor_m_shows_is_followed_within_a_few_iterations():
    narx = taught(retrain=1000)
    speeds, cpu, memory = follow_cpu(30, FULL_SPEEDS, seed=1)
    predictions = teach(narx, 0.5 * speeds, cpu, memory)
    assert (predictions[0] > 0.85 * speeds[0]).all()
    np.testing.assert_allclose(predictions[8:], 0.5 * speeds[8:], rtol=0.2)


def test_single_spikes_do_not_move_the_models():
    narx = taught(retrain=1000)
    speeds, cpu, memory = follow_cpu(60, FULL_SPEEDS, seed=1)
    spiked = np.where(np.arange(60)[:, None] % 10 == 5, 1.8 * speeds, speeds)
    teach(narx, spiked, cpu, memory)
    np.testing.assert_allclose(now(narx, 0.6), 0.6 * np.array(FULL_SPEEDS), rtol=0.1)


def test_wild_models_stay_near_the_recent_speeds():
    narx, ema = taught(), Ema(4)
    teach(ema, *follow_cpu(100, FULL_SPEEDS))
    state = narx.state()
    del state["models.seal"]
    for factor in (-1e6, 1e6):
        narx.restore({**state, "models.parameters": factor * state["models.parameters"]})
        ratio = now(narx) / now(ema)
        assert ((ratio >= 0.2499) & (ratio <= 4.001)).all()


def test_history_is_what_the_models_are_trained_on():
    narx = taught(num_iterations=200)
    past = narx.state()["record.history.past"]
    assert past.shape == (4, QUICK["history"], 3)
    speeds, _, _ = follow_cpu(200, FULL_SPEEDS)
    np.testing.assert_allclose(
        np.sort(past[:, :, SPEED]), np.sort(np.log(speeds[-120:].T)), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start": 29}, "start must be >= 30, got 29"),
        ({"start": 500, "history": 400}, r"start must be .* <= history \(400\) .*, got 500"),
        ({"retrain": 0}, "retrain must be >= 1, got 0"),
        ({"hidden": 0}, "hidden units of a network must be >= 1, got 0"),
    ],
)
def test_settings_that_break_their_rule_are_refused(settings, message):
    with pytest.raises(InvalidSetting, match=message):
        make_narx(4, **settings)


@pytest.fixture(scope="module")
def scenario_p():
    cluster = make_scenario("P", seed=11)
    ats = [cluster.conditions(k, now=0.0) for k in range(cluster.iterations)]
    sizes = np.full(cluster.num_workers, 128)
    speeds = np.array([sizes / cluster.times(sizes, at) for at in ats])
    cpu, memory = np.array([at.cpu for at in ats]), np.array([at.memory for at in ats])
    narx = make_narx(cluster.num_workers)
    predictions = teach(narx, speeds, cpu, memory)
    return speeds, predictions, teach(Ema(cluster.num_workers), speeds, cpu, memory), narx


def rmse(predictions, speeds):
    return np.sqrt(((predictions - speeds)[500:] ** 2).mean(axis=0)).mean()


def test_rmse_in_scenario_p_is_30_percent_below_that_of_ema(scenario_p):
    speeds, narx, ema, _ = scenario_p
    assert rmse(narx, speeds) < 0.7 * rmse(ema, speeds)


def test_most_trainings_in_scenario_p_end_within_ten_steps(scenario_p):
    *_, narx = scenario_p
    assert np.mean(narx.training_steps <= 10) > 0.5
