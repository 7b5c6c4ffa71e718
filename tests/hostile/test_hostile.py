"""Attacks on a manager that must not disturb a valid job; `scripts/test --hostile` runs them.

Every attack is measured against the same job a moment before: the 99th percentile of its rounds,
the memory of the manager, whether /livez answers. The attackers are niced, since they share the
processors with the manager, and are asked to take its attention only.
"""

import itertools
import random
import statistics
import time

import pytest

from evenstep.manager.events import MAX_FOLLOWERS
from tests.hostile.target import target
from tests.manager.managers import until

FEW_FILES = 256
MANY_CONNECTIONS = 600
SEED = 7

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(3600)]
either = pytest.mark.parametrize("has_tls", [False, True], ids=["open", "guarded"])


@either
def test_calls_with_hostile_values_do_not_disturb(tmp_path, scale, show, has_tls):
    with target(tmp_path, has_tls) as victim:
        figures = victim.attack("messages", scale.flood, scale.usual, scale.messages)
    show.append(figures)
    figures.check()
    assert figures.came_of_it["answered"] >= scale.messages


def test_slow_and_half_open_connections_do_not_disturb(tmp_path, scale, show):
    with target(tmp_path, has_tls=True) as victim:
        figures = victim.attack("slow", scale.flood, scale.usual)
    show.append(figures)
    figures.check()


@either
def test_calls_without_waiting_for_replies_do_not_disturb(tmp_path, scale, show, has_tls):
    with target(tmp_path, has_tls) as victim:
        figures = victim.attack("pipelined", scale.flood, scale.usual)
    show.append(figures)
    figures.check()


@either
def test_more_connections_than_open_files_do_not_disturb(tmp_path, scale, show, has_tls):
    with target(tmp_path, has_tls, files=FEW_FILES) as victim:
        figures = victim.attack("descriptors", scale.flood, scale.usual, MANY_CONNECTIONS)
    show.append(figures)
    figures.check()


@either
def test_floods_of_the_http_port_leave_it_alive_and_do_not_disturb(tmp_path, scale, show, has_tls):
    with target(tmp_path, has_tls) as victim:
        figures = victim.attack("http", scale.flood, scale.usual)
    show.append(figures)
    figures.check()
    assert 0 < figures.came_of_it["followers"] <= MAX_FOLLOWERS


def test_strangers_cannot_stall_a_job(tmp_path, scale, show):
    with target(tmp_path, has_tls=True) as victim:
        figures = victim.attack("stranger", scale.flood, scale.usual)
    show.append(figures)
    figures.check()
    assert figures.came_of_it["strangers"] > 1


def test_nothing_is_lost_when_the_manager_is_killed(tmp_path, scale, is_long, say):
    rng = random.Random(SEED)
    took, begun = [], []
    with target(tmp_path, has_tls=True) as victim:
        rounds = victim.job.rounds
        for _ in range(scale.kills):
            time.sleep(rng.uniform(0.0, 2.0))
            start = time.monotonic()
            began = len(rounds)
            victim.manager.kill()
            victim.manager.start()
            until(_served_since(rounds, start), "a plan of the manager that was started again")
            end = next(one for one in rounds if one.began > start and one.served)
            took.append(end.began + end.seconds - start)
            begun.append(len(rounds) - began)
        faults = victim.job.faults()
        numbers = [min(one.plans)[0] for one in rounds]
    median = statistics.median(took)
    say.append(
        f"{scale.kills} kills: the next common plan came after {median:.2f} s at the median, "
        f"from {min(took):.2f} to {max(took):.2f}; {len(rounds)} iterations, "
        f"{len(set(numbers))} plans"
    )
    assert faults == []
    # Training goes on while there is no manager.
    assert min(begun) > 1
    assert all(after >= before for before, after in itertools.pairwise(numbers))
    if is_long:
        assert median < 2.0


def _served_since(rounds, moment):
    return lambda: any(one.began > moment and one.served for one in rounds[-50:])
