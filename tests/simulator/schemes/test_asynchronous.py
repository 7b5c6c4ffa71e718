"""`asp` and `ssp`, worked out by hand."""

import pytest

from evenstep.errors import InvalidSetting
from evenstep.simulator.schemes import Answer, Asp, Ssp


def starts(scheme, *workers):
    return [scheme.arrive(worker).starts for worker in workers]


def test_asp_lets_every_worker_continue():
    asp = Asp(2)
    assert [asp.arrive(worker) for worker in (0, 0, 1, 0)] == [
        Answer(True, (worker,), weight=0.5, update=True) for worker in (0, 0, 1, 0)
    ]


def test_asp_ignores_workers_that_leave_and_join():
    asp = Asp(2)
    assert asp.leave(0) == Answer(False)
    assert starts(asp, 1, 1) == [(1,), (1,)]
    assert asp.join(0) == Answer(False, (0,))


def test_ssp_holds_workers_a_bound_ahead_until_the_slowest_advances():
    ssp = Ssp(3, bound=2)
    # 0 finishes 1 and 2 (waits), 1 finishes 1 and 2 (waits); then 2 finishes its first.
    assert starts(ssp, 0, 0, 1, 1, 2) == [(0,), (), (1,), (), (0, 1, 2)]
    assert starts(ssp, 2, 0) == [(2,), (0,)]


def test_ssp_answers_that_each_gradient_is_an_update():
    assert Ssp(4).arrive(0) == Answer(True, (0,), weight=0.25, update=True)


def test_default_bound_of_ssp_is_five():
    assert starts(Ssp(2), *[0] * 5) == [(0,)] * 4 + [()]


def test_ssp_releases_workers_that_waited_for_one_that_left():
    ssp = Ssp(3, bound=1)
    assert starts(ssp, 0, 1) == [(), ()]
    assert ssp.leave(2) == Answer(False, (0, 1))


def test_ssp_takes_a_worker_back_where_the_slowest_is():
    ssp = Ssp(2, bound=2)
    ssp.leave(1)
    assert starts(ssp, 0, 0, 0) == [(0,), (0,), (0,)]
    assert ssp.join(1) == Answer(False, (1,))
    # Both have finished 3: worker 0 may get two ahead.
    assert starts(ssp, 0, 0) == [(0,), ()]
    assert starts(ssp, 1) == [(0, 1)]


def test_ssp_restarts_a_worker_unless_it_waits():
    ssp = Ssp(2, bound=1)
    ssp.arrive(0)
    assert ssp.join(0) == Answer(False)
    assert ssp.join(1) == Answer(False, (1,))


@pytest.mark.parametrize("bound", [0, 2.5])
def test_bound_is_checked(bound):
    with pytest.raises(InvalidSetting, match="bound of ssp"):
        Ssp(2, bound=bound)
