"""The session: every rule of its docstring, first one by one, then in any order."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from evenstep.core import Report, Usage
from evenstep.core.planner import Planner
from evenstep.core.session import HORIZON, KEPT_PLANS, Receipt, Session
from evenstep.errors import (
    EvenstepError,
    InfeasibleLimits,
    InvalidReport,
    InvalidSetting,
    MembershipError,
    OutOfTurn,
)
from evenstep.policies import Even, Proportional, make_policy
from evenstep.predictors import Ema
from tests.figures import numbers_in


def session_of(*workers, total=60, delay=0, caps=None):
    """Make a session whose plans follow the last speeds."""
    predictor = Ema(len(workers), alpha=1.0)
    return Session(Planner(workers, total, Proportional(), predictor, delay=delay, caps=caps))


def said(worker, iteration, speed=None):
    """Make a report; the speed is that of 12 samples in the iteration before."""
    return (
        Report(worker, iteration)
        if speed is None
        else Report(worker, iteration, 12, 12 / speed, Usage(0.5, 0.5))
    )


def close(session, speeds):
    """Let all members report for the open boundary."""
    k = session.iteration
    return [session.report(said(worker, k, speed)) for worker, speed in speeds.items()]


def plan_of(session, iteration):
    plan = session.plan_for(iteration)
    return None if plan is None else (plan.number, plan.sizes.tolist())


def snapshot(session):
    """Return all that a session shows and all that its planner has learned."""
    state = {name: array.tolist() for name, array in session._planner.state().items()}
    ahead = range(session.iteration + HORIZON + 1)
    shown = (session.iteration, session.members, session.waiting_for)
    return repr((shown, session.plan.number, [plan_of(session, k) for k in ahead], state))


def test_boundary_is_closed_by_the_last_member_to_report():
    session = session_of("a", "b")
    assert session.report(said("b", 0)) is Receipt.ACCEPTED
    assert (session.iteration, session.waiting_for) == (0, ("a",))
    assert session.plan_for(0) is None
    assert session.report(said("a", 0)) is Receipt.COMPLETED
    assert (session.iteration, session.waiting_for) == (1, ("a", "b"))
    assert plan_of(session, 0) == (0, [30, 30])


def test_plan_is_made_from_the_reports_of_its_boundary():
    session = session_of("a", "b", "c")
    close(session, dict.fromkeys("abc"))
    assert close(session, {"c": 30, "a": 10, "b": 20}) == [
        Receipt.ACCEPTED,
        Receipt.ACCEPTED,
        Receipt.COMPLETED,
    ]
    assert plan_of(session, 1) == (1, [10, 20, 30])


def test_early_report_is_kept_until_its_turn_comes():
    session = session_of("a", "b")
    for k in range(HORIZON + 1):
        assert session.report(said("a", k, 10.0 + k)) is Receipt.ACCEPTED
    for k in range(HORIZON + 1):
        assert session.iteration == k
        assert session.report(said("b", k, 10.0)) is Receipt.COMPLETED
    assert session.iteration == HORIZON + 1
    one = session_of("a", "b")
    for k in range(HORIZON + 1):
        close(one, {"a": 10.0 + k, "b": 10.0})
    assert snapshot(session) == snapshot(one)


def test_one_report_can_close_several_boundaries():
    session = session_of("a", "b", "c")
    for k in range(3):
        session.report(said("a", k, 10))
        session.report(said("b", k, 10))
    session.report(said("c", 2, 10))
    session.report(said("c", 1, 10))
    assert session.iteration == 0
    assert session.report(said("c", 0)) is Receipt.COMPLETED
    assert session.iteration == 3


def test_report_from_too_far_ahead_is_refused():
    session = session_of("a", "b")
    before = snapshot(session)
    with pytest.raises(OutOfTurn, match="worker a ") as refused:
        session.report(said("a", HORIZON + 1))
    assert numbers_in(str(refused.value)) == [0, 4, 5]
    assert snapshot(session) == before


def test_late_report_teaches_nothing_and_finds_the_plan_that_was_made():
    session = session_of("a", "b")
    close(session, dict.fromkeys("ab"))
    close(session, {"a": 10, "b": 20})
    before = snapshot(session)
    assert session.report(said("a", 1, 99.0)) is Receipt.LATE
    assert session.report(said("b", 0)) is Receipt.LATE
    assert snapshot(session) == before
    assert plan_of(session, 1) == (1, [20, 40])


def test_same_report_twice_is_harmless():
    session = session_of("a", "b")
    for k in (0, 2):
        session.report(said("a", k, 10))
        before = snapshot(session)
        assert session.report(said("a", k, 10)) is Receipt.REPEATED
        assert snapshot(session) == before


@pytest.mark.parametrize("iteration", [0, 1, HORIZON])
def test_report_that_contradicts_the_first_is_refused_and_the_first_one_counts(iteration):
    session = session_of("a", "b")
    session.report(said("a", iteration, 10))
    before = snapshot(session)
    with pytest.raises(InvalidReport, match="worker a ") as refused:
        session.report(said("a", iteration, 20))
    assert numbers_in(str(refused.value)) == [iteration]
    assert snapshot(session) == before
    assert session.report(said("a", iteration, 10)) is Receipt.REPEATED


def test_report_of_an_unknown_worker_is_refused():
    session = session_of("a", "b")
    with pytest.raises(MembershipError, match=r"worker c .*: a, b$"):
        session.report(said("c", 0))
    assert session.waiting_for == ("a", "b")


def test_who_joins_is_a_member_from_the_next_boundary_on():
    session = session_of("a", "b")
    close(session, dict.fromkeys("ab"))
    assert session.join("c") == 2
    assert (session.members, session.waiting_for) == (("a", "b"), ("a", "b"))
    assert close(session, {"a": 10, "b": 20})[-1] is Receipt.COMPLETED
    assert plan_of(session, 1) == (1, [20, 40])
    assert session.members == session.waiting_for == ("a", "b", "c")
    assert (session.plan.number, session.plan.iteration, session.plan.total) == (2, 2, 60)
    close(session, {"a": 10, "b": 20, "c": None})
    assert plan_of(session, 1) == (1, [20, 40])
    assert plan_of(session, 2) == (2, [13, 27, 20])


def test_who_joins_may_report_for_its_first_boundary_before_it_opens():
    session = session_of("a")
    session.join("b")
    assert session.report(said("b", 1)) is Receipt.ACCEPTED
    assert session.report(said("a", 0)) is Receipt.COMPLETED
    assert session.waiting_for == ("a",)


def test_who_joins_cannot_report_for_the_boundary_before_its_first():
    session = session_of("a")
    session.join("b")
    with pytest.raises(OutOfTurn, match="worker b ") as refused:
        session.report(said("b", 0))
    assert numbers_in(str(refused.value)) == [1, 4, 0]


def test_several_join_at_one_boundary_in_the_order_they_came():
    session = session_of("b")
    assert [session.join(worker) for worker in "ca"] == [1, 1]
    session.report(said("b", 0))
    assert session.members == ("b", "c", "a")
    assert (session.plan.number, session.plan.sizes.tolist()) == (1, [20, 20, 20])


def test_member_cannot_join_again():
    session = session_of("a", "b")
    session.join("c")
    before = snapshot(session)
    for worker in "ac":
        with pytest.raises(MembershipError, match=f"worker {worker} "):
            session.join(worker)
    assert snapshot(session) == before


def test_join_that_leaves_a_worker_without_samples_is_refused_at_once():
    session = Session(Planner(["a", "b"], 3, Even()))
    assert session.join("c") == 1
    with pytest.raises(InfeasibleLimits) as refused:
        session.join("d")
    assert numbers_in(str(refused.value)) == [4, 4, 3]
    close(session, dict.fromkeys("ab"))
    assert session.members == ("a", "b", "c")
    session.leave("a")
    assert session.join("d") == 2


def test_join_that_the_policy_has_no_place_for_is_refused_at_once():
    session = Session(Planner(["a", "b"], 9, make_policy("static:shares=1/2")))
    with pytest.raises(InvalidSetting, match="one per worker"):
        session.join("c")
    assert close(session, dict.fromkeys("ab"))[-1] is Receipt.COMPLETED
    assert session.members == ("a", "b")


def test_leave_releases_those_who_wait_at_once():
    session = session_of("a", "b", "c")
    close(session, dict.fromkeys("abc"))
    session.report(said("a", 1, 10))
    session.report(said("b", 1, 20))
    assert session.leave("c") is Receipt.COMPLETED
    assert (session.members, session.iteration) == (("a", "b"), 2)
    assert session.plan_for(1).sizes.tolist() == [20, 40]


def test_leave_while_others_are_missing_lets_them_be_waited_for():
    session = session_of("a", "b", "c")
    session.report(said("c", 0))
    assert session.leave("c") is Receipt.ACCEPTED
    assert session.waiting_for == ("a", "b")
    assert session.plan.sizes.tolist() == [30, 30]


def test_who_has_left_is_unknown_and_what_it_said_ahead_is_forgotten():
    session = session_of("a", "b")
    for k in (0, 1, 2):
        session.report(said("b", k, 10))
    session.leave("b")
    with pytest.raises(MembershipError):
        session.report(said("b", 3))
    session.join("b")
    session.report(said("a", 0))
    assert session.waiting_for == ("a", "b")
    assert session.report(said("b", 1, 30)) is Receipt.ACCEPTED


def test_unknown_worker_cannot_leave():
    session = session_of("a")
    before = snapshot(session)
    with pytest.raises(MembershipError, match=r"worker b .*: a$"):
        session.leave("b")
    assert snapshot(session) == before


def test_who_is_still_joining_can_leave_again():
    session = session_of("a")
    session.join("b")
    session.report(said("b", 1))
    assert session.leave("b") is Receipt.ACCEPTED
    assert session.report(said("a", 0)) is Receipt.COMPLETED
    assert (session.members, session.plan.number) == (("a",), 0)


def test_leave_that_the_caps_of_the_others_forbid_is_refused():
    session = session_of("a", "b", caps={"a": 40})
    before = snapshot(session)
    with pytest.raises(InfeasibleLimits):
        session.leave("b")
    assert snapshot(session) == before


def test_last_member_can_leave_and_another_can_begin_where_it_stopped():
    session = session_of("a")
    close(session, {"a": None})
    session.report(said("a", 2, 10))
    assert session.leave("a") is Receipt.ACCEPTED
    assert (session.members, session.waiting_for, session.iteration) == ((), (), 1)
    assert session.join("b") == 1
    assert session.waiting_for == ("b",)
    assert session.report(said("b", 1)) is Receipt.COMPLETED
    assert plan_of(session, 1) == (1, [60])


def test_last_member_can_leave_and_come_back():
    session = session_of("a")
    session.leave("a")
    assert session.join("a") == 0
    assert session.report(said("a", 0)) is Receipt.COMPLETED


def test_who_is_joining_takes_over_when_the_last_member_leaves():
    session = session_of("a")
    close(session, {"a": None})
    assert session.join("b") == 2
    assert session.leave("a") is Receipt.ACCEPTED
    assert (session.members, session.waiting_for, session.iteration) == (("b",), ("b",), 2)
    assert session.report(said("b", 2)) is Receipt.COMPLETED
    assert session.plan_for(2).sizes.tolist() == [60]


def test_who_is_joining_and_has_reported_ahead_has_its_plan_when_the_last_member_leaves():
    session = session_of("a")
    session.join("b")
    session.report(said("b", 1))
    assert session.leave("a") is Receipt.COMPLETED
    assert (session.iteration, session.plan_for(1).sizes.tolist()) == (2, [60])


def test_plan_is_due_when_its_boundary_is_closed_and_forgotten_long_after():
    session = session_of("a", "b")
    made = []
    for k in range(2 * KEPT_PLANS):
        assert session.plan_for(k) is None
        close(session, {"a": 30.0 if k % 2 else 10.0, "b": 20.0})
        made.append(plan_of(session, k))
    assert [number for number, _ in made] == list(range(2 * KEPT_PLANS))
    kept = [plan_of(session, k) for k in range(2 * KEPT_PLANS)]
    assert kept == [None] * KEPT_PLANS + made[KEPT_PLANS:]


def test_plan_that_stays_is_never_forgotten():
    session = session_of("a", "b")
    for _ in range(3 * KEPT_PLANS):
        close(session, {"a": 10, "b": 10})
    assert plan_of(session, 0) == (0, [30, 30])


def test_plan_is_kept_for_who_is_slow_to_fetch_it_however_many_leave():
    workers = [f"w{i}" for i in range(3 * KEPT_PLANS)]
    session = session_of(*workers)
    close(session, dict.fromkeys(workers))
    made = plan_of(session, 0)
    for worker in workers[2:]:
        session.leave(worker)
    assert plan_of(session, 0) == made
    close(session, dict.fromkeys(workers[:2]))
    assert session.plan_for(1).sizes.tolist() == [30, 30]


@pytest.mark.parametrize("delay", [1, 3, KEPT_PLANS, KEPT_PLANS + 5])
def test_plans_with_a_delay_are_those_without_later(delay):
    now, late = session_of("a", "b"), session_of("a", "b", delay=delay)
    made = []
    for k in range(delay + 12):
        for session in (now, late):
            close(session, {"a": 10.0 + k, "b": 10.0})
        made.append(plan_of(now, k))
        assert plan_of(late, k) == made[max(0, k - delay)]


def test_session_can_begin_at_the_iteration_of_a_restored_planner():
    original = session_of("a", "b", delay=2)
    for k in range(6):
        close(original, {"a": 10.0 + k, "b": 10.0})
    planner = session_of("a", "b", delay=2)._planner
    planner.restore(original._planner.state())
    session = Session(planner, iteration=6)
    close(session, {"a": 15.0, "b": 10.0})
    assert session.plan_for(6) is not None


WORKERS = "abcde"


class Interleavings(RuleBasedStateMachine):
    """Reports, joins and leaves in any order, next to a model of what must come of them."""

    @initialize(total=st.sampled_from([3, 64]), delay=st.sampled_from([0, 2, KEPT_PLANS + 1]))
    def begin(self, total, delay):
        self.total = total
        self.session = session_of("a", "b", total=total, delay=delay)
        self.members = ["a", "b"]
        self.joining: list[str] = []
        self.reports: dict[tuple[int, str], Report] = {}
        self.open = 0
        self.made: dict[int, tuple[int, list[int]]] = {}

    @rule(
        worker=st.sampled_from(WORKERS),
        ahead=st.sampled_from([-1, 0, 0, 0, 1, 2, HORIZON, HORIZON + 1]),
        speed=st.sampled_from([None, 10.0, 35.0]),
    )
    def report(self, worker, ahead, speed):
        report = said(worker, max(0, self.open + ahead), speed)
        first = self.open + (worker in self.joining)
        known = self.reports.get((report.iteration, worker))
        if worker not in self.members + self.joining:
            self.refused(lambda: self.session.report(report), MembershipError)
        elif report.iteration < self.open:
            assert self.session.report(report) is Receipt.LATE
        elif not first <= report.iteration <= self.open + HORIZON:
            self.refused(lambda: self.session.report(report), OutOfTurn)
        elif known == report:
            assert self.session.report(report) is Receipt.REPEATED
        elif known is not None:
            self.refused(lambda: self.session.report(report), InvalidReport)
        else:
            self.reports[report.iteration, worker] = report
            assert self.session.report(report) is self.closed()

    @rule()
    def report_all(self):
        for worker in list(self.members):
            self.report(worker, 0, 20.0)

    @rule(worker=st.sampled_from(WORKERS))
    def join(self, worker):
        if worker in self.members + self.joining:
            self.refused(lambda: self.session.join(worker), MembershipError)
        elif len(self.members) + len(self.joining) == self.total:
            self.refused(lambda: self.session.join(worker), InfeasibleLimits)
        elif not self.members:
            assert self.session.join(worker) == self.open
            self.members = [worker]
        else:
            assert self.session.join(worker) == self.open + 1
            self.joining.append(worker)

    @rule(worker=st.sampled_from(WORKERS))
    def leave(self, worker):
        if worker not in self.members + self.joining:
            self.refused(lambda: self.session.leave(worker), MembershipError)
            return
        for group in (self.members, self.joining):
            if worker in group:
                group.remove(worker)
        self.reports = {key: row for key, row in self.reports.items() if key[1] != worker}
        if not self.members and self.joining:
            self.open += 1
            self.members, self.joining = self.joining, []
        assert self.session.leave(worker) is self.closed()

    def closed(self):
        """Close in the model what is complete, and return the receipt that there must be."""
        receipt = Receipt.ACCEPTED
        while self.members and all((self.open, worker) in self.reports for worker in self.members):
            self.members += self.joining
            self.joining = []
            self.open += 1
            receipt = Receipt.COMPLETED
        return receipt

    def refused(self, action, error: type[EvenstepError]):
        before = snapshot(self.session)
        with pytest.raises(error):
            action()
        assert snapshot(self.session) == before

    @invariant()
    def session_is_like_the_model(self):
        missing = [worker for worker in self.members if (self.open, worker) not in self.reports]
        assert self.session.iteration == self.open
        assert self.session.members == tuple(self.members)
        assert self.session.waiting_for == tuple(missing)

    @invariant()
    def total_is_kept(self):
        assert self.session.plan.total == self.total
        if self.members:
            assert len(self.session.plan.sizes) == len(self.members)

    @invariant()
    def plan_of_a_closed_iteration_never_changes(self):
        assert self.session.plan_for(self.open) is None
        for k in range(self.open):
            plan = plan_of(self.session, k)
            if k not in self.made:
                assert plan is not None
                self.made[k] = plan
            assert plan in (None, self.made[k])


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=40, stateful_step_count=40)


def test_late_time_of_an_iteration_whose_usage_was_not_said_teaches_nothing():
    session = session_of("a", "b")
    close(session, {"a": None, "b": None})
    session.report(Report("a", 1, 12, 1.0))
    session.pass_by("b", 2)
    assert session.iteration == 2
    for k in (2, 3):
        session.report(Report("a", k, 12, 1.0))
        session.report(Report("b", k, 12, 0.1, measured=k - 2))
    assert session.plan.sizes.tolist() == [30, 30]
    session.report(Report("a", 4, 12, 1.0))
    session.report(Report("b", 4, 12, 0.5, measured=2))
    assert session.plan.sizes.tolist() == [20, 40]
