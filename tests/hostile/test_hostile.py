"""Attacks on a manager that must not disturb a valid job; `scripts/test --hostile` runs them.

Every attack is measured against the same job a moment before: the 99th percentile of its rounds,
the memory of the manager, whether /livez answers. The attackers are niced, since they share the
processors with the manager, and are asked to take its attention only.
"""

import random
import statistics
import time

import pytest

from evenstep.manager.events import MAX_FOLLOWERS
from tests.hostile.target import TIMEOUT, target
from tests.manager.managers import until

FEW_FILES = 256
MANY_CONNECTIONS = 600
SEED = 7
ATTEMPTS = 3

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(3600)]
either = pytest.mark.parametrize("has_tls", [False, True], ids=["open", "guarded"])
# `wrap_socket` leaves a socket to the collector if it is reset before the handshake.
resets = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def attacked(tmp_path, scale, show):
    """Make an attack, and check what came of it."""

    def attack(name, has_tls, number=0, files=0):
        figures = None
        for attempt in range(ATTEMPTS):
            folder = tmp_path / str(attempt)
            folder.mkdir()
            with target(folder, has_tls, files) as victim:
                figures = victim.attack(name, scale.flood, scale.usual, number)
            show.append(figures)
            # Another program on the machine disturbs once, a weakness every time.
            if figures.faults or not (figures.problems() or figures.slowness()):
                break
        assert figures is not None
        figures.check()
        return figures.came_of_it

    return attack


@either
def test_calls_with_hostile_values_do_not_disturb(attacked, scale, has_tls):
    assert attacked("messages", has_tls, scale.messages)["answered"] >= scale.messages


def test_slow_and_half_open_connections_do_not_disturb(attacked):
    attacked("slow", has_tls=True)


def test_calls_without_waiting_for_replies_do_not_disturb(attacked):
    attacked("pipelined", has_tls=True)


@either
def test_more_connections_than_open_files_do_not_disturb(attacked, has_tls):
    attacked("descriptors", has_tls, MANY_CONNECTIONS, FEW_FILES)


@either
def test_floods_of_the_http_port_leave_it_alive_and_do_not_disturb(attacked, has_tls):
    assert 0 < attacked("http", has_tls)["followers"] <= MAX_FOLLOWERS


def test_strangers_cannot_stall_a_job(attacked):
    assert attacked("stranger", has_tls=True)["strangers"] > 1


@resets
def test_nothing_is_lost_when_the_manager_is_killed(tmp_path, scale, is_long, say):
    with target(tmp_path, has_tls=True) as victim:
        # By then the job was saved for the first time.
        time.sleep(2.0)
        took = _kill(victim, scale.kills)
        rounds, faults = victim.job.rounds, victim.job.faults()
    say.append(_recovery("kills", took, rounds))
    assert faults == []
    assert max(one.seconds for one in rounds) < TIMEOUT
    if is_long:
        assert statistics.median(took) < 2.0


@resets
def test_nothing_is_lost_when_a_manager_without_state_is_killed(tmp_path, say):
    with target(tmp_path, has_tls=True, has_state=False) as victim:
        took = _kill(victim, 3)
        rounds, faults = victim.job.rounds, victim.job.faults()
    say.append(_recovery("kills without state", took, rounds))
    assert faults == []
    assert max(one.seconds for one in rounds) < TIMEOUT


def _kill(victim, number):
    """Kill the manager and start it again, and return the seconds until the next common plans."""
    rng = random.Random(SEED)
    took = []
    for _ in range(number):
        time.sleep(rng.uniform(0.0, 2.0))
        begun = len(victim.job.rounds)
        start = time.monotonic()
        victim.manager.kill()
        victim.manager.start()

        def served(begun=begun, start=start):
            new = victim.job.rounds[begun:]
            return [one for one in new if one.began > start and one.served]

        until(served, "a plan of the manager that was started again")
        took.append(served()[0].began + served()[0].seconds - start)
        # Training goes on while there is no manager.
        assert len(victim.job.rounds) > begun + 1
    return took


def _recovery(what, took, rounds):
    plans = {number for one in rounds for number, _, _ in one.plans}
    median, longest = statistics.median(took), max(one.seconds for one in rounds)
    return (
        f"{len(took)} {what}: the next common plan came after {median:.2f} s at the median, from "
        f"{min(took):.2f} to {max(took):.2f}; the longest round took {longest:.2f} s; "
        f"{len(rounds)} iterations, {len(plans)} plans"
    )
