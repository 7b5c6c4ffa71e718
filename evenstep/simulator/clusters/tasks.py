"""An environment of background tasks, used by the CPU scenarios.

Tasks start and end on every worker (Poisson arrivals, lognormal durations), and each takes some CPU
and memory. The rest determines the speed; a worker measures the rest at the start of an iteration.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.core import Floats
from evenstep.simulator.clusters.conditions import NO_SWAP, Conditions, Swap

_CPU_EXPONENT = 0.9
"""Speed falls slightly less than the CPU share."""
_MEASUREMENT_NOISE = 0.01


@dataclass(frozen=True)
class TaskLoad:
    """The settings of a population of background tasks, durations in iterations."""

    tasks: float
    """Average number of tasks alive on a worker."""
    duration: float = 200.0
    """Mean duration, in iterations."""
    largest_cpu: float = 0.25
    largest_memory: float = 0.25
    swap: Swap = NO_SWAP
    """The effect of a lack of memory."""
    sigma: float = 0.04
    """Standard deviation of the logarithm of the speed's noise."""
    jitter: float = 0.0
    """Fluctuation of the CPU share from iteration to iteration, visible in c."""
    jitter_rebound: float = 0.0
    """Share of a fluctuation that reverses one iteration later (MA(1), Box-Jenkins sign)."""
    steady: float = 0.0
    """Probability that an iteration runs entirely in the state measured at its start."""
    spike_probability: float = 0.01
    spike_up: float = 0.5
    """Share of the spikes that increase the speed."""


class BackgroundTasks:
    """The conditions of all workers under a `TaskLoad`, drawn once for a whole run.

    Beyond the end of the run the conditions repeat from the start.
    """

    follows_clock = False

    def __init__(self, load: TaskLoad, num_workers: int, iterations: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        shape = (iterations + 1, num_workers)
        used_cpu, used_memory = np.zeros((2, *shape))
        for i in range(num_workers):
            _add_tasks(load, used_cpu[:, i], used_memory[:, i], rng)
        cpu = np.clip(1 - used_cpu + _jitter(load, shape, rng), 0.35, 1)
        memory = np.clip(1 - used_memory, 0.02, 1)
        self._slowdown = load.swap.slowdown(memory) / cpu**_CPU_EXPONENT
        self._noise = _surprise(load, self._slowdown, rng)
        self._cpu, self._memory = (
            np.clip(state + _MEASUREMENT_NOISE * rng.standard_normal(shape), 0.01, 1)
            for state in (cpu, memory)
        )

    def conditions(self, iteration: int, now: float) -> Conditions:
        k = iteration % len(self._noise)
        return Conditions(
            self._slowdown[k],
            np.zeros_like(self._slowdown[k]),
            self._noise[k],
            self._cpu[k],
            self._memory[k],
        )


def _add_tasks(
    load: TaskLoad, used_cpu: Floats, used_memory: Floats, rng: np.random.Generator
) -> None:
    """Add one worker's tasks, from long before the run, so that the run starts in steady state."""
    before = 20 * load.duration
    span = before + len(used_cpu)
    count = rng.poisson(load.tasks / load.duration * span)
    starts = rng.uniform(-before, len(used_cpu), count)
    # A lognormal of sigma 1 has the mean exp(mu + 1/2).
    ends = starts + rng.lognormal(np.log(load.duration) - 0.5, 1.0, count)
    cpus = rng.uniform(0.05, load.largest_cpu, count)
    memories = rng.uniform(0.02, load.largest_memory, count)
    for start, end, cpu, memory in zip(starts, ends, cpus, memories, strict=True):
        alive = slice(max(0, int(np.ceil(start))), max(0, int(np.ceil(end))))
        used_cpu[alive] += cpu
        used_memory[alive] += memory


def _jitter(load: TaskLoad, shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    shocks = rng.standard_normal((shape[0] + 1, shape[1]))
    return load.jitter * (shocks[1:] - load.jitter_rebound * shocks[:-1])


def _surprise(load: TaskLoad, slowdown: Floats, rng: np.random.Generator) -> Floats:
    """Return the ratio of the real time to the time expected at the start."""
    now, later = slowdown[:-1], slowdown[1:]
    shape = now.shape
    # A change inside the iteration: part of the work runs at the next state's speed.
    part = np.where(rng.random(shape) < load.steady, 1.0, rng.uniform(0, 1, shape))
    mixed = part + (1 - part) * later / now
    noise = np.exp(load.sigma * rng.standard_normal(shape))
    spiked = rng.random(shape) < load.spike_probability
    direction = np.where(rng.random(shape) < load.spike_up, 1, -1)
    spike = np.where(spiked, np.exp(direction * rng.uniform(0.3, 0.7, shape)), 1.0)
    surprise: Floats = mixed / (noise * spike)
    return surprise
