"""`bsp`: everybody waits for everybody."""

import itertools

import pytest

from evenstep.schemes import SCHEMES, Bsp
from evenstep.schemes.scheme import Answer

WAIT = Answer(used=True, starts=())


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_last_to_arrive_starts_everybody_whatever_the_order(order):
    bsp = Bsp(3)
    assert [bsp.arrive(worker) for worker in order] == [WAIT, WAIT, Answer(True, (0, 1, 2))]


def test_every_iteration_waits_anew():
    bsp = Bsp(2)
    for first, last in ((0, 1), (1, 0), (1, 0)):
        assert [bsp.arrive(first), bsp.arrive(last)] == [WAIT, Answer(True, (0, 1))]


def test_worker_alone_never_waits():
    bsp = Bsp(1)
    assert [bsp.arrive(0), bsp.arrive(0)] == [Answer(True, (0,))] * 2


def test_scheme_is_found_by_its_name():
    assert SCHEMES["bsp"] is Bsp
