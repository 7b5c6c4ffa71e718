"""The planner: what a predictor is taught, how plans are numbered, and what survives a change."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from evenstep.core import UNLIMITED, Reports, TrainNow
from evenstep.core.planner import Planner
from evenstep.errors import (
    InfeasibleLimits,
    InvalidReport,
    InvalidSetting,
    MembershipError,
    StateFileError,
)
from evenstep.policies import POLICIES, Even, Proportional, make_policy
from evenstep.predictors import PREDICTORS, Ema, Kalman, make_predictor
from tests.figures import numbers_in

NAN = float("nan")
SHARES = {"static": "static:shares=1/2/3"}
"""What has to be set of a policy before it can be made for three workers."""


def reports_of(iteration, sizes, times, cpu=1.0, memory=1.0, device_memory=NAN):
    """Make the reports of a boundary; one number holds for all workers."""
    n = len(sizes)
    return Reports(
        iteration,
        np.array(sizes),
        np.array(times, dtype=float),
        *(np.broadcast_to(np.array(x, dtype=float), n) for x in (cpu, memory, device_memory)),
    )


def first_reports(num_workers, cpu=1.0, memory=1.0):
    return reports_of(0, [0] * num_workers, [NAN] * num_workers, cpu, memory)


@pytest.fixture(params=PREDICTORS)
def predictor(request):
    """The name of every predictor that can be made here."""
    if request.param == "arima":
        pytest.importorskip("statsmodels")
    return request.param


class Recorder:
    """A predictor that only writes down what it is taught."""

    def __init__(self, num_workers):
        self.num_workers = num_workers
        self.taught = []

    def predict(self, cpu, memory):
        return np.ones(self.num_workers)

    def observe(self, speeds, cpu, memory):
        self.taught.append([speeds.tolist(), cpu.tolist(), memory.tolist()])

    def remap(self, keep):
        self.num_workers = len(keep)

    def state(self):
        return {}

    def restore(self, state):
        pass


def drive(planner, speeds, boundaries):
    """Take a planner through boundaries under noisy speeds; return the plans."""
    plans = []
    speeds = np.array(speeds, dtype=float)
    for k in boundaries:
        rng = np.random.default_rng(k)
        cpu = rng.uniform(0.4, 1.0, len(speeds))
        sizes = planner.plan.sizes
        times = sizes / (speeds * rng.uniform(0.8, 1.2, len(speeds)))
        plans.append(planner.decide(reports_of(k, sizes, times, cpu, 0.8, sizes / 200)))
    return plans


def assert_same_state(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def told(plan):
    """Return everything a plan says, in a form that can be compared."""
    return (
        plan.number,
        plan.iteration,
        plan.sizes.tolist(),
        plan.reason,
        None if plan.predicted_times is None else repr(plan.predicted_times.tolist()),
        plan.advice,
        None if plan.proposed is None else plan.proposed.tolist(),
        plan.phase,
    )


def expected_times(plan):
    assert plan.predicted_times is not None
    return plan.predicted_times


def test_speed_is_taught_with_the_usage_at_the_start_of_its_own_iteration():
    recorder = Recorder(2)
    planner = Planner(["a", "b"], 64, Proportional(), recorder)
    planner.decide(first_reports(2, cpu=[0.9, 0.8], memory=[0.7, 0.6]))
    planner.decide(reports_of(1, [32, 32], [0.5, 0.25], cpu=[0.5, 0.4], memory=[0.3, 0.2]))
    planner.decide(reports_of(2, [40, 24], [2.0, 1.0], cpu=[0.1, 0.2], memory=[0.1, 0.2]))
    np.testing.assert_array_equal(
        recorder.taught,
        [
            [[NAN, NAN], [1.0, 1.0], [1.0, 1.0]],
            [[64.0, 128.0], [0.9, 0.8], [0.7, 0.6]],
            [[20.0, 24.0], [0.5, 0.4], [0.3, 0.2]],
        ],
    )


def test_speed_that_is_measured_late_is_taught_with_the_usage_of_its_own_iteration():
    recorder = Recorder(2)
    planner = Planner(["a", "b"], 64, Proportional(), recorder)
    planner.decide(first_reports(2, cpu=[0.9, 0.8]))
    late = [[-1, 0], [0, 1], [1, -1]]
    times = [[NAN, 1.0], [2.0, 4.0], [8.0, NAN]]
    for k, (measured, seconds) in enumerate(zip(late, times, strict=True), start=1):
        sizes = [0 if np.isnan(t) else 32 for t in seconds]
        reports = reports_of(k, sizes, seconds, cpu=[0.1 * k, 0.2 * k])
        planner.decide(replace(reports, measured=np.array(measured)))
    speeds, cpu, _ = np.array(recorder.taught[1:]).transpose(1, 0, 2)
    np.testing.assert_array_equal(speeds, [[NAN, 32.0], [16.0, 8.0], [4.0, NAN]])
    np.testing.assert_array_equal(cpu, [[1.0, 0.8], [0.9, 0.2], [0.1, 1.0]])


def test_speed_of_an_iteration_to_come_is_refused():
    planner = Planner(["a", "b"], 64, Even())
    with pytest.raises(InvalidReport) as refused:
        planner.decide(replace(reports_of(1, [32, 32], [1.0, 1.0]), measured=np.array([0, 1])))
    # The iteration about to start, the one measured, and the worker.
    assert numbers_in(str(refused.value)) == [1, 1, 1]


def test_speed_that_follows_the_cpu_exactly_is_learned_exactly():
    """With the usage of any other iteration the filter sees no relation between v and c."""
    planner = Planner(["a", "b"], 60, Proportional(), Kalman(2))
    rng = np.random.default_rng(1)
    usage = rng.uniform(0.3, 1.0, (40, 2))
    speeds = [100.0, 40.0] * usage
    planner.decide(first_reports(2, cpu=usage[0]))
    for k in range(1, 40):
        x = planner.plan.sizes
        plan = planner.decide(reports_of(k, x, x / speeds[k - 1], cpu=usage[k]))
        if k >= 5:
            np.testing.assert_allclose(plan.sizes / expected_times(plan), speeds[k], rtol=0.01)


def test_skipped_boundary_teaches_nothing():
    recorder = Recorder(1)
    planner = Planner(["a"], 8, Proportional(), recorder)
    planner.decide(first_reports(1, cpu=0.9))
    planner.decide(reports_of(2, [8], [1.0], cpu=0.7))
    planner.decide(reports_of(3, [8], [2.0], cpu=0.6))
    np.testing.assert_array_equal(
        recorder.taught,
        [[[NAN], [1.0], [1.0]], [[NAN], [1.0], [1.0]], [[4.0], [0.7], [1.0]]],
    )


def test_worker_that_processed_nothing_teaches_nothing_but_the_others_do():
    recorder = Recorder(2)
    planner = Planner(["a", "b"], 8, Proportional(), recorder, minimum=0)
    planner.decide(first_reports(2, cpu=[0.9, 0.8]))
    planner.decide(reports_of(1, [8, 0], [2.0, NAN], cpu=[0.5, 0.4]))
    np.testing.assert_array_equal(recorder.taught[-1], [[4.0, NAN], [0.9, 1.0], [1.0, 1.0]])


def test_newcomer_teaches_from_its_second_boundary_on():
    recorder = Recorder(1)
    planner = Planner(["a"], 8, Proportional(), recorder)
    planner.decide(first_reports(1, cpu=0.9))
    planner.change_members(["new", "a"], iteration=1)
    planner.decide(reports_of(1, [0, 8], [NAN, 2.0], cpu=[0.6, 0.5]))
    planner.decide(reports_of(2, [4, 4], [1.0, 2.0], cpu=[0.3, 0.2]))
    np.testing.assert_array_equal(
        recorder.taught[1:],
        [[[NAN, 4.0], [1.0, 0.9], [1.0, 1.0]], [[4.0, 2.0], [0.6, 0.5], [1.0, 1.0]]],
    )


def test_member_that_stays_keeps_its_usage_when_positions_change():
    recorder = Recorder(2)
    planner = Planner(["a", "b"], 8, Proportional(), recorder)
    planner.decide(first_reports(2, cpu=[0.9, 0.8]))
    planner.change_members(["b", "a"], iteration=1)
    planner.decide(reports_of(1, [4, 4], [1.0, 2.0]))
    assert recorder.taught[-1] == [[4.0, 2.0], [0.8, 0.9], [1.0, 1.0]]


BAD_REPORTS = {
    "time NaN with a size": {"times": [1.0, NAN]},
    "time infinite": {"times": [1.0, np.inf]},
    "time zero": {"times": [0.0, 1.0]},
    "time negative": {"times": [-1.0, 1.0]},
    "size negative": {"sizes": [32, -32]},
    "size zero with a time": {"sizes": [32, 0]},
    "cpu NaN": {"cpu": [1.0, NAN]},
    "cpu above 1": {"cpu": [1.5, 1.0]},
    "memory negative": {"memory": [1.0, -0.1]},
    "device memory above 1": {"device_memory": [0.5, 2.0]},
    "too few workers": {"sizes": [64], "times": [1.0]},
    "too many workers": {"sizes": [20, 20, 24], "times": [1.0, 1.0, 1.0]},
}


@pytest.mark.parametrize("bad", BAD_REPORTS.values(), ids=BAD_REPORTS)
@pytest.mark.parametrize("policy", ["proportional", "equal_finish", "stepwise"])
def test_bad_reports_leave_everything_as_it_was(policy, bad):
    planner = Planner(["a", "b"], 64, make_policy(policy), make_predictor("best_of", 2))
    drive(planner, [10, 30], range(6))
    before, plan = planner.state(), planner.plan
    with pytest.raises(InvalidReport):
        planner.decide(reports_of(6, **{"sizes": [32, 32], "times": [1.0, 1.0], **bad}))
    assert_same_state(planner.state(), before)
    assert planner.plan is plan


def test_reports_of_odd_shapes_are_refused():
    planner = Planner(["a", "b"], 64, Even())
    with pytest.raises(InvalidReport, match=r"cpu .*\(2\), got \(3,\)"):
        full = np.ones(2)
        planner.decide(Reports(0, np.array([1, 1]), full, np.ones(3), full, full))


@pytest.mark.parametrize("policy", ["proportional", "equal_finish", "stepwise", "even"])
def test_plan_has_a_new_number_exactly_where_its_sizes_are_new(policy):
    planner = Planner(["a", "b", "c"], 64, make_policy(policy), Ema(3))
    last, numbers = planner.plan, [0]
    for k, plan in enumerate(drive(planner, [10, 30, 90], range(30))):
        if plan.sizes.tolist() == last.sizes.tolist():
            assert (plan.number, plan.iteration) == (last.number, last.iteration)
        else:
            assert (plan.number, plan.iteration) == (last.number + 1, k)
        numbers.append(plan.number)
        last = plan
    if policy == "even":
        assert set(numbers) == {0}
    else:
        assert numbers[-1] >= 3


def test_plan_that_stays_says_the_latest_of_what_is_expected():
    planner = Planner(["a", "b"], 8, Proportional(), Ema(2, alpha=1.0))
    planner.decide(first_reports(2))
    slow = planner.decide(reports_of(1, [4, 4], [4.0, 4.0]))
    fast = planner.decide(reports_of(2, [4, 4], [2.0, 2.0]))
    assert (slow.number, expected_times(slow).tolist()) == (0, [4.0, 4.0])
    assert (fast.number, expected_times(fast).tolist()) == (0, [2.0, 2.0])


def test_delay_moves_the_plans_and_nothing_else():
    now = Planner(["a", "b"], 64, Proportional(), Ema(2))
    late = Planner(["a", "b"], 64, Proportional(), Ema(2), delay=3)
    for k in range(10):
        rng = np.random.default_rng(k)
        reports = reports_of(k, [32, 32], rng.uniform(0.5, 1.5, 2))
        numbers = (now.plan.number, late.plan.number)
        one, other = now.decide(reports), late.decide(reports)
        assert other.sizes.tolist() == one.sizes.tolist()
        assert other.number == one.number
        if (one.number, other.number) != numbers:
            assert (one.iteration, other.iteration) == (k, k + 3)
    assert now.plan.number >= 3


def learned_speeds(planner):
    return planner.predictor.predict(np.ones(len(planner.workers)), None).tolist()


@pytest.fixture
def taught():
    """A planner of a, b and c that knows their speeds 10, 20 and 30; total 60."""
    planner = Planner(["a", "b", "c"], 60, Proportional(), Ema(3))
    planner.decide(first_reports(3))
    planner.decide(reports_of(1, [20, 20, 20], [2.0, 1.0, 20 / 30]))
    assert planner.plan.sizes.tolist() == [10, 20, 30]
    return planner


MEMBERS = {
    "join": (["a", "b", "c", "d"], [10, 20, 30, 20], [7, 15, 23, 15]),
    "leave": (["a", "c"], [10, 30], [15, 45]),
    "reorder": (["c", "a", "b"], [30, 10, 20], [30, 10, 20]),
    "all at once": (["d", "c", "a"], [20, 30, 10], [20, 30, 10]),
    "only new ones": (["x", "y"], [1, 1], [30, 30]),
}


@pytest.mark.parametrize(("members", "speeds", "sizes"), MEMBERS.values(), ids=MEMBERS)
def test_change_of_members_keeps_the_total_and_what_was_learned(taught, members, speeds, sizes):
    plan = taught.change_members(members, iteration=2)
    assert told(plan)[:4] == (2, 2, sizes, "members changed")
    assert plan is taught.plan
    assert taught.workers == tuple(members)
    assert learned_speeds(taught) == speeds
    assert taught.decide(Reports.silent(2, len(members))).total == 60


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - set(SHARES)))
def test_any_policy_goes_on_with_other_members(policy, predictor):
    planner = Planner(
        ["a", "b", "c"], 64, make_policy(policy), make_predictor(predictor, 3), trainer=TrainNow()
    )
    drive(planner, [10, 20, 30], range(8))
    planner.change_members(["c", "d", "a", "e"], iteration=8)
    plans = drive(planner, [30, 5, 10, 5], range(8, 16))
    assert [plan.total for plan in plans] == [64] * 8


@pytest.mark.parametrize(
    ("members", "error"),
    [
        ([], InvalidSetting),
        (["a", "a"], MembershipError),
        ([f"w{i}" for i in range(61)], InfeasibleLimits),
    ],
)
def test_members_that_cannot_be_are_refused_and_nothing_changes(taught, members, error):
    before, plan = taught.state(), taught.plan
    with pytest.raises(error):
        taught.change_members(members, iteration=2)
    assert taught.workers == ("a", "b", "c")
    assert taught.plan is plan
    assert_same_state(taught.state(), before)


def test_members_that_the_policy_refuses_change_nothing():
    planner = Planner(["a", "b", "c"], 60, make_policy("static:shares=1/2/3"), Ema(3))
    drive(planner, [10, 20, 30], range(4))
    before = planner.state()
    with pytest.raises(InvalidSetting, match="one per worker"):
        planner.change_members(["a", "b"], iteration=4)
    assert planner.workers == ("a", "b", "c")
    assert_same_state(planner.state(), before)


def next_sizes(planner):
    """Return the sizes planned if nothing new is observed."""
    return planner.decide(Reports.silent(2, len(planner.workers))).sizes.tolist()


def test_cap_belongs_to_the_worker_not_to_its_position():
    planner = Planner(["a", "b", "c"], 60, Proportional(), Ema(3), caps={"c": 12})
    assert planner.plan.sizes.tolist() == [24, 24, 12]
    assert planner.change_members(["c", "a"], iteration=2).sizes.tolist() == [12, 48]
    assert next_sizes(planner) == [12, 48]


@pytest.mark.parametrize(
    ("cap", "error"), [(0, InfeasibleLimits), (4, InfeasibleLimits), (-1, InvalidSetting)]
)
def test_cap_that_cannot_be_is_refused(cap, error):
    with pytest.raises(error):
        Planner(["a", "b", "c"], 60, Proportional(), Ema(3), caps={"a": 20, "b": 35, "c": cap})


def test_members_whose_caps_cannot_hold_the_total_are_refused():
    planner = Planner(["a", "b", "c"], 60, Proportional(), Ema(3), caps={"a": 20})
    with pytest.raises(InfeasibleLimits):
        planner.change_members(["a"], iteration=2)
    assert planner.workers == ("a", "b", "c")
    assert planner.limits.cap.tolist() == [20, UNLIMITED, UNLIMITED]


SPECS = [SHARES.get(name, name) for name in POLICIES]


def planner_of(policy, predictor):
    return Planner(
        ["a", "b", "c"],
        64,
        make_policy(policy),
        make_predictor(predictor, 3) if predictor else None,
        trainer=TrainNow(),
    )


@pytest.mark.parametrize("policy", [*SPECS, "proportional+every_n:n=3", "equal_finish+dead_band"])
def test_restored_state_gives_the_same_further_plans(policy, predictor):
    speeds = [10, 30, 90]
    original, copy = planner_of(policy, predictor), planner_of(policy, predictor)
    drive(original, speeds, range(12))
    copy.restore(original.state())
    assert_same_state(copy.state(), original.state())
    for one, other in zip(
        drive(original, speeds, range(12, 24)), drive(copy, speeds, range(12, 24)), strict=True
    ):
        # Only the reason of a plan that is still the restored one says so.
        reason = other.reason if other.reason == "restored" else one.reason
        assert told(other) == told(replace(one, reason=reason))
    assert_same_state(copy.state(), original.state())


def test_restored_plan_is_the_saved_one_under_a_reason_of_its_own():
    original, copy = planner_of("proportional", "ema"), planner_of("proportional", "ema")
    saved = drive(original, [10, 30, 90], range(12))[-1]
    copy.restore(original.state())
    assert told(copy.plan)[:4] == (*told(saved)[:3], "restored")


def test_saved_state_is_a_copy():
    planner = planner_of("equal_finish", "best_of")
    drive(planner, [10, 30, 90], range(12))
    saved = planner.state()
    kept = {name: array.copy() for name, array in saved.items()}
    drive(planner, [10, 30, 90], range(12, 20))
    assert_same_state(saved, kept)


def without(name):
    return lambda state: {key: array for key, array in state.items() if key != name}


def having(name, change):
    return lambda state: {**state, name: change(state[name])}


DAMAGES = {
    "empty": lambda state: {},
    "no sizes": without("own.sizes"),
    "no policy": without("policy.filter.slope"),
    "no predictor": without("predictor.errors"),
    "sizes do not add up": having("own.sizes", lambda sizes: sizes + 1),
    "a negative size": having("own.sizes", lambda sizes: np.array([-1, 1, 64])),
    "sizes are no integers": having("own.sizes", lambda sizes: sizes.astype(float)),
    "usage NaN": having("own.usage", lambda usage: usage * NAN),
    "usage of other workers": having("own.usage", lambda usage: usage[:2]),
    "policy NaN": having("policy.filter.slope", lambda slope: slope * NAN),
    "predictor infinite": having("predictor.kalman.theta", lambda theta: theta + np.inf),
    "predictor of other workers": having("predictor.ema.mean", lambda mean: mean[:2]),
    "number is no number": having("own.number", lambda number: np.array("seven")),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_state_is_refused_and_changes_nothing(damage):
    speeds = [10, 30, 90]
    other, planner = planner_of("equal_finish", "best_of"), planner_of("equal_finish", "best_of")
    drive(other, speeds, range(20))
    drive(planner, speeds, range(12))
    before, plan = planner.state(), planner.plan
    with pytest.raises(StateFileError):
        planner.restore(damage(other.state()))
    assert_same_state(planner.state(), before)
    assert planner.plan is plan


@pytest.mark.parametrize(
    ("policy", "predictor"), [("proportional", "kalman"), ("equal_finish", "ema")]
)
def test_state_of_another_policy_or_predictor_is_refused(policy, predictor):
    planner = planner_of("equal_finish", "kalman")
    with pytest.raises(StateFileError):
        planner.restore(planner_of(policy, predictor).state())


@pytest.mark.parametrize(
    ("settings", "error", "what", "numbers"),
    [
        ({"delay": -1}, InvalidSetting, "delay", [0, -1]),
        ({"predictor": Ema(3)}, InvalidSetting, "predictor", [2, 3]),
        ({"workers": []}, InvalidSetting, "worker", []),
        ({"workers": ["a", "a"]}, MembershipError, "worker a ", []),
        ({"policy": make_policy("static:shares=1/2/3")}, InvalidSetting, "shares", [2, 3]),
        ({"total": 1}, InfeasibleLimits, "minimum", [2, 2, 1]),
        ({"granularity": 5}, InfeasibleLimits, "granularity", [5, 64]),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, error, what, numbers):
    usual = {"workers": ["a", "b"], "total": 64, "policy": Even()}
    with pytest.raises(error, match=what) as refused:
        Planner(**{**usual, **settings})
    assert numbers_in(str(refused.value)) == numbers


def test_policy_without_need_of_speeds_works_without_a_predictor():
    planner = Planner(["a", "b"], 64, make_policy("equal_finish"))
    for k in range(8):
        x = planner.plan.sizes
        planner.decide(reports_of(k, x, x / np.array([10.0, 30.0])))
    assert planner.plan.sizes.tolist() == [16, 48]


@pytest.mark.parametrize("policy", ["proportional", "proportional+every_n"])
def test_policy_in_need_of_speeds_asks_for_a_predictor(policy):
    planner = Planner(["a", "b"], 64, make_policy(policy))
    assert planner.plan.sizes.tolist() == [32, 32]
    before, plan = planner.state(), planner.plan
    with pytest.raises(InvalidSetting, match=r"Proportional.*predictor.*speeds"):
        planner.decide(first_reports(2))
    assert_same_state(planner.state(), before)
    assert planner.plan is plan


def test_speeds_that_the_workers_predict_themselves_are_used():
    planner = Planner(["a", "b"], 64, Proportional())
    plan = planner.decide(replace(first_reports(2), speeds=np.array([10.0, 30.0])))
    assert plan.sizes.tolist() == [16, 48]
    assert expected_times(plan).tolist() == [1.6, 1.6]


@pytest.mark.parametrize("speeds", [[1.0], [1.0, NAN], [0.0, 1.0], [1.0, -1.0], [np.inf, 1.0]])
def test_speeds_that_no_worker_can_predict_are_refused(speeds):
    planner = Planner(["a", "b"], 64, Proportional())
    plan = planner.plan
    with pytest.raises(InvalidReport):
        planner.decide(replace(first_reports(2), speeds=np.array(speeds)))
    assert planner.plan is plan


class Student(Recorder):
    """A predictor with a training due after every second lesson."""

    def __init__(self, num_workers):
        super().__init__(num_workers)
        self.adopted = []

    def training(self):
        lessons = len(self.taught)
        if lessons % 2:
            return None
        return lambda: (lessons, threading.current_thread() is threading.main_thread())

    def adopt(self, result):
        self.adopted.append(result)


def test_training_is_run_by_the_trainer_given():
    student = Student(1)
    planner = Planner(["a"], 8, Proportional(), student, trainer=TrainNow())
    for k in range(5):
        planner.decide(reports_of(k, [8], [1.0]))
    assert student.adopted == [(2, True), (4, True)]


def test_training_is_off_the_decision_path_by_default_and_close_ends_it():
    before = set(threading.enumerate())
    student = Student(1)
    planner = Planner(["a"], 8, Proportional(), student)
    assert set(threading.enumerate()) == before
    for k in range(2):
        planner.decide(reports_of(k, [8], [1.0]))
    threads = set(threading.enumerate()) - before
    assert len(threads) == 1
    planner.close()
    for thread in threads:
        thread.join(timeout=10)
    assert set(threading.enumerate()) == before
    planner.close()


def test_decision_uses_what_was_trained_in_the_background():
    student = Student(1)
    planner = Planner(["a"], 8, Proportional(), student)
    for k in range(2):
        planner.decide(reports_of(k, [8], [1.0]))
    deadline = time.monotonic() + 10
    while not student.adopted and time.monotonic() < deadline:
        planner.decide(reports_of(len(student.taught), [8], [1.0]))
    planner.close()
    assert student.adopted[0] == (2, False)


def capped_sizes(caps, granularity=1, total=60, own=None):
    planner = Planner(
        ["a", "b", "c"], total, make_policy("even"), granularity=granularity, caps=own
    )
    reports = replace(first_reports(3), caps=np.array(caps))
    return planner.decide(reports).sizes.tolist()


def test_caps_that_workers_report_hold_from_the_next_plan_on():
    assert capped_sizes([8, UNLIMITED, UNLIMITED]) == [8, 26, 26]
    assert capped_sizes([8, 100, 30]) == [8, 26, 26]
    assert capped_sizes([9, UNLIMITED, UNLIMITED], granularity=4) == [8, 28, 24]


def test_caps_that_leave_no_plan_share_the_total_in_proportion():
    assert capped_sizes([5, 5, 10]) == [15, 15, 30]
    assert capped_sizes([4, 4, 9], granularity=4) == [16, 16, 28]
    assert capped_sizes([0, 0, 0]) == [20, 20, 20]


def test_caps_that_were_given_bind_whatever_workers_report():
    assert capped_sizes([5, 5, 5], own={"c": 12}) == [24, 24, 12]
    with pytest.raises(InfeasibleLimits):
        capped_sizes([5, 5, 5], own={"a": 5, "b": 5, "c": 5})


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy not in SHARES])
def test_state_is_taken_up_by_other_workers(policy, predictor):
    made = make_policy(policy)

    def fresh(workers):
        return Planner(
            workers, 60, made, make_predictor(predictor, num_workers=len(workers)),
            trainer=TrainNow(),
        )  # fmt: skip

    before = fresh(["a", "b", "c"])
    drive(before, [1.0, 2.0, 3.0], range(12))
    # Exactly what a change of members in mid-run keeps.
    after = fresh(["c", "new", "a", "b"])
    after.restore(before.state(), ["a", "b", "c"])
    before.change_members(["c", "new", "a", "b"], iteration=12)
    assert after.plan.sizes.tolist() == before.plan.sizes.tolist()
    assert predictions(after, 4) == predictions(before, 4)


def predictions(planner, num_workers):
    usage = np.full(num_workers, 0.8)
    return planner.predictor.predict(usage, usage).tolist()


def test_foreign_state_of_other_workers_leaves_the_predictor_as_it_was():
    planner = Planner(["a", "b"], 60, Proportional(), Ema(2))
    drive(planner, [1.0, 3.0], range(4))
    before = predictions(planner, 2)
    other = Planner(["a", "b", "c"], 60, Proportional(), Kalman(3))
    with pytest.raises(StateFileError):
        planner.restore(other.state(), ["a", "b", "c"])
    assert predictions(planner, 2) == before


@pytest.mark.parametrize("policy", SPECS)
def test_another_total_keeps_the_proportions_and_then_the_policy_goes_on_with_it(policy):
    planner = Planner("abc", 60, make_policy(policy), make_predictor("ema", num_workers=3))
    times = np.array([0.1, 0.2, 0.3])
    for k in range(12):
        total = 60 if k < 6 else 150
        if k == 6:
            before = planner.plan
            plan = planner.change_total(150, 6)
            assert (plan.number, plan.iteration) == (before.number + 1, 6)
            np.testing.assert_allclose(plan.sizes, before.sizes * 2.5, atol=1)
        sizes = planner.plan.sizes
        assert sizes.sum() == planner.total == total
        planner.decide(reports_of(k + 1, sizes.tolist(), times * sizes))
    assert planner.plan.sizes.sum() == 150


def test_another_total_keeps_to_the_caps_that_workers_reported():
    planner = Planner("ab", 20, Even())
    assert planner.change_total(40, 3, np.array([12, UNLIMITED])).sizes.tolist() == [12, 28]


def test_total_for_which_there_is_no_plan_is_refused_and_changes_nothing():
    planner = Planner("ab", 20, Even(), minimum=8, caps={"a": 16, "b": 16}, granularity=4)
    before = planner.plan
    for total in (12, 36, 30):
        with pytest.raises(InfeasibleLimits) as refused:
            planner.change_total(total, 1)
        assert total in numbers_in(str(refused.value))
    assert planner.plan is before
    assert planner.total == 20
