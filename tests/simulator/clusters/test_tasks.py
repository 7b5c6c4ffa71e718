"""The environment of background tasks."""

from dataclasses import fields, replace

import numpy as np
import pytest

from evenstep.simulator.clusters.conditions import Conditions, Swap
from evenstep.simulator.clusters.scenarios import LOADS
from evenstep.simulator.clusters.tasks import BackgroundTasks, TaskLoad


def run(load, num_workers=64, iterations=1000, seed=0):
    """The conditions of a whole run, one array (iteration, worker) per quantity."""
    tasks = BackgroundTasks(load, num_workers, iterations, seed)
    rows = [tasks.conditions(k, now=0.0) for k in range(iterations)]
    return Conditions(
        *(np.array([getattr(row, f.name) for row in rows]) for f in fields(Conditions))
    )


def test_as_many_tasks_are_alive_on_average_as_the_load_says():
    # Tasks that all take just above 5 % of the CPU can be counted.
    load = TaskLoad(tasks=1.5, largest_cpu=0.0500001, sigma=0, spike_probability=0)
    alive = (1 - run(load, num_workers=400).cpu) / 0.05
    assert abs(alive[0].mean() - 1.5) < 0.2
    assert abs(alive.mean() - 1.5) < 0.1


def test_tasks_last_as_long_as_the_load_says():
    load = TaskLoad(tasks=1.5, duration=50.0, largest_cpu=0.0500001)
    tasks = BackgroundTasks(load, 400, 2000, seed=0)
    # In the steady state, tasks end as often as they begin: tasks / duration per iteration.
    moves = np.abs(np.diff(tasks._slowdown, axis=0)) > 1e-9
    assert abs(moves.mean() - 2 * 1.5 / 50) < 0.005


@pytest.mark.parametrize("name", LOADS)
def test_conditions_stay_within_their_ranges(name):
    at = run(LOADS[name])
    assert at.cpu.min() >= 0.3 and at.cpu.max() <= 1
    assert at.memory.min() >= 0.01 and at.memory.max() <= 1
    assert at.slowdown.min() >= 1
    assert at.slowdown.max() <= (1 + LOADS[name].swap.strength) / 0.35**0.9
    assert np.all(np.isfinite(at.noise) & (at.noise > 0))
    assert not at.communication.any()


@pytest.mark.parametrize("name", LOADS)
def test_the_same_seed_gives_the_same_conditions(name):
    first, again, other = (run(LOADS[name], 8, 50, seed) for seed in (3, 3, 4))
    for field in ("slowdown", "noise", "cpu", "memory"):
        assert np.array_equal(getattr(first, field), getattr(again, field))
        assert not np.array_equal(getattr(first, field), getattr(other, field))


def test_speed_follows_the_available_cpu():
    at = run(TaskLoad(tasks=1.5, largest_cpu=0.25))
    visible = at.cpu > 0.4
    np.testing.assert_allclose(at.slowdown[visible], at.cpu[visible] ** -0.9, rtol=0.12)


def test_memory_slows_down_only_a_load_that_swaps():
    load = TaskLoad(tasks=2.0, largest_cpu=0.2, largest_memory=0.5)
    without, swapping = (
        run(replace(load, swap=swap)) for swap in (Swap(), Swap(needed=0.3, strength=2.0))
    )
    extra = swapping.slowdown / without.slowdown
    assert np.all(extra[without.memory > 0.36] == 1)
    assert np.all(extra[without.memory < 0.24] > 1.1)
    assert extra.max() <= 3


def test_noise_alone_has_the_spread_of_sigma():
    at = run(TaskLoad(tasks=0.0, sigma=0.04, spike_probability=0))
    assert abs(np.log(at.noise).std() - 0.04) < 0.002
    assert abs(np.log(at.noise).mean()) < 0.001


def test_spikes_have_the_share_and_the_direction_of_the_load():
    at = run(TaskLoad(tasks=0.0, sigma=0, spike_probability=0.1, spike_up=0.7))
    spikes = np.log(at.noise[at.noise != 1])
    assert abs(spikes.size / at.noise.size - 0.1) < 0.01
    # Upward in speed is downward in time.
    assert abs((spikes < 0).mean() - 0.7) < 0.03
    assert np.abs(spikes).min() >= 0.3 and np.abs(spikes).max() <= 0.7


def test_a_steady_iteration_runs_in_the_state_of_its_start():
    load = TaskLoad(tasks=1.5, sigma=0, spike_probability=0, jitter=0.08)
    assert np.all(run(replace(load, steady=1.0)).noise == 1)
    assert (run(replace(load, steady=0.9)).noise != 1).mean() < 0.12
    assert (run(replace(load, steady=0.0)).noise != 1).mean() > 0.5
