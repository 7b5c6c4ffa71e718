"""ASP, SSP and backup workers on Ray: one worker is killed, and the others continue."""

import signal
from dataclasses import dataclass, replace
from functools import cache

import pytest

from evenstep.simulator.engine.run import Run
from tests.simulator.engine.ray.injecting import Injected, send
from tests.simulator.engine.ray.training import QUICK, cluster_with, training

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("local_ray")]

SLOW, FAST = 10.0, 80.0
SCALE = 0.25
"""Large enough that the overhead of Ray, on a busy machine too, does not make them alike."""
BEFORE = 12
"""Updates before the kill, at least."""


@dataclass
class Observed:
    """A run of a fast worker, 0, and a slow one, 1, that is killed and comes back."""

    run: Run
    starts: list[tuple[int, int]]
    """Worker and iteration."""
    died: int
    """The number of starts when the death was noticed."""
    dropped: int
    """Gradients dropped in the first updates."""


@cache
def observe(scheme, fatal):
    watch = Injected({(1, fatal): send(signal.SIGKILL, "worker 1")})
    settings = replace(QUICK, scale=SCALE)
    cluster = cluster_with(FAST, SLOW)
    died = dropped = 0
    with training(
        scheme, cluster=cluster, settings=settings, watch=watch, evaluate_every=10**6
    ) as run:
        for progress in run.advance(10**6):
            if progress.updates == BEFORE:
                assert run.faults == []
                dropped = run.num_dropped
            if run.faults and not died:
                died = len(watch.starts)
            if died and any(worker == 1 for worker, _ in watch.starts[died:]):
                break
    return Observed(run, watch.starts, died, dropped)


# The scheme, and the iteration in which the slow worker is killed, after the first updates.
ASP, SSP, BACKUPS = ("asp", 9), ("ssp:bound=3", 16), ("bsp:backups=1", 15)


@pytest.mark.parametrize("which", [ASP, SSP, BACKUPS])
def test_others_continue_until_a_killed_worker_is_back(which):
    seen = observe(*which)
    assert [fault.who for fault in seen.run.faults] == ["worker 1"]
    assert seen.run.faults[0].what.endswith("restarting, the others continue")
    alone = [worker for worker, _ in seen.starts[seen.died :]]
    assert alone.index(1) > 5


def test_gradients_of_a_slow_worker_are_old_under_asp():
    seen = observe(*ASP)
    before = [worker for worker, _ in seen.starts[: seen.died]]
    assert before.count(0) > 1.5 * before.count(1)
    assert max(seen.run.staleness) >= 2
    assert seen.run.staleness[0] > 0


def test_no_worker_gets_too_far_ahead_under_ssp():
    seen = observe(*SSP)
    at, leads = {}, []
    for worker, iteration in seen.starts[: seen.starts.index((1, SSP[1]))]:
        at[worker] = iteration
        leads.append(max(at.values()) - min(at.values()))
    # Counted in finished iterations the lead is below 3; the other may be about to start its next.
    assert 2 <= max(leads) <= 3


def test_one_gradient_of_each_iteration_is_dropped_with_one_backup():
    seen = observe(*BACKUPS)
    assert seen.dropped == BEFORE
    assert set(seen.run.staleness) == {0}
