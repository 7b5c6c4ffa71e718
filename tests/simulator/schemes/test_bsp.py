"""`bsp`: all workers wait for each other."""

import itertools

import pytest

from evenstep.errors import InvalidSetting
from evenstep.simulator.schemes import Answer, Bsp


def starts(bsp, *workers):
    return [bsp.arrive(worker).starts for worker in workers]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_last_to_arrive_starts_all_workers_in_any_order(order):
    bsp = Bsp(3)
    wait = Answer(used=True, weight=1 / 3)
    last = Answer(True, (0, 1, 2), weight=1 / 3, update=True)
    assert [bsp.arrive(worker) for worker in order] == [wait, wait, last]


def test_every_iteration_waits_for_all_workers():
    assert starts(Bsp(2), 0, 1, 1, 0, 1, 0) == [(), (0, 1)] * 3


def test_worker_alone_never_waits():
    assert starts(Bsp(1), 0, 0) == [(0,), (0,)]


def test_backups_are_abandoned_and_start_with_the_others():
    bsp = Bsp(4, backups=2)
    assert bsp.num_counted == 2
    assert bsp.arrive(2) == Answer(True, weight=0.5)
    assert bsp.arrive(0) == Answer(True, (0, 1, 2, 3), 0.5, update=True, abandoned=(1, 3))
    assert bsp.arrive(3) == Answer(True, weight=0.5)
    assert bsp.arrive(1) == Answer(True, (0, 1, 2, 3), 0.5, update=True, abandoned=(0, 2))


def test_all_that_are_left_complete_the_iteration_when_one_leaves():
    bsp = Bsp(3)
    bsp.arrive(0)
    bsp.arrive(2)
    assert bsp.leave(1) == Answer(False, (0, 2), update=True)
    assert starts(bsp, 0, 2) == [(), (0, 2)]


def test_gradient_of_a_worker_that_left_afterwards_counts():
    bsp = Bsp(3)
    bsp.arrive(0)
    assert bsp.leave(0) == Answer(False)
    assert [bsp.arrive(1), bsp.arrive(2)] == [
        Answer(True, weight=1 / 3),
        Answer(True, (1, 2), weight=1 / 3, update=True),
    ]


def test_backup_replaces_a_worker_that_left():
    bsp = Bsp(3, backups=1)
    assert bsp.leave(0) == Answer(False)
    assert starts(bsp, 2, 1) == [(), (1, 2)]


def test_worker_that_comes_back_starts_with_the_next_iteration():
    bsp = Bsp(3)
    bsp.leave(1)
    bsp.arrive(0)
    assert bsp.join(1) == Answer(False)
    assert starts(bsp, 2, 0, 1, 2) == [(0, 1, 2), (), (), (0, 1, 2)]


def test_others_wait_for_a_restarted_worker():
    bsp = Bsp(2)
    bsp.arrive(0)
    assert bsp.join(1) == Answer(False, (1,))
    assert starts(bsp, 1) == [(0, 1)]


def test_first_to_come_back_after_all_left_starts_at_once():
    bsp = Bsp(2)
    bsp.leave(0)
    bsp.leave(1)
    assert bsp.join(1) == Answer(False, (1,))
    assert starts(bsp, 1) == [(1,)]


@pytest.mark.parametrize("backups", [2, -1, 0.5])
def test_number_of_backups_is_checked(backups):
    with pytest.raises(InvalidSetting, match="backups of bsp"):
        Bsp(2, backups=backups)
