"""Forks wait until the threads of process groups have let go of what is Python's."""

import os
import sys
import threading
import time

import pytest

from evenstep.pytorch.collective import InflightTensors

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python 3.12 locks by itself")


class Thing:
    """Something that can be watched."""


def hold(thing: list[Thing], let_go: threading.Event) -> None:
    """Hold a thing for a while, as a thread of gloo does."""
    time.sleep(0.02)
    thing.clear()
    let_go.set()


def test_fork_waits_until_what_was_handed_over_is_let_go_of():
    inflight, let_go = InflightTensors(), threading.Event()
    things = [inflight.watch(Thing())]
    holder = threading.Thread(target=hold, args=(things, let_go))
    holder.start()
    child = os.fork()
    if child == 0:
        os._exit(0 if let_go.is_set() else 1)
    _, status = os.waitpid(child, 0)
    holder.join()
    assert os.waitstatus_to_exitcode(status) == 0


def test_fork_does_not_wait_for_ever():
    inflight = InflightTensors()
    thing = inflight.watch(Thing())
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert thing is not None
