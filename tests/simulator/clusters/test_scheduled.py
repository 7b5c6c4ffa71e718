"""The scheduled environment: noise, traces and changes."""

import numpy as np
import pytest

from evenstep.core import as_floats
from evenstep.errors import InvalidSetting
from evenstep.simulator.clusters.conditions import Swap
from evenstep.simulator.clusters.noise import QUIET, Noise, WorkerNoise
from evenstep.simulator.clusters.scheduled import Change, Scheduled
from evenstep.simulator.clusters.traces import UNDISTURBED, Trace, Traces


def quiet(num_workers, **settings):
    return Scheduled(np.full(num_workers, 0.1), Noise.of([QUIET] * num_workers, seed=0), **settings)


def trace(at, cpu, memory, **settings):
    return Trace(as_floats(at), as_floats(cpu), as_floats(memory), **settings)


def cpu_at(busy, iteration, now=0.0):
    return quiet(1, traces=Traces.of([busy])).conditions(iteration, now).cpu.item()


def test_nothing_scheduled_is_undisturbed():
    at = quiet(2).conditions(7, now=3.0)
    assert at.slowdown.tolist() == [1, 1]
    assert at.communication.tolist() == [0.1, 0.1]
    assert at.noise.tolist() == [1, 1]
    assert at.cpu.tolist() == [1, 1]
    assert at.memory.tolist() == [1, 1]


def test_a_change_holds_from_its_iteration_on_and_for_its_workers_only():
    change = Change(5, np.array([1]), communication=0.6, slowdown=2.0)
    environment = quiet(3, changes=[change])
    assert environment.conditions(4, 0.0).communication.tolist() == [0.1, 0.1, 0.1]
    assert environment.conditions(5, 0.0).communication.tolist() == [0.1, 0.6, 0.1]
    assert environment.conditions(9, 0.0).slowdown.tolist() == [1, 2, 1]


def test_the_later_of_two_changes_holds_whatever_their_order():
    late, early = Change(8, np.array([0]), slowdown=1.5), Change(5, np.array([0]), slowdown=3.0)
    environment = quiet(1, changes=[late, early])
    slowdowns = [environment.conditions(k, 0.0).slowdown.item() for k in (4, 5, 7, 8)]
    assert slowdowns == [1, 3, 3, 1.5]


def test_a_change_leaves_what_it_does_not_name():
    changes = [Change(1, np.array([0]), slowdown=2.0), Change(2, np.array([0]), communication=0.5)]
    at = quiet(1, changes=changes).conditions(3, 0.0)
    assert (at.slowdown.item(), at.communication.item()) == (2.0, 0.5)


def test_a_trace_level_holds_until_the_next_and_the_last_stays():
    busy = trace([0, 10, 20], cpu=[1.0, 0.5, 0.8], memory=[1, 1, 1])
    assert [cpu_at(busy, k) for k in (0, 9, 10, 19, 20, 999)] == [1, 1, 0.5, 0.5, 0.8, 0.8]


def test_a_trace_repeats():
    busy = trace([0, 10], cpu=[1.0, 0.5], memory=[1, 1], repeat=15)
    assert [cpu_at(busy, k) for k in (9, 14, 15, 24, 25, 30)] == [1, 0.5, 1, 1, 0.5, 1]


def test_a_trace_over_seconds_follows_the_clock():
    busy = trace([0, 2.5], cpu=[1.0, 0.5], memory=[1, 1], unit="second")
    assert [cpu_at(busy, 99, now) for now in (0.0, 2.4, 2.5)] == [1, 1, 0.5]


def test_workers_with_traces_of_unlike_lengths_do_not_mix():
    short = trace([0, 5], cpu=[1.0, 0.5], memory=[0.9, 0.3])
    long = trace(np.arange(50), cpu=np.linspace(1, 0.5, 50), memory=np.ones(50))
    environment = quiet(4, traces=Traces.of([long, UNDISTURBED, short, long]))
    at = environment.conditions(49, 0.0)
    assert at.cpu.tolist() == [0.5, 1.0, 0.5, 0.5]
    assert at.memory.tolist() == [1.0, 1.0, 0.3, 1.0]
    assert at.slowdown.tolist() == [2.0, 1.0, 2.0, 2.0]


def test_memory_slows_down_only_a_worker_that_swaps():
    settings = {"at": [0], "cpu": [0.5], "memory": [0.15]}
    traces = Traces.of([trace(**settings), trace(**settings, swap=Swap(needed=0.3, strength=2.0))])
    at = quiet(2, traces=traces).conditions(0, 0.0)
    assert at.memory.tolist() == [0.15, 0.15]
    np.testing.assert_allclose(at.slowdown, [2.0, 4.0])


def test_a_change_and_a_trace_multiply():
    traces = Traces.of([trace([0], cpu=[0.5], memory=[1])])
    environment = quiet(1, traces=traces, changes=[Change(0, np.array([0]), slowdown=1.5)])
    assert environment.conditions(0, 0.0).slowdown.tolist() == [3.0]


def test_conditions_do_not_depend_on_earlier_calls():
    noise = Noise.of([WorkerNoise(0.1, 0.2)] * 5, seed=3)
    environment = Scheduled(np.zeros(5), noise, [Change(2, np.array([1]), slowdown=2.0)])
    first = environment.conditions(4, 0.0)
    environment.conditions(0, 0.0).slowdown[:] = 9
    again = environment.conditions(4, 0.0)
    assert first.noise.tolist() == again.noise.tolist()
    assert first.slowdown.tolist() == again.slowdown.tolist()


def test_noise_has_the_spread_and_the_spikes_of_each_worker():
    workers = [WorkerNoise(0.05), WorkerNoise(0.0, spike_probability=0.2, spike=(2.0, 4.0)), QUIET]
    noise = Noise.of(workers, seed=0)
    factors = np.array([noise.factors(k) for k in range(4000)])
    assert abs(np.log(factors[:, 0]).std() - 0.05) < 0.003
    spikes = factors[:, 1][factors[:, 1] != 1]
    assert abs(len(spikes) / 4000 - 0.2) < 0.03
    assert 2 <= spikes.min() < 2.1 and 3.9 < spikes.max() <= 4
    assert factors[:, 2].tolist() == [1] * 4000


def test_noise_differs_between_seeds_and_iterations():
    draws = [
        Noise.of([WorkerNoise(0.1)] * 3, seed).factors(k) for seed, k in ((0, 0), (0, 1), (1, 0))
    ]
    assert len({tuple(draw) for draw in draws}) == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WorkerNoise(sigma=-0.1), "sigma must be finite and >= 0, got -0.1"),
        (
            lambda: WorkerNoise(spike_probability=1.5),
            "spike_probability must be from 0 to 1, got 1.5",
        ),
        (
            lambda: WorkerNoise(spike=(3.0, 1.5)),
            "spike must be two factors > 0, the lower one first, got 3.0 and 1.5",
        ),
        (lambda: Noise.of([QUIET], seed=-1), "seed must be >= 0, got -1"),
        (lambda: Change(-1, np.array([0]), slowdown=2.0), "iteration must be >= 0, got -1"),
        (lambda: Change(1, np.array([0]), slowdown=0), "slowdown must be finite and > 0, got 0"),
        (
            lambda: Change(1, np.array([0])),
            "a change must give communication, slowdown or both, got neither",
        ),
        (
            lambda: Scheduled(np.array([0.1, -1.0]), Noise.of([QUIET] * 2, seed=0)),
            "communication must be finite and >= 0, got -1.0 for worker 1",
        ),
        (lambda: trace([], [], []), "a trace must have at least one level, got none"),
        (lambda: trace([1], [1], [1]), "iteration must be 0 in the first row, got 1 in row 0"),
        (
            lambda: trace([0, 0], [1, 1], [1, 1]),
            "iteration must rise from row to row, got 0 in row 1",
        ),
        (lambda: trace([0], [0], [1]), "cpu must be a fraction above 0, up to 1, got 0 in row 0"),
        (lambda: trace([0], [1], [1.5]), "memory must be a fraction 0..1, got 1.5 in row 0"),
        (
            lambda: trace([0, 9], [1, 1], [1, 1], repeat=9),
            "repeat must be after the last level begins (9), got 9",
        ),
        (
            lambda: trace([0], [1], [1], unit="hour"),
            "unit must be one of iteration, second, got 'hour'",
        ),
        (lambda: Swap(needed=0.0), "needed must be a fraction above 0, up to 1, got 0.0"),
        (lambda: Swap(strength=-1.0), "strength must be finite and >= 0, got -1.0"),
    ],
)
def test_an_invalid_environment_is_refused(make, message):
    with pytest.raises(InvalidSetting) as caught:
        make()
    assert str(caught.value) == message
