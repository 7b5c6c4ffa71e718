"""A job without a network: members, leases, and the state that the next run begins with."""

import gc
import tracemalloc

import pytest

from evenstep.core.agreement import FAILED
from evenstep.errors import (
    InvalidReport,
    InvalidSetting,
    LimitReached,
    MembershipError,
    NameTaken,
    OutOfTurn,
)
from evenstep.manager.job import AWAY, Job
from evenstep.manager.job_settings import JobSettings
from evenstep.manager.job_store import LARGEST_NUMBER, LearnedState
from tests.manager.managers import said

EMA = ("proportional", "ema")


def job_of(*workers, total=60, lease=5.0, policy=EMA[0]):
    job = Job("j", JobSettings(len(workers), total, policy, EMA[1]))
    for worker in workers:
        job.join(worker, 0, lease, now=0.0)
    return job


def close(job, iteration, now=0.0, **speeds):
    for worker, speed in speeds.items():
        job.report(said(worker, iteration, speed), None, now)
    plan = job.plan_for(iteration)
    return None if plan is None else plan.sizes.tolist()


def test_job_begins_when_all_have_joined_and_early_reports_are_kept():
    job = Job("j", JobSettings(2, 60, *EMA))
    job.join("w10", 0, 5.0, now=0.0)
    job.report(said("w10", 0), None, now=0.0)
    assert job.session is None and job.plan_for(0) is None
    job.join("w9", 0, 5.0, now=0.0)
    assert job.workers == ("w9", "w10")
    assert job.session is not None
    assert close(job, 0, w9=None) == [30, 30]


def test_every_call_renews_the_lease():
    job = job_of("a", "b")
    job.renew("a", now=4.0)
    assert job.expire(now=5.0) == []
    assert job.expire(now=5.1) == ["b"]
    assert job.workers == ("a",)
    assert job.expire(now=9.0) == []


def test_time_that_stands_still_or_jumps_back_ends_no_lease():
    job = job_of("a", "b")
    job.renew("a", now=4.0)
    assert job.expire(now=0.0) == []
    assert job.expire(now=-1e9) == []


def test_who_is_gone_must_join_again_and_takes_part_from_the_next_boundary():
    job = job_of("a", "b")
    close(job, 0, a=None, b=None)
    job.renew("a", now=9.0)
    job.expire(now=10.0)
    with pytest.raises(MembershipError, match="join again"):
        job.report(said("b", 1), None, now=10.0)
    assert job.join("b", 1, 5.0, now=10.0) == 2
    # It is not a member before its first boundary.
    job.report(said("b", 1), None, now=10.0)
    assert close(job, 1, a=10.0) == [60]
    assert close(job, 2, a=10.0, b=None) == [30, 30]


def test_name_is_taken_while_connected_only():
    job = job_of("a", "b")
    with pytest.raises(NameTaken):
        job.join("a", 0, 5.0, now=0.0)
    job.disconnect("a", now=0.0)
    assert job.join("a", 0, 5.0, now=0.0) == 0
    assert job.workers == ("a", "b")


def test_returning_client_replaces_its_own_connection():
    job = Job("j", JobSettings(1, 60, *EMA))
    job.join("a", 0, 5.0, now=0.0, instance="x")
    for stranger in ("", "y"):
        with pytest.raises(NameTaken):
            job.join("a", 0, 5.0, now=0.0, instance=stranger)
    assert job.join("a", 7, 5.0, now=0.0, instance="x") == 7


def test_only_the_first_worker_to_return_sets_the_iteration():
    job = job_of("a", "b")
    close(job, 0, a=None, b=None)
    for worker in "ab":
        job.disconnect(worker, now=0.0)
    assert job.join("b", 40, 5.0, now=1.0) == 40
    assert job.join("a", 35, 5.0, now=1.0) == 40
    assert close(job, 35, a=10.0) == [30, 30]
    assert close(job, 40, a=None, b=None) == [30, 30]


def test_unknown_newer_number_makes_the_job_renumber_its_plan():
    job = job_of("a", "b")
    job.report(said("a", 0), 17, now=0.0)
    assert close(job, 0, b=None) == [30, 30]
    assert job.plan_for(0).number == 18


def test_worker_that_passed_a_boundary_is_not_waited_for_there():
    job = job_of("a", "b")
    close(job, 0, a=None, b=None)
    job.report(said("a", 3, 10.0), None, now=0.0)
    for k in (1, 2):
        assert close(job, k, b=20.0) is not None
    # Its time has no usage to pair it with, and is not learned from.
    assert close(job, 3, b=20.0) == [30, 30]


def test_worker_that_comes_back_later_on_is_not_waited_for_before():
    job = job_of("a", "b")
    close(job, 0, a=None, b=None)
    job.report(said("a", 1, 10.0), None, now=0.0)
    job.disconnect("b", now=0.0)
    assert job.plan_for(1) is None
    assert job.join("b", 2, 5.0, now=0.0) == 2
    assert job.plan_for(1) is not None
    # No worker reports for 2 and 3.
    job.disconnect("b", now=0.0)
    job.join("b", 4, 5.0, now=0.0)
    assert job.iteration == 2
    job.disconnect("a", now=0.0)
    job.join("a", 5, 5.0, now=0.0)
    assert job.iteration == 4
    assert close(job, 4, b=10.0) is not None


def test_plan_of_long_ago_is_forgotten():
    job = job_of("a", "b")
    close(job, 0, a=None, b=None)
    for k in range(1, 40):
        close(job, k, a=10.0 + k % 7, b=10.0)
    with pytest.raises(OutOfTurn, match=r"plan of iteration 1 .*\bat 40$"):
        job.plan_for(1)


def test_what_was_learned_about_all_outlives_their_leaving():
    job = job_of("a", "b", "c")
    close(job, 0, a=None, b=None, c=None)
    close(job, 1, a=10.0, b=20.0, c=30.0)
    for worker in "abc":
        job.leave(worker)
        job.saved()
    assert (job.session, job.workers) == (None, ())
    for worker in "cba":
        job.join(worker, 0, 5.0, now=0.0)
    assert close(job, 0, a=None, b=None, c=None) == [10, 20, 30]


def test_what_cannot_be_used_does_not_keep_a_run_from_beginning():
    job = Job("j", JobSettings(2, 60, *EMA))
    job._learned = LearnedState(("a", "b"), {})
    for worker in "ab":
        job.join(worker, 0, 5.0, now=0.0)
    assert close(job, 0, a=None, b=None) == [30, 30]


def test_policy_that_needs_all_workers_keeps_a_silent_one():
    job = job_of("a", "b", policy="static:shares=1/2")
    job.renew("a", now=9.0)
    assert job.expire(now=10.0) == []
    assert job.workers == ("a", "b")


def test_agreement_is_settled_when_the_missing_one_leaves():
    job = job_of("a", "b")
    job.agree("a", 3, 5, now=0.0)
    assert job.agreements.outcome(3) is None
    job.leave("b")
    assert job.agreements.outcome(3).number == 5


@pytest.mark.parametrize("back", [False, True])
def test_agreement_fails_for_all_where_one_that_spoke_will_not_hear_its_outcome(back):
    job = Job("j", JobSettings(2, 60, *EMA))
    for worker in "ab":
        job.join(worker, 0, 5.0, now=0.0, instance=worker)
    job.agree("a", 3, 5, now=0.0)
    if back:
        # Its old connection is dead, and the manager has not noticed.
        job.join("a", 3, 5.0, now=0.0, instance="a")
    else:
        job.disconnect("a", now=0.0)
    job.agree("b", 3, 5, now=0.0)
    assert job.agreements.outcome(3) == FAILED


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"workers": 0}, "workers of a job must be >= 1"),
        ({"total": 0}, "total of a job must be >= 1"),
        ({"workers": 10_001, "total": 99_999}, "at most 10,000"),
        ({"total": 2**60}, "at most 1,000,000,000,000"),
        ({"predictor": "oracle"}, "predictor must be one of"),
    ],
)
def test_settings_are_checked(values, rule):
    with pytest.raises(InvalidSetting, match=rule):
        JobSettings(**{"workers": 2, "total": 8, **values}).check()


def test_memory_does_not_grow_with_the_iterations():
    job = job_of("a", "b")
    sizes = []
    tracemalloc.start()
    try:
        for k in range(3_000):
            close(job, k, **({"a": 10.0 + k % 7, "b": 10.0 + k % 5} if k else dict.fromkeys("ab")))
            for worker in "ab":
                job.agree(worker, k, job.plan_for(k).number, now=0.0)
            if k in (1_000, 2_999):
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[1] - sizes[0] < 20_000


def test_closed_job_has_places_for_its_workers_alone():
    job = job_of("a", "b")
    with pytest.raises(LimitReached, match="has its 2 workers and is not elastic, got stranger"):
        job.join("stranger", 0, 5.0, now=0.0)
    assert job.workers == ("a", "b")
    job.leave("b")
    assert job.join("c", 0, 5.0, now=0.0) == 1
    with pytest.raises(LimitReached):
        job.join("b", 0, 5.0, now=0.0)
    elastic = Job("e", JobSettings(1, 60, *EMA, elastic=True))
    for worker in "ab":
        elastic.join(worker, 0, 5.0, now=0.0)
    assert elastic.workers == ("a", "b")


def test_lease_of_a_worker_without_a_connection_is_short_however_long_it_was_asked_for():
    job = job_of("a", "b", lease=86_400.0)
    job.disconnect("b", now=100.0)
    assert job.expire(now=100.0 + AWAY) == []
    assert job.expire(now=100.1 + AWAY) == ["b"]
    assert job.workers == ("a",)
    assert job.expire(now=86_000.0) == []


def test_interrupted_job_does_not_wait_a_day_for_the_rest():
    job = job_of("a", "b")
    close(job, 0, a=None, b=None)
    assert sorted(job.expire(now=6.0)) == ["a", "b"]
    job.join("a", 1, 86_400.0, now=7.0)
    job.expire(now=7.0 + AWAY)
    assert job.session is None
    job.expire(now=7.1 + AWAY)
    assert job.session is not None and job.workers == ("a",)


@pytest.mark.parametrize("held", [LARGEST_NUMBER + 1, 2**53])
def test_plan_number_that_no_manager_can_have_given_is_refused(held):
    job = job_of("a", "b")
    close(job, 0, a=None, b=None)
    with pytest.raises(InvalidReport, match=f"got {held}"):
        job.report(said("a", 1, 10.0), held, now=0.0)
    assert close(job, 1, a=10.0, b=20.0) == [20, 40]
    assert job.session is not None and job.session.plan.number == 1


def test_largest_plausible_plan_number_locks_nobody_out():
    job = job_of("a", "b")
    close(job, 0, a=None, b=None)
    job.report(said("a", 1, 10.0), LARGEST_NUMBER, now=0.0)
    job.report(said("b", 1, 20.0), None, now=0.0)
    for k in range(2, 6):
        assert job.session is not None
        newest = job.session.plan.number
        assert newest > LARGEST_NUMBER
        for worker, speed in (("a", 10.0 * k), ("b", 20.0)):
            job.report(said(worker, k, speed), newest, now=0.0)


def test_planner_is_made_off_this_thread_while_workers_come_and_go():
    waiting = []
    job = Job("j", JobSettings(2, 60, *EMA), background=lambda *work: waiting.append(work))

    def work():
        make, then = waiting.pop(0)
        then(make())

    job.join("a", 3, 5.0, now=0.0)
    job.join("b", 3, 5.0, now=0.0)
    job.report(said("a", 3), None, now=0.0)
    job.leave("b")
    work()
    assert job.session is None and job.workers == ("a",)
    for worker in "cde":
        job.join(worker, 3, 5.0, now=0.0)
        # However often workers come and go, one planner is being made.
        assert len(waiting) == 1
        if worker != "e":
            job.leave(worker)
    work()
    assert job.session is None
    work()
    assert job.session is not None and job.workers == ("a", "e") and not waiting
    assert close(job, 3, e=None) == [30, 30]


def test_planner_that_could_not_be_made_is_made_again_unless_the_settings_forbid_it():
    made = []

    def fails_first(make, then):
        made.append(make)
        then(MemoryError() if len(made) == 1 else make())

    job = Job("j", JobSettings(2, 60, *EMA), background=fails_first)
    for worker in "ab":
        job.join(worker, 0, 50.0, now=0.0)
    assert job.session is None and job.expire(now=0.1) == []
    assert job.session is not None and len(made) == 2


def test_many_workers_are_lost_at_once():
    job = job_of(*(f"w{i}" for i in range(8)), total=80)
    close(job, 0, **dict.fromkeys((f"w{i}" for i in range(8)), None))
    for i in (0, 1):
        job.report(said(f"w{i}", 1, 10.0), None, now=4.0)
    assert job.session is not None
    before = job.session.plan.number
    assert sorted(job.expire(now=6.0)) == [f"w{i}" for i in range(2, 8)]
    assert job.workers == ("w0", "w1")
    # They did not leave one by one, and those who wait have their plan.
    assert job.session.plan.number <= before + 2
    plan = job.plan_for(1)
    assert plan is not None and plan.sizes.sum() == 80 and len(plan.sizes) == 2


def test_workers_that_continued_without_a_manager_do_not_wait_for_what_others_have_passed():
    job = Job("j", JobSettings(3, 60, *EMA))
    for worker, iteration in (("a", 17), ("b", 19), ("c", 18)):
        job.join(worker, iteration, 5.0, now=0.0)
    assert close(job, 17, a=None) is not None
    assert close(job, 18, a=None) is None
    assert close(job, 18, c=None) is not None
    assert close(job, 19, a=10.0, b=20.0, c=30.0) is not None
