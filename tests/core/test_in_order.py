"""Sessions whose workers report in order: a worker ahead has passed the boundaries behind it."""

import pytest

from evenstep.core import Report
from evenstep.core.planner import Planner
from evenstep.core.session import HORIZON, Receipt, Session
from evenstep.errors import InfeasibleLimits, InvalidReport
from evenstep.policies import make_policy
from evenstep.predictors import make_predictor


def session_of(*workers, total=60, iteration=0):
    predictor = make_predictor("ema", len(workers))
    return Session(Planner(workers, total, make_policy("proportional"), predictor), iteration)


def said(worker, iteration, speed=None):
    return Report(worker, iteration, *((None, None) if speed is None else (10, 10 / speed)))


def tell(session, *reports):
    return [session.report(report, in_order=True) for report in reports]


def test_worker_that_is_ahead_is_not_waited_for():
    session = session_of("a", "b")
    assert tell(session, said("a", 2), said("b", 0)) == [Receipt.ACCEPTED, Receipt.COMPLETED]
    assert (session.iteration, session.waiting_for) == (1, ("b",))
    tell(session, said("b", 1))
    assert session.waiting_for == ("b",)
    tell(session, said("b", 2))
    assert (session.iteration, session.waiting_for) == (3, ("a", "b"))


def test_boundaries_that_all_have_passed_are_skipped_at_once():
    session = session_of("a", "b")
    far = 2**50
    assert tell(session, said("a", far), said("b", far)) == [Receipt.ACCEPTED, Receipt.COMPLETED]
    assert session.iteration == far + 1
    assert session.plan_for(far).sizes.tolist() == [30, 30]


def test_session_goes_on_at_the_first_boundary_that_somebody_has_reported_for():
    session = session_of("a", "b", "c")
    tell(session, said("a", 90), said("b", 70), said("c", 80))
    assert (session.iteration, session.waiting_for) == (71, ("b",))
    assert session._reports.keys() == {80, 90}


def test_time_after_a_gap_teaches_nothing_and_the_next_one_does():
    session = session_of("a", "b")
    tell(session, said("a", 0), said("b", 0))
    tell(session, said("a", 2, 50.0), said("b", 1, 10.0), said("b", 2, 10.0))
    assert session.plan_for(2).sizes.tolist() == [30, 30]
    tell(session, said("a", 3, 50.0), said("b", 3, 10.0))
    assert session.plan_for(3).sizes.tolist() == [50, 10]


def test_joining_worker_is_let_in_when_boundaries_are_skipped():
    session = session_of("a")
    session.join("b")
    tell(session, said("a", 30))
    assert session.members == ("a", "b")
    assert session.plan.total == 60


def test_far_ahead_reports_of_one_worker_are_not_piled_up():
    session = session_of("a", "b")
    for k in range(1, 1000):
        tell(session, said("a", k, 10.0))
    assert sum(len(rows) for rows in session._reports.values()) == HORIZON + 1
    tell(session, said("b", 0))
    assert (session.iteration, session.waiting_for) == (1, ("b",))


def test_worker_that_leaves_is_no_longer_ahead_when_it_comes_back():
    session = session_of("a", "b")
    tell(session, said("b", 9))
    session.leave("b")
    session.join("b")
    tell(session, said("a", 0))
    assert session.waiting_for == ("a", "b")


def test_refused_report_passes_nothing():
    session = session_of("a", "b")
    tell(session, said("a", 1, 10.0))
    with pytest.raises(InvalidReport, match="two different reports"):
        tell(session, said("a", 1, 20.0))
    assert tell(session, said("a", 1, 10.0)) == [Receipt.REPEATED]


class Stubborn:
    """Decides like a balancer, except while it `refuses`."""

    def __init__(self, balancer):
        self.refuses = False
        self._balancer = balancer

    def decide(self, reports):
        if self.refuses:
            raise InfeasibleLimits("no plan can be made")
        return self._balancer.decide(reports)


def stubborn_session():
    """Make a session of a and b, and the object that decides for it."""
    balancer = Planner(["a", "b"], 60, make_policy("even"))
    stubborn = Stubborn(balancer)
    return Session(balancer, decide=stubborn.decide), stubborn


@pytest.mark.parametrize("earlier", [None, 1])
def test_worker_whose_report_found_no_plan_has_passed_nothing_by_it(earlier):
    session, stubborn = stubborn_session()
    if earlier is not None:
        tell(session, said("a", earlier), said("b", 0), said("b", earlier))
    k = session.iteration
    tell(session, said("b", k))
    stubborn.refuses = True
    with pytest.raises(InfeasibleLimits):
        tell(session, said("a", k + 2))
    assert (session.iteration, session.waiting_for) == (k, ("a",))
    stubborn.refuses = False
    assert tell(session, said("a", k)) == [Receipt.COMPLETED]
    assert (session.iteration, session.waiting_for) == (k + 1, ("a", "b"))


def test_worker_that_passes_by_where_no_plan_can_be_made_is_still_waited_for():
    session, stubborn = stubborn_session()
    tell(session, said("b", 0))
    stubborn.refuses = True
    with pytest.raises(InfeasibleLimits):
        session.pass_by("a", 2)
    assert (session.iteration, session.waiting_for) == (0, ("a",))
    stubborn.refuses = False
    assert session.pass_by("a", 1) is Receipt.COMPLETED
    assert (session.iteration, session.waiting_for) == (1, ("a", "b"))


def test_plans_are_numbered_above_what_somebody_holds():
    session = session_of("a", "b")
    session.renumber(-1)
    assert session.plan.number == 0
    session.renumber(7)
    assert session.plan.number == 8
    tell(session, said("a", 0), said("b", 0), said("a", 1, 10.0), said("b", 1, 20.0))
    assert [session.plan_for(k).number for k in (0, 1)] == [8, 9]
    assert session.workers_of(session.plan) == ("a", "b")


def test_workers_of_a_plan_are_those_at_its_time():
    session = session_of("a", "b")
    tell(session, said("a", 0), said("b", 0), said("a", 1, 10.0), said("b", 1, 20.0))
    before = session.plan
    session.join("c")
    tell(session, said("a", 2, 30.0), said("b", 2, 20.0))
    assert session.workers_of(before) == ("a", "b")
    assert session.workers_of(session.plan_for(2)) == ("a", "b")
    assert session.workers_of(session.plan) == ("a", "b", "c")
